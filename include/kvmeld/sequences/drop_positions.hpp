// SPDX-License-Identifier: Apache-2.0
// The operation that drops the entries of a range of positions.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/sequences/checks.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace sequences {

/// The positions from `first` up to `last`, `last` excluded. The checks of a call that drops their entries.
struct position_range {
  position_t first, last;

  static constexpr char const* name = "drop_positions";

  KVMELD_HD bool holds(position_t p) const { return p >= first && p < last; }

  /// Why the arguments or the sequence's own numbers refuse the call; empty if they do not.
  std::string problem(ledger_ref const& l, std::uint32_t sequence) const {
    if (std::string text = check_calls::is_open(name, l, {sequence}); !text.empty()) return text;
    if (std::string text = check_calls::nothing_pending(name, l, sequence); !text.empty()) return text;
    std::uint32_t const seen = l.seen[sequence];
    if (last < 0 || std::int64_t{last} > std::int64_t{seen})
      return refusal(name, "last", last, "0 to ", seen, ", the tokens seen");
    if (first >= 0 && first <= last) return {};
    return refusal(name, "first", first, "0 to last, which is ", last);
  }

  /// Why the entries refuse the call; empty if they do not. The host can read `l`. `shielded(track)`: length
  /// of the beginning that is frozen or that a layout refuses to write.
  template <class Shielded>
  std::string entries_problem(ledger_ref const& l, std::uint32_t sequence, Shielded shielded) const {
    return check_calls::first_track_problem(l, sequence, [&](track t) -> std::string {
      std::uint32_t const n = shielded(t);
      for (slot_t s = l.first_slot_from(t, first); s < n && holds(l.position[l.at(t, s)]); ++s) {
        if (!(l.degree[l.at(t, s)] > 0.0f)) continue;
        bool const frozen = s < l.frozen[sequence];
        return refusal(name, message("slot ", frozen ? s : n - 1, " of ", check_calls::track_name(t)),
                       frozen ? "frozen" : "not writable", "writable, because ",
                       frozen || s == n - 1 ? "it" : "an entry before it", " holds position ",
                       l.position[l.at(t, s)], ", which goes");
      }
      return {};
    });
  }

  /// How many entries surely go in every track: those of tokens that have an entry each.
  std::uint32_t sure(ledger_ref const& facts, std::uint32_t sequence) const {
    std::int64_t const from = max_of(std::int64_t{first}, std::int64_t{facts.one_entry_each_from(sequence)});
    return from < last ? static_cast<std::uint32_t>(last - from) : 0;
  }
  /// Whether these are all.
  bool is_exact(ledger_ref const& facts, std::uint32_t sequence) const {
    return std::int64_t{first} >= std::int64_t{facts.one_entry_each_from(sequence)};
  }
};

/// Marks the entries of the range, and the empty slots of padded tracks. What may not be written stays:
/// entries of the range then leave warning::undropped. Tracks that share a plan keep the same entries.
struct mark_positions_phase : detail::track_phase {
  position_range range;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = wave.ledger;
    fate* const what = wave.plan.fates + wave.plan.at(t.item, 0);
    std::uint32_t const leader = t.item - t.item % wave.scope;
    std::uint32_t shielded = 0;
    for (std::uint32_t m = 0; m < wave.scope; ++m)
      shielded = max_of(shielded, wave.state[leader + m].shielded);
    bool const padded = l.word(t.where, track_word::empty) != 0;
    std::uint32_t empty = 0, undropped = 0;
    team.for_each(wave.state[t.item].length, [&](std::uint32_t s) {
      std::size_t const e = l.at(t.where, s);
      bool const is_empty = padded && !(l.degree[e] > 0.0f);
      if (!is_empty && !range.holds(l.position[e])) return;
      if (s >= shielded) {
        what[s] = fate::drop;
      } else {
        ++(is_empty ? empty : undropped);
      }
    });
    empty = team.reduce(empty, op_sum{});
    undropped = team.reduce(undropped, op_sum{});
    if (team.lane() != 0) return;
    if (undropped != 0) l.warnings[t.where.index] |= warning::undropped;
    if (!padded) return;
    l.word(t.where, track_word::empty) = empty;
    if (empty == 0) l.word(t.where, track_word::padded_from) = 0;
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
