// SPDX-License-Identifier: Apache-2.0
// What a cache's ledger knows of one sequence, where the host can read and write it.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/workspace.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/save/one_sequence.hpp>
#include <kvmeld/sequences/copy_sequence.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// A ledger of one sequence on the host, if the cache's own cannot serve: because launches are not immediate,
/// or because its entries lie in pages. It has the number 0 in it. A kernel gathers the sequence; where the
/// host cannot read what kernels write, it does so in memory of the executor, from where one copy brings it
/// to the host; and back. Otherwise this is the cache's ledger itself.
template <class Executor> class sequence_ledger {
public:
  sequence_ledger(Executor& executor, ledger_ref const& of, std::uint32_t sequence)
      : executor_(executor), whole_(of), sequence_(sequence) {
    if constexpr (!immediate) {
      arena sizing;
      carve_one_sequence(sizing, whole_);
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
    if (!copies()) return;
    reserve();
    run({whole_, sequence_, gathered(), 0});
    if constexpr (!immediate) executor_.download(here_->data(), there_.data(), bytes_);
  }
  /// Room on the host for a sequence that store() takes to the cache's ledger.
  void reserve() {
    if (copies()) here_.emplace(whole_);
  }
  /// Takes the sequence to the cache's ledger. May wait.
  void store() {
    if (!copies()) return;
    if constexpr (!immediate) executor_.upload(there_.data(), here_->data(), bytes_);
    run({gathered(), 0, whole_, sequence_});
  }

  ledger_ref const& ledger() const { return copies() ? here_->ledger() : whole_; }
  std::uint32_t sequence() const { return copies() ? 0 : sequence_; }

private:
  static constexpr bool immediate = is_immediate<Executor>::value;

  bool copies() const { return !immediate || whole_.paged(); }
  ledger_ref gathered() const {
    if constexpr (immediate) return here_->ledger();
    arena a(there_.data(), bytes_);
    return carve_one_sequence(a, whole_);
  }
  void run(sequences::copy_sequence_phase const& phase) {
    executor_.run(phase, whole_.extent, phase.items(), phase);
  }

  Executor& executor_;
  ledger_ref whole_;
  std::uint32_t sequence_;
  typename Executor::memory there_;
  std::size_t bytes_ = 0;
  std::optional<one_sequence_ledger> here_;
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
