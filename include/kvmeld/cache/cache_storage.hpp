// What a cache is made of: executor, policy, tensors, and one block of memory for ledger and workspace.
#pragma once

#include <kvmeld/cache/cache_arrays.hpp>
#include <kvmeld/cache/cache_ref.hpp>
#include <kvmeld/cache/check_construction.hpp>
#include <kvmeld/cache/ledger_readings.hpp>
#include <kvmeld/cache/limits.hpp>
#include <kvmeld/cache/part_traits.hpp>
#include <kvmeld/cache/shared_ref.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/executor.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/workspace.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/merge/merge_function.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The part of merged_cache that is a value: it is made, copied (deep in the ledger, K and V shared) and moved.
template <class Executor, class Policy, class Keys, class Values>
class cache_storage : public ledger_readings {
public:
  /// Of the policy.
  using policy_type = Policy;
  /// Whether entries have members with norms of their own (EMS).
  static constexpr bool shares = shares_entries<typename Policy::merge_type>::value;
  /// shared_ref for policies that share entries (EMS), else cache_ref.
  using ref_type = std::conditional_t<shares, shared_ref<Keys, Values>, cache_ref<Keys, Values>>;

  /// As merged_cache.
  cache_storage(Executor executor, Policy policy, kv<Keys, Values> tensors, limits sizes)
      : executor_(std::move(executor)), policy_(policy), tensors_(tensors), sizes_(sizes) {
    construction_ = report(construction_problem(policy_, tensors_, sizes_));
    if (!construction_.ok()) return;
    sizes_.wave_tracks = tracks_of_wave(sizes_, executor_.workers());
    std::size_t const bytes = cache_bytes(sizes_, policy_.score.channels());
    memory_ = executor_.allocate(bytes);
    require_memory(bytes);
    if (!construction_.ok()) return;
    executor_.clear(memory_.data(), memory_.size());
    known_ = known_state(sizes_.extent);
    planned_.reserve(sizes_.extent.sequences);
    bind_memory();
    policy_name_ = name_of_policy(policy_);
  }
  /// Deep in the ledger; K and V are the same.
  cache_storage(cache_storage const& other)
      : ledger_readings(other),
        executor_(other.executor_),
        policy_(other.policy_),
        tensors_(other.tensors_),
        sizes_(other.sizes_),
        memory_(other.memory_),
        policy_name_(other.policy_name_),
        planned_(other.planned_) {
    if (valid().ok()) require_memory(other.memory_.size());
    if (valid().ok()) bind_memory();
  }
  /// Calls of the other are refused from then on.
  cache_storage(cache_storage&& other) noexcept
      : ledger_readings(std::move(other)),
        executor_(std::move(other.executor_)),
        policy_(other.policy_),
        tensors_(other.tensors_),
        sizes_(other.sizes_),
        memory_(std::move(other.memory_)),
        policy_name_(std::move(other.policy_name_)),
        planned_(std::move(other.planned_)) {
    if (valid().ok()) bind_memory();
    other.ledger_ = other.facts_ = {};
    other.arrays_ = {};
    other.moved_from_ = true;
  }
  /// As the copy or move that made `other`.
  cache_storage& operator=(cache_storage other) noexcept {
    executor_ = std::move(other.executor_);
    policy_ = other.policy_;
    tensors_ = other.tensors_;
    sizes_ = other.sizes_;
    memory_ = std::move(other.memory_);
    policy_name_ = std::move(other.policy_name_);
    planned_ = std::move(other.planned_);
    ledger_readings::operator=(std::move(other));
    if (valid().ok()) bind_memory();
    return *this;
  }

  /// What attention and the engine's writes need; see cache_ref.
  ref_type ref() const { return {tensors_.keys, tensors_.values, ledger_}; }
  /// Points the cache at other tensors of the same contents: engines reallocate them and rewrite block tables.
  status rebind(kv<Keys, Values> tensors) {
    if (status s = refuse([&] { return refusal_within("rebind", tensors_problem(tensors, sizes_.extent)); });
        !s.ok())
      return s;
    tensors_ = tensors;
    return {};
  }

  /// The cache's own copy of the executor: calls and attention go to it.
  Executor& executor() { return executor_; }
  /// As it was given; set_guard changes its guard.
  Policy const& policy() const { return policy_; }
  /// As they were given, wave_tracks filled in.
  limits const& sizes() const { return sizes_; }
  /// Bytes of ledger and of workspace that construction allocated.
  std::size_t ledger_bytes() const { return arrays_.ledger_bytes; }
  /// Bytes of the workspace: all that is not ledger.
  std::size_t workspace_bytes() const { return memory_.size() - arrays_.ledger_bytes; }

protected:
  void require_memory(std::size_t bytes) {
    if (memory_.size() >= bytes) return;
    construction_ = report(refusal("merged_cache", "memory in bytes", bytes, memory_to_be_had));
  }
  void bind_memory() {
    arena a(memory_.data(), memory_.size());
    arrays_ = carve_cache(a, sizes_, policy_.score.channels());
    ledger_ = arrays_.ledger;
    facts_ = is_immediate<Executor>::value ? ledger_ : known_.view(ledger_);
  }

  /// Before what the host knows changes: recorded calls may be refused later on, and this is what it goes back to.
  void keep_known() {
    auto const undo = [](void* self) {
      auto& cache = *static_cast<cache_storage*>(self);
      std::swap(cache.known_, cache.known_before_);  // cannot throw
      cache.facts_ = cache.known_.view(cache.ledger_);
    };
    executor_.remember(this, undo, [&] { known_before_ = known_; });
  }

  Executor executor_;
  Policy policy_;
  kv<Keys, Values> tensors_;
  limits sizes_;
  typename Executor::memory memory_;
  std::string policy_name_;
  cache_arrays arrays_;
  std::vector<std::uint32_t> planned_;  ///< sequences of the plan made last
  std::vector<std::uint32_t> budgets_;  ///< per track, of the last call that was recorded
  known_state known_before_;            ///< recorded calls, see keep_known
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
