// SPDX-License-Identifier: Apache-2.0
// Turns keys in place, for operations that change the positions of entries.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/latent.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/sequences/checks.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace sequences {

/// Turns the key of every entry by as many positions as the entry's position will change:
/// step(ledger, track, slot). This is exact for merged entries too, because rotations are linear. Leaves
/// empty slots and rows that may not be written. Runs before the operation changes the ledger.
template <class Keys, class Step> struct turn_keys_phase {
  static constexpr std::uint32_t block = 16;  ///< rows per tile
  Keys keys;
  ledger_ref ledger;
  rope_params rope;
  Step step;

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
    team.for_each(rows, [&](std::uint32_t i) { by[i] = step(ledger, t.where, begin + i); });
    rotate_tile(team, rope, turns, k, rows, d, begin, by);
    for (std::uint32_t i = 0; i < rows; ++i) {
      if (by[i] == 0 || !(ledger.degree[ledger.at(t.where, begin + i)] > 0.0f)) continue;
      if (!keys.writable(t.where, begin + i)) continue;
      keys.encode_row(team, t.where, begin + i, [&](std::uint32_t c) { return k[std::size_t{i} * d + c]; });
    }
  }
};

/// Adds step(ledger, track, slot) to the position of every entry of a track. Keys that turn are inspected
/// again. Rows that should have turned and may not be written leave warning::unrotated. Collective; no
/// barrier at the end.
template <class Team, class Keys, class Step>
KVMELD_HD void change_positions(Team const& team, ledger_ref const& l, track t, Keys const& keys,
                                rope_params const& rope, Step const& step) {
  std::uint32_t left = 0;
  team.for_each(l.length[t.index], [&](std::uint32_t s) {
    std::size_t const e = l.at(t, s);
    position_t const by = step(l, t, s);
    l.position[e] += by;
    if (!rope.active() || by == 0) return;
    l.flags[e] = static_cast<std::uint8_t>(l.flags[e] & ~entry_flag::key_checked);
    left |= l.degree[e] > 0.0f && !keys.writable(t, s) ? 1u : 0u;
  });
  left = team.reduce(left, op_max{});
  if (left != 0 && team.lane() == 0) l.warnings[t.index] |= warning::unrotated;
}

/// Why an operation cannot turn the keys of a sequence; empty if it can. `readable`: the host can read rope's
/// array.
template <class Values>
std::string turning_problem(char const* call, ledger_ref const& l, std::uint32_t sequence,
                            rope_params const& rope, bool readable) {
  if (std::string text = check_calls::is_open(call, l, {sequence}); !text.empty()) return text;
  if (std::string text = check_calls::nothing_pending(call, l, sequence); !text.empty()) return text;
  if (std::string text = detail::rope_problem(call, rope, l.extent.key_dim, readable); !text.empty())
    return text;
  if (!rope.active()) return {};
  if (rope.positions != rope_positions::stored) {
    return refusal(
        call, "rope.positions", "rope_positions::slot",
        "rope_positions::stored, because keys that turn lie rotated for the positions stored with them");
  }
  if (rope.map != nullptr) {
    return refusal(call, "rope.map", "given",
                   "null, because keys that turn lie rotated for the positions stored with them");
  }
  if (detail::reads_keys<Values>::value) {
    return refusal(call, "rope.pairing", "a rotation",
                   "rope_pairing::none, because values are channels of the keys (latent) and would turn too");
  }
  return {};
}

/// Why the key in slot `s` cannot turn; empty if it can. `how_else` ends the text. `rows` is the layout of
/// the keys, or a stand-in if the host cannot read it.
template <class Rows>
std::string slot_problem(char const* call, ledger_ref const& l, track t, slot_t s, Rows const& rows,
                         char const* how_else) {
  bool const frozen = s < l.frozen[t.sequence];
  if (!frozen && rows.writable(t, s)) return {};
  return refusal(call, message("slot ", s, " of ", check_calls::track_name(t)),
                 frozen ? "frozen" : "not writable", "writable, because its key turns", how_else);
}

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
