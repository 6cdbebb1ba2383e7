// SPDX-License-Identifier: Apache-2.0
// The operation that begins a sequence.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/sequences/checks.hpp>
#include <kvmeld/sequences/operation.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace sequences {

/// Begins a sequence whose first `n` tokens lie in K and V already. They get positions 0 .. n - 1 and degree
/// 1. All other numbers of the sequence and its tracks are reset.
struct open : operation {
  std::uint32_t frozen;  ///< number of first entries that are never written or moved
  std::uint32_t id;      ///< key of random draws

  static constexpr char const* name = "open";
  static constexpr effect leaves = effect::begun;
  static constexpr bool at_once = true;
  static constexpr bool recordable = false;

  open(std::uint32_t frozen_entries, std::uint32_t sequence_id) : frozen(frozen_entries), id(sequence_id) {}

  std::string problem(ledger_ref const& l, index_list sequences, index_list cached) const {
    if (std::string text = check_calls::is_closed(name, l, sequences[0]); !text.empty()) return text;
    if (cached[0] > l.extent.capacity) {
      return refusal(name, "tokens_cached", cached[0], "at most ", l.extent.capacity, ", the capacity");
    }
    if (frozen <= cached[0]) return {};
    return refusal(name, "frozen", frozen, "at most ", cached[0], ", the tokens_cached");
  }

  template <class Team>
  KVMELD_HD void on_entries(Team const& team, ledger_ref const& l, track t, std::uint32_t n) const {
    team.for_each(n, [&](std::uint32_t s) { detail::new_entry(l, t, s, static_cast<position_t>(s)); });
    detail::clear_rest(team, l, t);
  }
  KVMELD_HD void on_track(ledger_ref const& l, track t, std::uint32_t n) const {
    l.length[t.index] = n;
    l.warnings[t.index] = 0;
    for (std::uint32_t w = 0; w < track_word::count; ++w) l.word(t, w) = 0;
  }
  KVMELD_HD void on_sequence(ledger_ref const& l, std::uint32_t sequence, std::uint32_t n) const {
    l.seen[sequence] = n;
    l.pending[sequence] = 0;
    l.frozen[sequence] = frozen;
    l.id[sequence] = id;
    l.is_open[sequence] = 1;
    for (std::uint32_t w = 0; w < sequence_word::count; ++w) l.sequence_state(sequence, w) = 0;
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
