// The operation that shifts a context: positions change by an offset, and rotated keys turn with them.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/latent.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/sequences/checks.hpp>
#include <kvmeld/sequences/operation.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace sequences {

/// A number of tokens after a shift of the positions from `first` on: the tokens seen, or the fewest that
/// `truncate` can go back to.
KVMELD_HD inline std::uint32_t shifted_tokens(std::uint32_t tokens, position_t offset, position_t first) {
  std::int64_t const moved = max_of(std::int64_t{tokens}, std::int64_t{first}) + offset;
  return moved < 0 ? 0 : static_cast<std::uint32_t>(moved);
}

/// Rotates the keys of entries at positions from `first` on by `offset` positions. This is exact for merged
/// entries too, because rotations are linear. Leaves empty slots and rows that may not be written.
template <class Keys> struct turn_keys_phase {
  static constexpr std::uint32_t block = 16;  ///< rows per tile
  Keys keys;
  ledger_ref ledger;
  rope_params rope;
  position_t offset, first;

  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, block); }
  std::size_t scratch_bytes(int) const {
    return scratch_size(std::size_t{block} * keys.channels() * sizeof(float)) +
           scratch_size(block * sizeof(position_t)) + rope_scratch(rope, keys.channels());
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = ledger.length[t.where.index], begin = t.index * block;
    if (begin >= n) return;
    std::uint32_t const rows = min_of(block, n - begin), d = keys.channels();
    float* const k = team.template scratch<float>(std::size_t{block} * d);
    position_t* const by = team.template scratch<position_t>(block);
    double const* const turns = rope_table(team, rope, d);
    keys.load_tile(team, t.where, begin, rows, 0, d, k, d);
    team.for_each(rows, [&](std::uint32_t i) { by[i] = offset; });
    rotate_tile(team, rope, turns, k, rows, d, begin, by);
    for (std::uint32_t i = 0; i < rows; ++i) {
      std::size_t const e = ledger.at(t.where, begin + i);
      if (ledger.position[e] < first || !(ledger.degree[e] > 0.0f)) continue;
      if (!keys.writable(t.where, begin + i)) continue;
      keys.encode_row(team, t.where, begin + i, [&](std::uint32_t c) { return k[std::size_t{i} * d + c]; });
    }
  }
};

/// Follows turn_keys_phase, which runs if `rope` is active. Changes positions of entries and members, the
/// next position, and the tokens that `truncate` can go back to. Rows that may not be written keep their keys
/// and leave warning::unrotated.
template <class Keys> struct shift : operation {
  Keys keys;
  rope_params rope;
  position_t offset, first;

  static constexpr char const* name = "shift";
  static constexpr effect leaves = effect::changed;
  static constexpr bool at_once = true;
  static constexpr bool has_counts = false;
  static constexpr bool recordable = false;

  shift(Keys const& k, rope_params const& r, position_t by, position_t from)
      : keys(k), rope(r), offset(by), first(from) {}

  /// Why the arguments or the sequence's own numbers refuse the call; empty if they do not. `readable`: the
  /// host can read rope's array.
  template <class Values>
  std::string problem(ledger_ref const& l, std::uint32_t sequence, bool readable) const {
    if (std::string text = check_calls::is_open(name, l, {sequence}); !text.empty()) return text;
    if (std::string text = check_calls::nothing_pending(name, l, sequence); !text.empty()) return text;
    if (std::string text = detail::rope_problem(name, rope, l.extent.key_dim, readable); !text.empty())
      return text;
    if (rope.active() && rope.positions != rope_positions::stored) {
      return refusal(
          name, "rope.positions", "rope_positions::slot",
          "rope_positions::stored, because keys that turn lie rotated for the positions stored with them");
    }
    if (rope.active() && rope.map != nullptr) {
      return refusal(name, "rope.map", "given",
                     "null, because keys that turn lie rotated for the positions stored with them");
    }
    if (rope.active() && detail::reads_keys<Values>::value) {
      return refusal(
          name, "rope.pairing", "a rotation",
          "rope_pairing::none, because values are channels of the keys (latent) and would turn too");
    }
    if (first < 0 || std::int64_t{first} > std::int64_t{l.seen[sequence]}) {
      return refusal(name, "first", first, "0 to ", l.seen[sequence], ", the tokens seen");
    }
    if (offset <= 0) return {};
    return check_calls::tokens_fit(name, "offset", static_cast<std::uint32_t>(offset), l.seen[sequence]);
  }

  /// Why the entries refuse the call; empty if they do not. The host can read `l`. `rows` is the layout of
  /// the keys, or a stand-in if the host cannot read it.
  template <class Rows>
  std::string entries_problem(ledger_ref const& l, std::uint32_t sequence, Rows const& rows) const {
    return check_calls::first_track_problem(l, sequence, [&](track t) -> std::string {
      std::int64_t staying = -1, lowest = l.seen[sequence];
      for (slot_t s = 0; s < l.length[t.index]; ++s) {
        if (!(l.degree[l.at(t, s)] > 0.0f)) continue;
        position_t const position = l.position[l.at(t, s)];
        if (position < first) {
          staying = max_of(staying, std::int64_t{position});
          continue;
        }
        lowest = min_of(lowest, std::int64_t{position});
        if (!rope.active() || (s >= l.frozen[sequence] && rows.writable(t, s))) continue;
        return refusal(name, message("slot ", s, " of ", check_calls::track_name(t)),
                       s < l.frozen[sequence] ? "frozen" : "not writable",
                       "writable, because its key turns (or shift later positions, or without rotation)");
      }
      std::uint32_t const members = l.members.capacity == 0 ? 0 : l.members.count[t.index];
      for (std::uint32_t m = 0; m < members; ++m) {
        position_t const position = l.members.position[l.member_at(t, m)];
        slot_t const owner = l.members.owner[l.member_at(t, m)];
        if (position >= first) lowest = min_of(lowest, std::int64_t{position});
        if (!rope.active() || (position < first) == (l.position[l.at(t, owner)] < first)) continue;
        return refusal(name, "first", first, "0, because slot ", owner, " of ", check_calls::track_name(t),
                       " is shared by tokens on both sides of it (or shift without rotation)");
      }
      if (lowest + offset > staying) return {};
      return refusal(name, "offset", offset, "at least ", staying + 1 - lowest, ", because ",
                     check_calls::track_name(t), " holds position ", lowest,
                     first == 0 ? "" : message(" and keeps ", staying));
    });
  }

  template <class Team>
  KVMELD_HD void on_entries(Team const& team, ledger_ref const& l, track t, std::uint32_t) const {
    std::uint32_t left = 0;
    team.for_each(l.length[t.index], [&](std::uint32_t s) {
      std::size_t const e = l.at(t, s);
      if (l.position[e] < first) return;
      l.position[e] += offset;
      if (!rope.active()) return;
      l.flags[e] = static_cast<std::uint8_t>(l.flags[e] & ~entry_flag::key_checked);
      left |= l.degree[e] > 0.0f && !keys.writable(t, s) ? 1u : 0u;
    });
    left = team.reduce(left, op_max{});
    if (left != 0 && team.lane() == 0) l.warnings[t.index] |= warning::unrotated;
    if (l.members.capacity == 0) return;
    team.for_each(l.members.count[t.index], [&](std::uint32_t m) {
      position_t& position = l.members.position[l.member_at(t, m)];
      if (position >= first) position += offset;
    });
  }
  KVMELD_HD void on_sequence(ledger_ref const& l, std::uint32_t sequence, std::uint32_t) const {
    std::uint32_t& merged = l.sequence_state(sequence, sequence_word::compressed_at);
    l.seen[sequence] = shifted_tokens(l.seen[sequence], offset, first);
    merged = shifted_tokens(merged, offset, first);
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
