// SPDX-License-Identifier: Apache-2.0
// The operation that shifts a context: positions change by an offset, and rotated keys turn with them.
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
#include <kvmeld/shared/move_members.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace sequences {

/// A number of tokens after a shift by `offset`.
KVMELD_HD inline std::uint32_t shifted_tokens(std::uint32_t tokens, position_t offset) {
  std::int64_t const moved = std::int64_t{tokens} + offset;
  return moved < 0 ? 0 : static_cast<std::uint32_t>(moved);
}

/// By how much a shift changes an entry's position.
struct shift_step {
  position_t offset, first;
  KVMELD_HD position_t operator()(ledger_ref const& l, track t, slot_t s) const {
    return l.position[l.at(t, s)] < first ? 0 : offset;
  }
};

/// Follows turn_keys_phase, which runs if `rope` is active. `offset` is not 0. Changes positions of entries
/// and members, the next position, and the tokens that `truncate` can go back to: `compressed_at` moves with
/// the tokens behind it, unless some of these stay. Then there is a gap. Rows that may not be written keep
/// their keys and leave warning::unrotated.
template <class Keys> struct shift : operation {
  Keys keys;
  rope_params rope;
  position_t offset, first;
  std::uint32_t behind_staying = 0;  ///< the position behind those that stay

  static constexpr char const* name = "shift";
  static constexpr effect leaves = effect::changed;
  static constexpr bool at_once = true;
  static constexpr bool has_counts = false;
  static constexpr bool recordable = false;

  shift(Keys const& k, rope_params const& r, position_t by, position_t from)
      : keys(k), rope(r), offset(by), first(from) {}

  /// By how much an entry's position changes.
  KVMELD_HD shift_step step() const { return {offset, first}; }

  /// Why the arguments or the sequence's own numbers refuse the call; empty if they do not. `readable`: the
  /// host can read rope's array.
  template <class Values>
  std::string problem(ledger_ref const& l, std::uint32_t sequence, bool readable) const {
    if (std::string text = turning_problem<Values>(name, l, sequence, rope, readable); !text.empty())
      return text;
    if (first < 0 || std::int64_t{first} > std::int64_t{l.seen[sequence]}) {
      return refusal(name, "first", first, "0 to ", l.seen[sequence], ", the tokens seen");
    }
    if (offset <= 0) return {};
    return check_calls::tokens_fit(name, "offset", static_cast<std::uint32_t>(offset), l.seen[sequence]);
  }

  /// Sets `behind_staying` for a sequence of a ledger that the host can read.
  void count(ledger_ref const& l, std::uint32_t sequence) {
    for (std::uint32_t i = 0; i < l.extent.layers * l.extent.kv_heads; ++i) {
      track const t = detail::track_of_sequence(l.extent, sequence, i);
      behind_staying = max_of(behind_staying, static_cast<std::uint32_t>(highest_staying(l, t) + 1));
    }
  }

  /// Why the entries refuse the call; empty if they do not. The host can read `l`. `rows` is the layout of
  /// the keys, or a stand-in if the host cannot read it.
  template <class Rows>
  std::string entries_problem(ledger_ref const& l, std::uint32_t sequence, Rows const& rows) const {
    return check_calls::first_track_problem(l, sequence, [&](track t) -> std::string {
      std::int64_t const staying = highest_staying(l, t);
      std::int64_t lowest = l.seen[sequence];
      for (slot_t s = 0; s < l.length[t.index]; ++s) {
        if (!(l.degree[l.at(t, s)] > 0.0f)) continue;
        position_t const position = l.position[l.at(t, s)];
        if (position < first) continue;
        lowest = min_of(lowest, std::int64_t{position});
        if (!rope.active() && !l.shared(t, s)) continue;
        if (std::string text =
                slot_problem(name, l, t, s, rows, " (or shift later positions, or without rotation)");
            !text.empty())
          return text;
      }
      l.members.for_each_position(t, [&](position_t position) {
        if (position >= first) lowest = min_of(lowest, std::int64_t{position});
      });
      if (rope.active()) {
        std::string text = detail::divided_slot_problem(name, l, t, first, check_calls::track_name(t));
        if (!text.empty()) return text;
      }
      if (lowest + offset > staying) return {};
      return refusal(name, "offset", offset, "at least ", staying + 1 - lowest, ", because ",
                     check_calls::track_name(t), " holds position ", lowest,
                     first == 0 ? "" : message(" and keeps ", staying));
    });
  }

  template <class Team>
  KVMELD_HD void on_entries(Team const& team, ledger_ref const& l, track t, std::uint32_t) const {
    change_positions(team, l, t, keys, rope, step());
    detail::shift_members(team, l, t, first, offset);
  }
  KVMELD_HD void on_sequence(ledger_ref const& l, std::uint32_t sequence, std::uint32_t) const {
    std::uint32_t const from = static_cast<std::uint32_t>(first);
    std::uint32_t& merged = l.sequence_state(sequence, sequence_word::compressed_at);
    std::uint32_t& gap_end = l.sequence_state(sequence, sequence_word::gap_end);
    if (merged < from) {  // some of the tokens that truncate can tell apart stay
      gap_end = shifted_tokens(max_of(gap_end, from), offset);
      merged = min_of(merged, max_of(shifted_tokens(from, offset), behind_staying));
    } else {
      gap_end = gap_end > merged ? shifted_tokens(gap_end, offset) : 0;
      merged = max_of(shifted_tokens(merged, offset), behind_staying);
    }
    l.seen[sequence] = shifted_tokens(l.seen[sequence], offset);
  }

private:
  /// The highest position that stays in a track, of an entry or of a member; -1 if there is none.
  std::int64_t highest_staying(ledger_ref const& l, track t) const {
    std::int64_t highest = -1;
    auto const look = [&](position_t position) {
      if (position < first) highest = max_of(highest, std::int64_t{position});
    };
    for (slot_t s = 0; s < l.length[t.index]; ++s) {
      if (l.degree[l.at(t, s)] > 0.0f) look(l.position[l.at(t, s)]);
    }
    l.members.for_each_position(t, look);
    return highest;
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
