// What a cache's ledger knows of one sequence, where the host can read and write it.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/workspace.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/sequences/copy_sequence.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// The ledger itself, or if launches are not immediate a ledger of this sequence alone, with the number 0. A
/// kernel gathers it in memory of the executor, from where one copy brings it to the host; and back.
template <class Executor> class sequence_ledger {
public:
  sequence_ledger(Executor& executor, ledger_ref const& of, std::uint32_t sequence)
      : executor_(executor), whole_(of), sequence_(sequence), own_(of) {
    if constexpr (!immediate) {
      arena sizing;
      carve(sizing);
      bytes_ = sizing.bytes();
      there_ = executor_.allocate(bytes_);
    }
  }

  /// Why there is no memory for the copy, in the name of `call`; empty if there is.
  std::string problem(char const* call) const {
    if constexpr (!immediate) {
      if (there_.data() == nullptr)
        return refusal(call, "memory for the sequence in bytes", bytes_, memory_to_be_had);
    }
    return {};
  }
  /// Brings the sequence to the host. Waits.
  void load() {
    if constexpr (!immediate) {
      arena far(there_.data(), bytes_);
      run({whole_, sequence_, carve(far), 0});
      reserve();
      executor_.download(aligned(), there_.data(), bytes_);
    }
  }
  /// Room on the host for a sequence that store() takes to the cache's ledger.
  void reserve() {
    if constexpr (!immediate) {
      here_.resize(bytes_ + arena::alignment);
      arena near(aligned(), bytes_);
      own_ = carve(near);
    }
  }
  /// Takes the sequence to the cache's ledger. May wait.
  void store() {
    if constexpr (!immediate) {
      executor_.upload(there_.data(), aligned(), bytes_);
      arena far(there_.data(), bytes_);
      run({carve(far), 0, whole_, sequence_});
    }
  }

  ledger_ref const& ledger() const { return own_; }
  std::uint32_t sequence() const { return immediate ? sequence_ : 0; }

private:
  static constexpr bool immediate = is_immediate<Executor>::value;

  ledger_ref carve(arena& a) const {
    shape one = whole_.extent;
    one.sequences = 1;
    ledger_ref out = carve_ledger(a, one, whole_.channels, whole_.members.capacity, whole_.table_floats);
    out.first_layer = whole_.first_layer;
    out.first_kv_head = whole_.first_kv_head;
    out.ignore_degree = whole_.ignore_degree;
    out.padded = whole_.padded;
    return out;
  }
  void run(sequences::copy_sequence_phase const& phase) {
    executor_.run(phase, whole_.extent, phase.items(), phase);
  }
  std::byte* aligned() {
    auto const address = reinterpret_cast<std::uintptr_t>(here_.data());
    return here_.data() + (arena::alignment - address % arena::alignment);
  }

  Executor& executor_;
  ledger_ref whole_;
  std::uint32_t sequence_;
  typename Executor::memory there_;
  std::size_t bytes_ = 0;
  std::vector<std::byte> here_;
  ledger_ref own_;
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
