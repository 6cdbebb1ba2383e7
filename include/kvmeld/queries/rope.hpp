// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding of keys that lie unrotated in the cache (RoFormer, Su et al. 2021,
// section 3.4.2).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/turned_rows.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Which channels rotate together. Of d rotated channels, pair i is (i, i + d/2) for half_split, and
/// (2i, 2i + 1) for interleaved.
enum class rope_pairing : std::uint8_t { none, half_split, interleaved };

/// What a key is rotated for: the position stored with its entry, or its slot. Slots are positions within the
/// cache, as in StreamingLLM, section 3.2. Where heads differ in length, every head counts its own slots.
enum class rope_positions : std::uint8_t { stored, slot };

/// How keys of an unrotated cache are rotated when they are read. Pair i of a key at position p is rotated by
/// p * frequencies[i], or without a table by p / factor * base^(-2i / d). The engine rotates queries itself.
/// `map` makes p any function of the position stored with a token, or of its slot (EMS, section 4.2, does not
/// fix that function).
struct rope_params {
  rope_pairing pairing = rope_pairing::none;          ///< none: keys are used as they lie
  rope_positions positions = rope_positions::stored;  ///< what a key is rotated for
  std::uint32_t rotary_dim = 0;                       ///< channels from the first on that are rotated; 0: all
  double base = 10000.0;                              ///< theta
  double factor = 1.0;                                ///< linear scaling: positions are divided by it
  float const* frequencies =
      nullptr;  ///< [rotary_dim / 2] radians per position instead of base and factor, or null
  /// [mapped] or null: a key at position p (a stored position or a slot, see `positions`) is rotated for
  /// map[p]. Beyond the end of the table, positions increase one by one, so that a table of one number is an
  /// offset. A negative p is not mapped. The table lies in memory that phases can read. It applies to entries
  /// and to members of shared entries. It changes neither windows, which use stored positions, nor causality.
  position_t const* map = nullptr;
  std::uint32_t mapped = 0;  ///< positions in the table

  /// The position that the key of a token in `slot` is rotated for. `stored` is the position stored with it.
  KVMELD_HD position_t turned_for(slot_t slot, position_t stored) const {
    position_t const p = positions == rope_positions::slot ? static_cast<position_t>(slot) : stored;
    if (map == nullptr || p < 0) return p;
    auto const last = static_cast<position_t>(mapped - 1);
    return p <= last ? map[p] : map[last] + (p - last);
  }
  /// Whether keys are rotated when they are read.
  KVMELD_HD bool active() const { return pairing != rope_pairing::none; }
  /// Number of pairs that are rotated in a key of `key_dim` channels.
  KVMELD_HD std::uint32_t pairs(std::uint32_t key_dim) const {
    return active() ? (rotary_dim == 0 ? key_dim : rotary_dim) / 2 : 0;
  }
};

namespace detail {

/// Why keys of `key_dim` channels cannot be rotated with these parameters; empty if they can. `readable`: the
/// host can read `frequencies`, and checks them.
inline std::string rope_problem(char const* call, rope_params const& r, std::uint32_t key_dim,
                                bool readable) {
  if (!r.active()) return {};
  if (r.rotary_dim > key_dim || r.rotary_dim % 2 != 0) {
    return refusal(call, "rope.rotary_dim", r.rotary_dim, "0, which means all, or an even number of at most ",
                   key_dim, ", the key_dim");
  }
  if (r.rotary_dim == 0 && key_dim % 2 != 0) {
    return refusal(call, "rope.rotary_dim", 0, "an even number below ", key_dim,
                   ", the key_dim, because that is odd");
  }
  constexpr double most = 1e30;  // also detects an infinity under -ffast-math
  if ((r.map == nullptr) != (r.mapped == 0) || r.mapped > 0x7fffffffu) {
    return refusal(call, "rope.mapped", r.mapped,
                   r.map == nullptr ? "0, because rope.map is null"
                                    : "1 to 2147483647, the positions of rope.map");
  }
  if (r.frequencies == nullptr && !(r.base > 0.0 && r.base < most)) {
    return refusal(call, "rope.base", r.base, "above 0 and below 10^30");
  }
  if (r.frequencies == nullptr && !(r.factor > 0.0 && r.factor < most)) {
    return refusal(call, "rope.factor", r.factor, "above 0 and below 10^30");
  }
  for (std::uint32_t i = 0; readable && r.frequencies != nullptr && i < r.pairs(key_dim); ++i) {
    if (is_finite(r.frequencies[i])) continue;
    return refusal(call, message("rope.frequencies[", i, "]"), r.frequencies[i], "a finite number");
  }
  return {};
}

/// Why the part `part`, such as score::learned, cannot take these parameters; empty if it can.
/// `keys_rotated`: keys lie rotated. `future`: a score that turns queries for future positions, and can take
/// keys that lie unrotated.
inline std::string part_rope_problem(std::string const& part, rope_params const& r, bool future,
                                     bool keys_rotated) {
  if (future && (r.map != nullptr || r.mapped != 0)) {
    return refusal("policy", part + ".rope.map", "given",
                   "null, because future positions follow one another");
  }
  if (keys_rotated && r.active() && r.positions == rope_positions::slot) {
    return refusal("policy", part + ".rope.positions", "rope_positions::slot",
                   "rope_positions::stored, because keys that lie rotated do not turn when slots change",
                   future ? " (or set keys_rotated = false)" : "");
  }
  return {};
}

}  // namespace detail

/// Rotation of pair i per position, in turns (of 2 pi), in double. A tile keeps these numbers in scratch.
KVMELD_HD inline double rope_turns(rope_params const& r, std::uint32_t i, std::uint32_t key_dim) {
  constexpr double per_turn = 0.15915494309189533577;  // 1 / (2 pi)
  if (r.frequencies != nullptr) return static_cast<double>(r.frequencies[i]) * per_turn;
  double const exponent = static_cast<double>(i) / static_cast<double>(r.pairs(key_dim));
  return std::pow(r.base, -exponent) / r.factor * per_turn;
}

/// Rotates pair i of a row by an angle of the given cosine and sine.
KVMELD_HD inline void rotate_pair(rope_params const& r, float* row, std::uint32_t i, std::uint32_t pairs,
                                  float c, float s) {
  float& a = row[r.pairing == rope_pairing::half_split ? i : 2 * i];
  float& b = row[r.pairing == rope_pairing::half_split ? i + pairs : 2 * i + 1];
  float const x = a;
  a = x * c - b * s;
  b = x * s + b * c;
}

/// Rotates pair i of a row by position * turns. Angles are reduced in double, sines and cosines are computed
/// in float. Each factor lies within 3e-7 of the exact one for positions up to 2^20 in magnitude. The same
/// libm gives the same bits.
KVMELD_HD inline void rotate_pair(rope_params const& r, float* row, std::uint32_t i, std::uint32_t pairs,
                                  double turns, position_t position) {
  double const whole = static_cast<double>(position) * turns;
  float const angle = static_cast<float>((whole - std::floor(whole + 0.5)) * 6.28318530717958647693);
  rotate_pair(r, row, i, pairs, std::cos(angle), std::sin(angle));
}

/// Rotates one row of `dim` channels in place. Gives the same bits as rotate_tile. For single rows, such as
/// queries and rows in tests.
KVMELD_HD inline void rotate_row(rope_params const& r, position_t position, float* row, std::uint32_t dim) {
  std::uint32_t const pairs = r.pairs(dim);
  for (std::uint32_t i = 0; i < pairs; ++i) rotate_pair(r, row, i, pairs, rope_turns(r, i, dim), position);
}

/// Rotates rows[count][dim] in place, row i by the position at(i) (turn_rows). The factors differ from those
/// of rotate_pair in their last bits. `turns` is the table of rope_table. Collective; begins and ends with a
/// barrier. Does nothing without rope.
template <class Team, class At>
KVMELD_HD void rotate_rows(Team const& team, rope_params const& r, double const* turns, float* rows,
                           std::uint32_t count, std::uint32_t dim, At at) {
  std::uint32_t const pairs = r.pairs(dim);
  if (pairs == 0) return;
  team.sync();
  turn_rows(team, turns, pairs, r.pairing == rope_pairing::half_split ? pairs : 1, rows, count, dim, at);
  team.sync();
}

/// Bytes of the table that rope_table takes from a team's scratch.
KVMELD_HD inline std::size_t rope_scratch(rope_params const& r, std::uint32_t key_dim) {
  return r.active() ? scratch_size(r.pairs(key_dim) * sizeof(double)) : 0;
}

/// The table that rotate_tile needs, in scratch of each block; null without rope. Collective; a barrier has
/// to follow.
template <class Team>
KVMELD_HD double const* rope_table(Team const& team, rope_params const& r, std::uint32_t key_dim) {
  if (!r.active()) return nullptr;
  double* const turns = block_scratch<double>(team, r.pairs(key_dim));
  block_of(team).for_each(r.pairs(key_dim), [&](std::uint32_t i) { turns[i] = rope_turns(r, i, key_dim); });
  return turns;
}

/// Rotates rows[tokens][key_dim], which hold the keys of the slots from `first` on. positions[i] is the
/// position stored with row i. Collective; begins and ends with a barrier. Does nothing without rope.
template <class Team, class Positions>
KVMELD_HD void rotate_tile(Team const& team, rope_params const& r, double const* turns, float* rows,
                           std::uint32_t tokens, std::uint32_t key_dim, slot_t first,
                           Positions const& positions) {
  std::uint32_t const pairs = r.pairs(key_dim);
  if (pairs == 0) return;
  team.sync();
  team.for_each(tokens * pairs, [&](std::uint32_t n) {
    std::uint32_t const t = n / pairs;
    std::uint32_t const i = n % pairs;
    rotate_pair(r, rows + std::size_t{t} * key_dim, i, pairs, turns[i],
                r.turned_for(first + t, positions[t]));
  });
  team.sync();
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
