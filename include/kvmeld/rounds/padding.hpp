// SPDX-License-Identifier: Apache-2.0
// Tracks of a sequence that get one common length: empty slots fill the shorter ones up, and are removed
// again.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/sequences/operation.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Marks the empty slots. Those before rows that may not be written stay as they are.
struct drop_padding_phase : track_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = wave.ledger;
    track_state const s = wave.state[t.item];
    fate* const what = wave.plan.fates + wave.plan.at(t.item, 0);
    entry_array<float const> const degree{l.degree, l.from(t.where)};
    std::uint32_t left = 0;
    team.for_each(s.length, [&](std::uint32_t i) {
      bool const empty = s.over_budget != 0 && !(degree[i] > 0.0f);
      if (empty && i >= s.shielded) what[i] = fate::drop;
      if (empty && i < s.shielded) ++left;
    });
    left = team.reduce(left, op_sum{});
    if (team.lane() != 0 || s.over_budget == 0) return;
    l.word(t.where, track_word::empty) = left;
    if (left == 0) l.word(t.where, track_word::padded_from) = 0;
  }
};

/// Zeroes the rows of K or V that pad_phase makes part of a track, where they may be written.
template <class Layout> struct clear_padding_phase : sequence_phase {
  static constexpr std::uint32_t block = 256;  ///< rows per tile
  static constexpr bool light = false;
  Layout layout;

  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, block); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const begin = max_of(ledger.length[t.where.index], t.index * block);
    std::uint32_t const end = min_of(count_of(t), (t.index + 1) * block);
    for (slot_t s = begin; s < end; ++s) {
      if (layout.writable(t.where, s))
        layout.encode_row(team, t.where, s, [](std::uint32_t) { return 0.0f; });
    }
  }
};

/// Fills every track up to `count` slots with empty slots. A longer track stays as it is, with
/// warning::overfull (the host knew too small a length).
struct pad_phase : sequence_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = ledger;
    std::uint32_t const n = l.length[t.where.index];
    std::uint32_t const wanted = min_of(count_of(t), l.extent.capacity);
    position_t const position = n == 0 ? 0 : l.position[l.at(t.where, n - 1)];
    std::uint32_t const added = wanted - min_of(n, wanted);
    team.sync();
    team.for_each(added, [&](std::uint32_t i) {
      new_entry(l, t.where, n + i, position);
      l.degree[l.at(t.where, n + i)] = 0.0f;
    });
    if (team.lane() != 0) return;
    if (n > wanted) l.warnings[t.where.index] |= warning::overfull;
    if (added == 0) return;
    l.length[t.where.index] = wanted;
    l.word(t.where, track_word::empty) += added;
    std::uint32_t& from = l.word(t.where, track_word::padded_from);
    from = from != 0 ? from : 1 + n;
  }
};

/// Follows pad_phase. The last slots of a padded track do not hold the last tokens, so that a padded sequence
/// cannot be truncated to a point before the padding.
struct pad_settle_phase : sequence_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t)) return;
    std::uint32_t const sequence = t.where.sequence;
    std::uint32_t const empty = highest_word(team, ledger, sequence, track_word::empty);
    if (team.lane() == 0 && empty != 0)
      ledger.sequence_state(sequence, sequence_word::compressed_at) = ledger.seen[sequence];
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
