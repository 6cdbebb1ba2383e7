// SPDX-License-Identifier: Apache-2.0
// The operation that adds pending entries to a sequence.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/sequences/checks.hpp>
#include <kvmeld/sequences/operation.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace sequences {

/// Adds `n` pending entries behind the last slot. Their positions continue from the tokens seen and pending.
struct append : operation {
  static constexpr char const* name = "append";
  static constexpr bool writes_few = true;
  static constexpr bool outdates_plan = false;  // `apply` finds out that the track has grown

  std::string problem(ledger_ref const& l, index_list sequences, index_list counts) const {
    if (std::string text = check_calls::one_count_each(name, sequences, counts); !text.empty()) return text;
    if (std::string text = check_calls::is_open(name, l, sequences); !text.empty()) return text;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      std::uint64_t const tokens = std::uint64_t{l.seen[sequences[i]]} + l.pending[sequences[i]];
      if (counts[i] <= l.extent.capacity - l.longest(sequences[i]) && counts[i] + tokens <= largest::tokens)
        continue;
      std::string const argument = message("counts[", i, "]");
      std::string text = check_calls::first_track_problem(l, sequences[i], [&](track t) -> std::string {
        std::uint32_t const room = room_in(l, t);
        if (counts[i] <= room) return {};
        return refusal(name, argument, counts[i], "at most ", room, ", the free entries of ",
                       check_calls::track_name(t), ", which holds ", l.length[t.index], " of ",
                       l.extent.capacity);
      });
      return text.empty() ? check_calls::tokens_fit(name, argument, counts[i], tokens) : text;
    }
    return {};
  }

  std::uint32_t entries(ledger_ref const&, std::uint32_t, std::uint32_t n) const { return n; }
  template <class Team>
  KVMELD_HD void on_entries(Team const& team, ledger_ref const& l, track t, std::uint32_t n) const {
    std::uint32_t const length = l.length[t.index], next = l.tokens(t.sequence);
    team.for_each(min_of(n, room_in(l, t)), [&](std::uint32_t i) {
      detail::new_entry(l, t, length + i, static_cast<position_t>(next + i));
    });
  }
  /// If the host cannot read lengths, `n` may exceed the room. Entries beyond the capacity are dropped, and
  /// warning::overfull says so.
  KVMELD_HD void on_track(ledger_ref const& l, track t, std::uint32_t n) const {
    std::uint32_t const room = room_in(l, t);
    l.length[t.index] += min_of(n, room);
    if (n > room) l.warnings[t.index] |= warning::overfull;
  }
  KVMELD_HD void on_sequence(ledger_ref const& l, std::uint32_t sequence, std::uint32_t n) const {
    l.pending[sequence] += n;
  }

private:
  KVMELD_HD static std::uint32_t room_in(ledger_ref const& l, track t) {
    return l.extent.capacity - l.length[t.index];
  }
};

}  // namespace sequences

/// For the engine's kernels, or its own code on the host: what `append` does to one sequence. The engine
/// calls it once for every sequence that it gave to `append(sequences, counts, in_kernel)`, in order with the
/// cache's other launches. `n` is the count that it gave. It may be less if the entries are committed by
/// commit_in_kernel or with a device_list. A `sequence` that is none of the cache, such as idle_sequence, is
/// skipped. Each of `lanes` threads calls it with its own `lane`, and barrier() waits for all of them:
/// `threadIdx.x, blockDim.x, [] { __syncthreads(); }`. Barrier at the end.
KVMELD_CALLS_ARGUMENTS
template <class Barrier>
KVMELD_HD void append_in_kernel(ledger_ref const& l, std::uint32_t sequence, std::uint32_t n,
                                std::uint32_t lane, std::uint32_t lanes, Barrier const& barrier) {
  detail::operate_in_kernel(sequences::append{}, l, sequence, n, lane, lanes, barrier);
}
}  // namespace KVMELD_ABI
}  // namespace kvmeld
