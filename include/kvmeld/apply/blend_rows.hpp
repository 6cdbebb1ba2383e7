// SPDX-License-Identifier: Apache-2.0
// A weighted sum of rows: the arithmetic of every merge.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/weighted_rows.hpp>
#include <kvmeld/layout/gather_row.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/row_pieces.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Rows that blend_rows holds at once, if its caller says nothing else.
constexpr std::uint32_t blend_block = 16;

KVMELD_HD constexpr std::size_t blend_scratch(std::uint32_t channels, std::uint32_t block = blend_block) {
  return scratch_size(std::size_t{block} * channels * sizeof(float)) + scratch_size(channels * sizeof(float));
}

/// Scratch of blend_rows, taken once per tile.
struct blend_buffers {
  std::uint32_t block;  ///< how many rows it holds
  float* rows;
  float* total;

  template <class Team>
  KVMELD_HD blend_buffers(Team const& team, std::uint32_t channels, std::uint32_t most = blend_block)
      : block(most),
        rows(team.template scratch<float>(std::size_t{block} * channels)),
        total(team.template scratch<float>(channels)) {}
};

/// Loads rows slot(0) to slot(count - 1) as floats, one behind the other. Neighbours are loaded together.
/// Collective; no barrier.
template <class Team, class Layout, class Slot>
KVMELD_HD void load_listed(Team const& team, Layout const& layout, track where, std::uint32_t count,
                           Slot slot, float* rows) {
  std::uint32_t const d = layout.channels();
  for (std::uint32_t i = 0; i < count;) {
    slot_t const first = slot(i);
    std::uint32_t run = 1;
    while (i + run < count && slot(i + run) == first + run) ++run;
    layout.load_tile(team, where, first, run, 0, d, rows + std::size_t{i} * d, d);
    i += run;
  }
}

/// total[c] = sum over i < count of weight(i) * row(slot(i))[c], in float, in the order of i. Collective;
/// barrier at the end. This generic form loads rows of any layout through its tiles.
template <class Team, class Layout, class Slot, class Weight>
KVMELD_HD void blend_rows(Team const& team, Layout const& layout, track where, std::uint32_t count, Slot slot,
                          Weight weight, blend_buffers const& b) {
  std::uint32_t const d = layout.channels();
  team.for_each(d, [&](std::uint32_t c) { b.total[c] = 0.0f; });
  for (std::uint32_t i = 0; i < count; i += b.block) {
    std::uint32_t const rows = min_of(b.block, count - i);
    load_listed(
        team, layout, where, rows, [&](std::uint32_t r) { return slot(i + r); }, b.rows);
    team.sync();
    for (std::uint32_t r = 0; r < rows; ++r) {
      float const w = weight(i + r);
      float const* const row = b.rows + std::size_t{r} * d;
      team.for_each(d, [&](std::uint32_t c) { b.total[c] += w * row[c]; });
    }
    team.sync();
  }
}

/// total[c] = sum over i < count of weight(i) * channel c of piece `index` of row slot(i), in float, in the
/// order of i. Every lane makes calls of its own.
template <class Layout, class Slot, class Weight>
KVMELD_HD void blend_pieces(row_pieces<Layout> const& rows, std::uint32_t index, std::uint32_t count,
                            Slot slot, Weight weight, float (&total)[row_pieces<Layout>::piece::size]) {
  using piece = typename row_pieces<Layout>::piece;
  using traits = element_traits<typename Layout::element_type>;
  for (float& x : total) x = 0.0f;
  for (std::uint32_t i = 0; i < count; i += pieces_in_flight) {
    std::uint32_t const left = count - i;
    piece x[pieces_in_flight];
    float w[pieces_in_flight];
    for (std::uint32_t r = 0; r < pieces_in_flight; ++r) {
      if (r >= left) continue;
      x[r] = rows.read(slot(i + r), index);
      w[r] = weight(i + r);
    }
    for (std::uint32_t r = 0; r < pieces_in_flight; ++r) {
      if (r >= left) continue;
      for (std::uint32_t c = 0; c < piece::size; ++c) total[c] += w[r] * traits::to_float(x[r].x[c]);
    }
  }
}

/// Blends into row p like blend_into, for rows whose channels do not lie side by side. The rows are gathered
/// in scratch in their storage format. One lane.
template <class Team, class Layout, class Slot, class Weight>
void blend_gathered(Team const& team, Layout const& layout, track where, slot_t p, std::uint32_t count,
                    Slot slot, Weight weight, blend_buffers const& b) {
  using T = typename Layout::element_type;
  static_assert(sizeof(T) <= sizeof(float));
  std::uint32_t const d = layout.channels();
  T* const gathered = reinterpret_cast<T*>(b.rows);
  T* const merged = reinterpret_cast<T*>(b.total);
  T const* rows[blend_block];
  float weights[blend_block];
  for (std::uint32_t i = 0; i < count; ++i) {
    T* const row = gathered + std::size_t{i} * d;
    gather_row(layout, where, slot(i), row);
    rows[i] = row;
    weights[i] = weight(i);
  }
  blend(team, static_cast<T const* const*>(rows), weights, count, d, merged);
  scatter_row(layout, where, p, static_cast<T const*>(merged));
}

/// Writes the sum of blend_rows to row p, rounded to storage. Collective; barrier at the end. A single lane
/// on the host goes from storage to storage (see blend), with the same bits.
template <class Team, class Layout, class Slot, class Weight>
KVMELD_HD void blend_into(Team const& team, Layout const& layout, track where, slot_t p, std::uint32_t count,
                          Slot slot, Weight weight, blend_buffers const& b) {
  if constexpr (has_row_kernels<Team, Layout>::value) {
    using T = typename Layout::element_type;
    constexpr std::uint32_t most = 64;
    segment<T> const to = layout.locate(where, p);
    bool plain = team.lanes() == 1 && count <= most && to.channel_stride == 1;
    T const* rows[most];
    float weights[most];
    for (std::uint32_t i = 0; plain && i < count; ++i) {
      segment<T> const from = layout.locate(where, slot(i));
      plain = from.channel_stride == 1;
      rows[i] = from.base;
      weights[i] = weight(i);
    }
    if (plain)
      return blend(team, static_cast<T const* const*>(rows), weights, count, layout.channels(), to.base);
  }
  if constexpr (gathers_for_kernels<Team, Layout>::value) {
    if (team.lanes() == 1 && count <= blend_block)
      return blend_gathered(team, layout, where, p, count, slot, weight, b);
  }
  blend_rows(team, layout, where, count, slot, weight, b);
  layout.encode_row(team, where, p, [&](std::uint32_t c) { return b.total[c]; });
  team.sync();
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
