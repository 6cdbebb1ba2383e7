// SPDX-License-Identifier: Apache-2.0
// The operation that gives the entries of a sequence positions without gaps, as if nothing but them had been
// read.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/sequences/checks.hpp>
#include <kvmeld/sequences/operation.hpp>
#include <kvmeld/sequences/turn_keys.hpp>
#include <kvmeld/shared/checks.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace sequences {

/// By how much an entry's position changes: the newest entry of every track comes to position longest - 1,
/// the one before it to longest - 2, and so on.
struct renumber_step {
  std::uint32_t longest;  ///< slots in use of the longest track of the sequence
  KVMELD_HD position_t operator()(ledger_ref const& l, track t, slot_t s) const {
    return static_cast<position_t>(longest - l.length[t.index] + s) - l.position[l.at(t, s)];
  }
};

/// Follows turn_keys_phase, which runs if `rope` is active. Changes positions, the next position, and the
/// tokens that `truncate` can go back to. Rows that may not be written keep their keys and leave
/// warning::unrotated.
template <class Keys> struct renumber : operation {
  Keys keys;
  rope_params rope;
  std::uint32_t longest;
  std::uint32_t unmerged = 0;  ///< entries at the end of every track of tokens that `truncate` can tell apart

  static constexpr char const* name = "renumber";
  static constexpr effect leaves = effect::changed;
  static constexpr bool at_once = true;
  static constexpr bool has_counts = false;
  static constexpr bool recordable = false;

  /// `entries`: slots in use of the longest track.
  renumber(Keys const& k, rope_params const& r, std::uint32_t entries) : keys(k), rope(r), longest(entries) {}

  /// By how much an entry's position changes.
  KVMELD_HD renumber_step step() const { return {longest}; }

  /// Why the arguments or the sequence's own numbers refuse the call; empty if they do not. `readable`: the
  /// host can read rope's array.
  template <class Values>
  std::string problem(ledger_ref const& l, std::uint32_t sequence, bool readable) const {
    if (std::string text = turning_problem<Values>(name, l, sequence, rope, readable); !text.empty())
      return text;
    return detail::shares_problem(name, l, "members keep positions of their own");
  }

  /// Why the entries refuse the call; empty if they do not. The host can read `l`. `rows` is the layout of
  /// the keys, or a stand-in if the host cannot read it.
  template <class Rows>
  std::string entries_problem(ledger_ref const& l, std::uint32_t sequence, Rows const& rows) const {
    return check_calls::first_track_problem(l, sequence, [&](track t) -> std::string {
      if (l.word(t, track_word::empty) != 0) {
        return refusal(name, message("number of empty slots of ", check_calls::track_name(t)),
                       l.word(t, track_word::empty),
                       "0, because they would be gaps (compress all heads to one length first)");
      }
      std::uint32_t const n = rope.active() ? l.length[t.index] : l.shared_length(t);
      for (slot_t s = 0; s < n; ++s) {
        if (step()(l, t, s) == 0) continue;
        if (std::string text = slot_problem(name, l, t, s, rows, " (or renumber without rotation)");
            !text.empty())
          return text;
      }
      return {};
    });
  }

  /// Sets `longest` and `unmerged` for a sequence of a ledger that the host can read: the entries at the end
  /// of all tracks that came after the last compression and have the same positions everywhere.
  void count(ledger_ref const& l, std::uint32_t sequence) {
    std::uint32_t const tracks = l.extent.layers * l.extent.kv_heads;
    auto const at = [&](std::uint32_t i) { return detail::track_of_sequence(l.extent, sequence, i); };
    longest = l.longest(sequence);
    track const one = at(0);
    slot_t const since = l.first_slot_from(one, l.sequence_state(sequence, sequence_word::compressed_at));
    unmerged = l.length[one.index] - since;
    for (std::uint32_t i = 1; i < tracks; ++i) {
      track const t = at(i);
      std::uint32_t same = 0;
      auto const from_end = [&](track x) { return l.position[l.at(x, l.length[x.index] - 1 - same)]; };
      while (same < min_of(unmerged, l.length[t.index]) && from_end(t) == from_end(one)) ++same;
      unmerged = same;
    }
  }

  template <class Team>
  KVMELD_HD void on_entries(Team const& team, ledger_ref const& l, track t, std::uint32_t) const {
    change_positions(team, l, t, keys, rope, step());
  }
  /// Tokens that came after the last compression keep an entry each, so `truncate` can still forget them.
  /// Gaps between them close.
  KVMELD_HD void on_sequence(ledger_ref const& l, std::uint32_t sequence, std::uint32_t) const {
    l.sequence_state(sequence, sequence_word::compressed_at) = longest - min_of(longest, unmerged);
    l.sequence_state(sequence, sequence_word::gap_end) = 0;
    l.seen[sequence] = longest;
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
