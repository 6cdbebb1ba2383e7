// SPDX-License-Identifier: Apache-2.0
// Checks rows for NaN and infinity, once per entry before it may merge, and keeps the result as a flag.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/compact_indices.hpp>
#include <kvmeld/exec/stored_rows.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/row_pieces.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Which rows are inspected. A compression moves or drops the others unread: if no part reads keys, evicted
/// entries cost no pass over their rows. Whoever gets a plan may edit it, so a plan needs everything.
enum class looked_at : std::uint8_t { mergeable, any_role, everything };

/// Inspects rows of K or V that were not inspected before, and flags those with NaN or infinity. `which` says
/// which rows. mergeable: on tracks above their budget, the rows of centers and mergeable entries. any_role:
/// on these tracks, the rows of all entries, because spans also spread over pinned ones. everything: all rows
/// of all tracks.
template <class Layout> struct inspect_phase {
  static constexpr std::uint32_t block = 16;
  static constexpr std::uint32_t rows_per_tile = 1024;
  static constexpr int min_blocks = 3;  ///< blocks per multiprocessor; each waits for memory
  Layout layout;
  wave_ref wave;
  std::uint8_t checked;  ///< entry_flag::key_checked or value_checked
  looked_at which;

  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, rows_per_tile); }
  std::size_t scratch_bytes(int lanes) const {
    if (shares_pieces<Layout>(static_cast<std::uint32_t>(lanes))) {
      return 2 * scratch_size(rows_per_tile * sizeof(std::uint32_t));
    }
    return scratch_size(std::size_t{block} * layout.channels() * sizeof(float));
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (wave.state[t.item].over_budget == 0 && which != looked_at::everything) return;
    ledger_ref const& l = wave.ledger;
    std::uint32_t const n = wave.state[t.item].length;
    std::uint32_t const first = t.index * rows_per_tile;
    if (first >= n) return;
    std::uint32_t const last = min_of(n, first + rows_per_tile);
    entry_array<std::uint8_t> const flags{l.flags, l.from(t.where)};
    role const* const roles = wave.roles + wave.at(t.item, 0);
    auto const fresh = [&](slot_t s) {
      return (flags[s] & checked) == 0 &&
             (which != looked_at::mergeable || roles[s] == role::mergeable || roles[s] == role::center);
    };
    auto const note = [&](slot_t s, bool good) {
      flags[s] = static_cast<std::uint8_t>(flags[s] | checked | (good ? 0 : entry_flag::nonfinite));
    };
    if constexpr (has_row_pieces<Layout>::value) {
      if (shares_pieces<Layout>(team.lanes())) return look_by_pieces(team, t, first, last, fresh, note);
    }
    float* const rows = team.template scratch<float>(std::size_t{block} * layout.channels());
    // Every lane finds the same runs, because flags change only for slots that were passed already.
    for (slot_t s = first; s < last;) {
      if (!fresh(s)) {
        ++s;
        continue;
      }
      std::uint32_t count = 1;
      while (count < min_of(block, last - s) && fresh(s + count)) ++count;
      look(team, t, s, count, rows, note);
      s += count;
    }
  }

private:
  /// Inspects rows in pieces, one piece per lane at a time.
  template <class Team, class Fresh, class Note>
  KVMELD_HD void look_by_pieces(Team const& team, tile const& t, slot_t first, slot_t last,
                                Fresh const& fresh, Note const& note) const {
    using piece = typename row_pieces<Layout>::piece;
    row_pieces<Layout> const rows(layout, t.where);
    std::uint32_t const pieces = rows.count();
    slot_t* const slots = team.template scratch<slot_t>(rows_per_tile);
    std::uint32_t* const bad = team.template scratch<std::uint32_t>(rows_per_tile);
    std::uint32_t const found = compact_indices(
        team, last - first, [&](std::uint32_t i) { return fresh(first + i); },
        [&](std::uint32_t rank, std::uint32_t i) {
          slots[rank] = first + i;
          bad[rank] = 0;
        });
    // A lane reads a piece of several rows before it looks at any of them.
    piece_share const mine(team, pieces);
    for (std::uint32_t index = mine.piece; mine.has_row() && index < pieces; index += mine.width) {
      std::uint32_t const width = rows.width(index);
      for (std::uint32_t begin = mine.row; begin < found; begin += pieces_in_flight * mine.rows) {
        piece held[pieces_in_flight];
        for (std::uint32_t j = 0; j < pieces_in_flight; ++j) {
          std::uint32_t const i = begin + j * mine.rows;
          if (i < found) held[j] = rows.read(slots[i], index);
        }
        for (std::uint32_t j = 0; j < pieces_in_flight; ++j) {
          std::uint32_t const i = begin + j * mine.rows;
          if (i < found && !finite(held[j], width)) team.fetch_add(&bad[i], 1);
        }
      }
    }
    team.sync();
    team.for_each(found, [&](std::uint32_t i) { note(slots[i], bad[i] == 0); });
    team.sync();
  }

  template <class Piece> KVMELD_HD static bool finite(Piece const& p, std::uint32_t channels) {
    bool good = true;
    unrolled<Piece::size>([&](auto channel) {
      constexpr std::uint32_t c = decltype(channel)::value;
      good &= is_finite(element_traits<typename Layout::element_type>::to_float(p.x[c])) | (c >= channels);
    });
    return good;
  }

  template <class Team, class Note>
  KVMELD_HD void look(Team const& team, tile const& t, slot_t s, std::uint32_t count, float* rows,
                      Note const& note) const {
    std::uint32_t const d = layout.channels();
    with_tile(team, layout, t.where, s, count, rows, layout.channels(), [&](auto const& x) {
      // Nearly always all rows are finite.
      bool const all = team.lanes() == 1 && x.ld == d && all_finite(team, x.rows, count * d);
      team.for_each(count,
                    [&](std::uint32_t i) { note(s + i, all || all_finite(team, x.rows + i * x.ld, d)); });
    });
    team.sync();
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
