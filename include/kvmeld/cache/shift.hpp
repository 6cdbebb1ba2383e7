// A context is shifted: positions change by one offset, and keys that lie rotated turn with them.
#pragma once

#include <kvmeld/cache/sequences.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/rope.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Tokens that a sequence could not be truncated below, after a shift of those from position `first` on.
KVMELD_HD inline std::uint32_t shifted_tokens(std::uint32_t tokens, position_t offset, position_t first) {
  std::int64_t const moved = max_of(std::int64_t{tokens}, std::int64_t{first}) + offset;
  return moved < 0 ? 0 : static_cast<std::uint32_t>(moved);
}

/// Turns the keys of entries stored from position `first` on by `offset` positions: exact for merged ones too, since
/// rotations are linear. Empty slots stay, and rows that may not be written.
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

/// Follows turn_keys_phase: positions of entries and members. `turned`: keys are new rows, but for those that may not be
/// written, which leave finding::unrotated.
template <class Keys> struct shift_phase : sequence_phase {
  Keys keys;
  position_t offset, first;
  bool turned;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = ledger;
    std::uint32_t left = 0;
    team.for_each(l.length[t.where.index], [&](std::uint32_t s) {
      std::size_t const e = l.at(t.where, s);
      if (l.position[e] < first) return;
      l.position[e] += offset;
      if (!turned) return;
      l.flags[e] = static_cast<std::uint8_t>(l.flags[e] & ~entry_flag::key_checked);
      left |= l.degree[e] > 0.0f && !keys.writable(t.where, s) ? 1u : 0u;
    });
    left = team.reduce(left, op_max{});
    if (left != 0 && team.lane() == 0) l.findings[t.where.index] |= finding::unrotated;
    if (l.members.capacity == 0) return;
    team.for_each(l.members.count[t.where.index], [&](std::uint32_t m) {
      position_t& position = l.members.position[l.member_at(t.where, m)];
      if (position >= first) position += offset;
    });
  }
};

/// Follows shift_phase: the next position, and what later tokens can be truncated to.
struct shift_settle_phase : sequence_phase {
  position_t offset, first;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t) || team.lane() != 0) return;
    std::uint32_t& seen = ledger.seen[t.where.sequence];
    std::uint32_t& merged = ledger.sequence_state(t.where.sequence, sequence_word::compressed_at);
    seen = shifted_tokens(seen, offset, first);
    merged = shifted_tokens(merged, offset, first);
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
