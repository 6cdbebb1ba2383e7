// SPDX-License-Identifier: Apache-2.0
// Applies a plan to rows of V: kept entries take in what is spread over them.
#pragma once

#include <kvmeld/apply/blend_rows.hpp>
#include <kvmeld/apply/span_segment.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/row_pieces.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Adds to rows of V what `map` spreads over them. link_phase has listed the spread sources. Sources reach
/// long stretches of slots, and their sum is computed once per stretch: `chunk` sources at a time, each time
/// in order, and then chunk by chunk. Only entries that stay and are no pivots receive, and only entries that
/// leave are read, so no row is both read and written, and sets may merge before or after.
template <class Layout> struct spread_rows_phase {
  static constexpr bool spans_blocks = has_row_pieces<Layout>::value;
  static constexpr std::uint32_t chunk = 64;        ///< sources that one lane adds up
  static constexpr std::uint32_t most_sums = 8192;  ///< floats: sums of chunks that a tile holds at a time
  Layout layout;
  wave_ref wave;
  plan_ref map;
  std::uint32_t slice = 0;  ///< pieces of a row that a tile of several lanes takes; 0: all

  std::uint32_t tiles(shape const&) const { return tiles_of_slices(layout, slice); }
  std::size_t scratch_bytes(int lanes) const {
    if constexpr (has_row_pieces<Layout>::value) {
      if (lanes > 1) {
        std::uint32_t const all = row_pieces<Layout>::count_of(layout.channels());
        std::uint32_t const channels = (slice != 0 ? slice : all) * row_pieces<Layout>::piece::size;
        return scratch_size(channels * sizeof(float)) +
               scratch_size(max_of(most_sums, channels) * sizeof(float));
      }
    }
    return blend_scratch(layout.channels(), at_once) + scratch_size(layout.channels() * sizeof(float));
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (wave.state[t.item].length == 0 || wave.state[t.item].unchanged != 0) return;
    member_list const spreads = spreads_of(wave, t.item);
    if (spreads.count == 0) return;
    if constexpr (has_row_pieces<Layout>::value) {
      if (team.lanes() > 1) return spread_pieces(team, t, spreads);
    }
    spread_whole(team, t, spreads);
  }

private:
  /// Rows that are loaded together. Along tokens, whole lines of a cache are then used at once.
  static constexpr std::uint32_t at_once = runs_along_tokens<Layout> ? chunk : blend_block;

  KVMELD_HD float weight(tile const& t, slot_t s) const { return map.value_weight[map.at(t.item, s)]; }
  /// Weight of a spread source in slot p; 0 if it does not reach p.
  KVMELD_HD float weight_at(tile const& t, slot_t source, slot_t p) const {
    return map.reaches(t.item, source, p) ? weight(t, source) : 0.0f;
  }

  /// Every lane has a piece of rows, first of a chunk's sources, then of receivers.
  template <class Team>
  KVMELD_HD void spread_pieces(Team const& team, tile const& t, member_list const& spreads) const {
    using T = typename Layout::element_type;
    using piece = typename row_pieces<Layout>::piece;
    row_pieces<Layout> const rows(layout, t.where);
    std::uint32_t const first_piece = slice * t.index;
    std::uint32_t const pieces = slice == 0 ? rows.count() : min_of(slice, rows.count() - first_piece);
    std::uint32_t const channels = pieces * piece::size;
    piece_share const mine(team, pieces);
    std::uint32_t const most = min_of(mine.rows, max_of(most_sums / channels, 1u));
    float* const total = team.template scratch<float>(channels);
    float* const sums = team.template scratch<float>(std::size_t{most} * channels);
    for_each_reached(team, map, t.item, spreads, wave.state[t.item].length, [&](span_segment const& flow) {
      team.for_each(channels, [&](std::uint32_t c) { total[c] = 0.0f; });
      for (std::uint32_t first = 0; first < spreads.count; first += most * chunk) {
        std::uint32_t const chunks = min_of(most, ceil_div(spreads.count - first, chunk));
        slot_t const* const sources = spreads.slots + first + mine.row * chunk;
        for (std::uint32_t i = mine.piece; mine.row < chunks && i < pieces; i += mine.width) {
          float sum[piece::size];
          blend_pieces(
              rows, first_piece + i, min_of(chunk, spreads.count - first - mine.row * chunk),
              [&](std::uint32_t j) { return sources[j]; },
              [&](std::uint32_t j) { return weight_at(t, sources[j], flow.from); }, sum);
          for (std::uint32_t c = 0; c < piece::size; ++c)
            sums[std::size_t{mine.row} * channels + i * piece::size + c] = sum[c];
        }
        team.sync();
        team.for_each(channels, [&](std::uint32_t c) {
          float sum = total[c];
          for (std::uint32_t k = 0; k < chunks; ++k) sum += sums[std::size_t{k} * channels + c];
          total[c] = sum;
        });
        team.sync();
      }
      for (std::uint32_t i = mine.piece; mine.has_row() && i < pieces; i += mine.width) {
        float add[piece::size];
        for (std::uint32_t c = 0; c < piece::size; ++c) add[c] = total[i * piece::size + c];
        for (slot_t p = flow.from + mine.row; p < flow.until; p += mine.rows) {
          if (!may_receive(wave, map, t.item, p)) continue;
          float const w = weight(t, p);
          piece x = rows.read(p, first_piece + i);
          for (std::uint32_t c = 0; c < piece::size; ++c) {
            x.x[c] = element_traits<T>::from_float(w * (element_traits<T>::to_float(x.x[c]) + add[c]));
          }
          rows.write(p, first_piece + i, x);
        }
      }
      team.sync();
    });
  }

  /// The same sums from whole rows of any layout.
  template <class Team>
  KVMELD_HD void spread_whole(Team const& team, tile const& t, member_list const& spreads) const {
    std::uint32_t const d = layout.channels();
    blend_buffers const b(team, d, at_once);
    float* const total = team.template scratch<float>(d);
    for_each_reached(team, map, t.item, spreads, wave.state[t.item].length, [&](span_segment const& flow) {
      team.for_each(d, [&](std::uint32_t c) { total[c] = 0.0f; });
      for (std::uint32_t first = 0; first < spreads.count; first += chunk) {
        slot_t const* const sources = spreads.slots + first;
        blend_rows(
            team, layout, t.where, min_of(chunk, spreads.count - first),
            [&](std::uint32_t i) { return sources[i]; },
            [&](std::uint32_t i) { return weight_at(t, sources[i], flow.from); }, b);
        team.for_each(d, [&](std::uint32_t c) { total[c] += b.total[c]; });
      }
      team.sync();
      for (slot_t first = flow.from; first < flow.until; first += at_once) {
        std::uint32_t const count = min_of(at_once, flow.until - first);
        layout.load_tile(team, t.where, first, count, 0, d, b.rows, d);
        team.sync();
        for (std::uint32_t r = 0; r < count; ++r) {
          if (!may_receive(wave, map, t.item, first + r)) continue;
          float const w = weight(t, first + r);
          float const* const row = b.rows + std::size_t{r} * d;
          layout.encode_row(team, t.where, first + r,
                            [&](std::uint32_t c) { return w * (row[c] + total[c]); });
        }
        team.sync();
      }
    });
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
