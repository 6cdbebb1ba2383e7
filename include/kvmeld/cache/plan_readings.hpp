// What a cache tells of the plan made last, and of what it was made from.
#pragma once

#include <kvmeld/apply/print_plan.hpp>
#include <kvmeld/cache/figure_calls.hpp>
#include <kvmeld/cache/limits.hpp>
#include <kvmeld/cache/part_traits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/executor.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/identify/guarded.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/merge/gaussian.hpp>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The part of merged_cache that shows its plan; see there for what refused calls do.
template <class Executor, class Policy, class Keys, class Values>
class plan_readings : public figure_calls<Executor, Policy, Keys, Values> {
  using base = figure_calls<Executor, Policy, Keys, Values>;

public:
  /// As merged_cache.
  plan_readings(Executor executor, Policy policy, kv<Keys, Values> tensors, limits sizes)
      : base(std::move(executor), policy, tensors, sizes) {}

  /// The plan made last, track by track as planned_work() numbers them: in the order (layer, listed sequence, head), or
  /// (listed sequence, layer, head) with plan_scope::group or limits.budgets_over group. May be edited before `apply`.
  plan_ref const& current_plan() const { return arrays_.workspace.plan; }
  /// The tracks of the plan made last, in its order.
  work_list planned_work() const { return plan_work(planned_.data(), planned_.size()); }
  /// The plan made last in words, track by track; for executors whose memory the host can read.
  void print_plan(std::ostream& out) const {
    for (std::uint32_t item = 0; item < planned_work().tracks(sizes_.extent); ++item) {
      kvmeld::print_plan(out, planned_work().at(sizes_.extent, item), arrays_.workspace.plan, item);
    }
  }

  /// What the plan made last was made from, until the next call of plan, apply or compress: the role of entry `s` of the
  /// `item`-th planned track, as current_plan() numbers both. These three are readable where the host can read the executor's
  /// memory, and where the plan fits one wave: roles and candidates are those of a wave and take no memory of their own, so that
  /// limits.wave_tracks has to be at least planned_work().tracks(sizes().extent). Entries of a track within its budget have no
  /// role: refused.
  role planned_role(std::uint32_t item, slot_t s) const {
    if (!refuse([&] { return unknown("planned_role", item, s); }).ok()) return role::pinned;
    return arrays_.workspace.wave.roles[at(item, s)];
  }
  /// What the identifier proposed for entry `s`: order_value(key) is its similarity to `target`, whether it was admitted or
  /// not; key 0 where it proposed nothing. Of identifiers that give similarities; see planned_role.
  candidate planned_candidate(std::uint32_t item, slot_t s) const {
    auto const problem = [&]() -> std::string {
      if (traits_of_identifier(policy_.identify).gives_similarity)
        return unknown("planned_candidate", item, s);
      return refusal("planned_candidate", "the policy's identifier", full_name_of(policy_.identify),
                     "one that gives similarities (chunked_bipartite, nearest_center)");
    };
    if (!refuse(problem).ok()) return {0, s, s};
    wave_ref const& wave = arrays_.workspace.wave;
    std::uint32_t count = wave.state[item].field;
    if constexpr (lists_edges<typename Policy::identify_type>::value) {
      std::uint32_t const edges = policy_.identify.edges(wave.state[item].places);
      if (edges != 0) count = edges;
    }
    candidate const* const list = wave.candidates + at(item, 0);
    for (std::uint32_t i = 0; i < count; ++i) {
      if (list[i].source == s) return list[i];
    }
    return {0, s, s};
  }
  /// KVMerger's sigma of the set that `pivot` takes in, from K as it lies (so before `apply`); 0 where nothing merges into it. Of
  /// merge::gaussian; needs no more than the plan.
  float planned_sigma(std::uint32_t item, slot_t pivot) const {
    static_assert(std::is_same_v<typename Policy::merge_type, merge::gaussian>,
                  "kvmeld: planned_sigma is for policies whose merge function is merge::gaussian");
    if (!refuse([&] { return unplanned("planned_sigma", item, pivot); }).ok()) return 0.0f;
    plan_ref const& plan = arrays_.workspace.plan;
    std::vector<slot_t> members;
    for (slot_t s = 0; s < plan.old_length[item]; ++s) {
      if (plan.target[plan.at(item, s)] == pivot &&
          (s == pivot || plan.what[plan.at(item, s)] == fate::merge))
        members.push_back(s);
    }
    if (members.size() < 2) return 0.0f;
    return policy_.merge.sigma_of(tensors_.keys, planned_work().at(sizes_.extent, item), pivot,
                                  {members.data(), members.size()});
  }

protected:
  using base::arrays_;
  using base::planned_;
  using base::policy_;
  using base::refuse;
  using base::sizes_;
  using base::tensors_;

  work_list plan_work(std::uint32_t const* list, std::size_t sequences) const {
    return {list, static_cast<std::uint32_t>(sequences),
            sizes_.scope == plan_scope::group || sizes_.budgets_over == split::group};
  }

private:
  /// Why the entry is in no plan that the host can read; empty if it is.
  std::string unplanned(char const* call, std::uint32_t item, slot_t s) const {
    if constexpr (!is_immediate<Executor>::value)
      return refusal(call, "the executor", "a device's", "one whose memory the host can read");
    if (planned_.empty()) return refusal(call, "the plan", "none", "one that plan made");
    std::uint32_t const tracks = planned_work().tracks(sizes_.extent);
    if (item >= tracks) return refusal(call, "item", item, "less than ", tracks, ", the planned tracks");
    std::uint32_t const length = arrays_.workspace.plan.old_length[item];
    if (s < length) return {};
    return refusal(call, "s", s, "less than ", length, ", the entries of item ", item);
  }
  /// The same of what the wave that made the plan knew.
  std::string unknown(char const* call, std::uint32_t item, slot_t s) const {
    if (std::string text = unplanned(call, item, s); !text.empty()) return text;
    std::uint32_t const tracks = planned_work().tracks(sizes_.extent);
    if (tracks > sizes_.wave_tracks) {
      return refusal(call, "limits.wave_tracks", sizes_.wave_tracks, "at least ", tracks,
                     ", the planned tracks, so that one wave holds what all of them were planned from");
    }
    track_state const& state = arrays_.workspace.wave.state[item];
    if (state.length > state.limit) return {};
    return refusal(call, "item", item, "a track above its budget, because others take no part");
  }
  /// Index into a wave's arrays of entries.
  std::size_t at(std::uint32_t item, slot_t s) const {
    return std::size_t{item} * sizes_.extent.capacity + s;
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
