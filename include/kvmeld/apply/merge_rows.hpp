// SPDX-License-Identifier: Apache-2.0
// Applies a plan to rows of K or V: pivots take in their sets.
#pragma once

#include <kvmeld/apply/blend_rows.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/columns.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/gather_row.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/row_pieces.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Which of the two tensors a phase works on.
enum class side : std::uint8_t { key, value };

/// Merges rows of K or V in place by `map` (the step or the plan), whose sets `link_phase` has listed. A set
/// of one is not touched. Sets are disjoint, and only its own target reads a source, so tiles may run in any
/// order. Layouts with contiguous channels take the rows-first form, layouts that run along tokens the
/// tokens-first form.
template <class Layout> struct merge_rows_phase {
  static constexpr bool spans_blocks = runs_along_tokens<Layout>;  ///< there a tile goes through a track
  static constexpr int min_blocks = 3;         ///< blocks per multiprocessor; each waits for memory
  static constexpr std::uint32_t block = 512;  ///< pivot slots per tile, rows first
  static constexpr std::uint32_t channel_slice =
      64;                                          ///< channels per tile, tokens first; each tile lists sets
  static constexpr std::uint32_t max_fetched = 8;  ///< rows of a set that are prefetched
  Layout layout;
  wave_ref wave;
  plan_ref map;
  side which;

  KVMELD_HD std::uint32_t tiles(shape const& s) const {
    return runs_along_tokens<Layout> ? ceil_div(layout.channels(), channel_slice)
                                     : ceil_div(s.capacity, block);
  }
  std::size_t scratch_bytes(int lanes) const {
    if (!runs_along_tokens<Layout>)
      return blend_scratch(layout.channels()) + scratch_size(block * sizeof(slot_t));
    return lanes == 1 ? scratch_size(column_scratch()) : 0;
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if constexpr (runs_along_tokens<Layout>) {
      tokens_first(team, t);
    } else {
      rows_first(team, t);
    }
  }

private:
  static constexpr std::size_t column_scratch() {
    return column_sets::kernel_bytes(sizeof(typename Layout::element_type));
  }
  KVMELD_HD float const* weights() const { return which == side::key ? map.key_weight : map.value_weight; }

  template <class Team> KVMELD_HD void rows_first(Team const& team, tile const& t) const {
    std::uint32_t const n = wave.state[t.item].length;
    std::uint32_t const begin = t.index * block;
    if (begin >= n || wave.state[t.item].unchanged != 0) return;
    std::uint32_t const end = min_of(n, begin + block);
    float const* const weight = weights() + map.at(t.item, 0);
    blend_buffers const b(team, layout.channels());
    bool const by_pieces = shares_pieces<Layout>(team.lanes());
    if constexpr (has_row_pieces<Layout>::value) {
      if (by_pieces) merge_pieces(team, t, begin, end, weight);
    }
    if (!by_pieces) merge_sets(team, t, begin, end, weight, b);
  }

  template <class Team>
  KVMELD_HD void merge_sets(Team const& team, tile const& t, slot_t begin, slot_t end, float const* weight,
                            blend_buffers const& b) const {
    // Rows of sets lie far apart: while one set merges, the rows of the next four are prefetched.
    slot_t ahead = end;
    if constexpr (gathers_for_kernels<Team, Layout>::value) {
      if (team.lanes() == 1) ahead = begin;
    }
    auto const fetch_set = [&] {
      while (ahead < end) {
        member_list const m = members_of(wave, t.item, ahead++);
        if (m.count < 2) continue;
        for (std::uint32_t i = 0; i < min_of(m.count, max_fetched); ++i)
          prefetch_row(team, layout, t.where, m.slots[i]);
        return;
      }
    };
    for (int i = 0; i < 4; ++i) fetch_set();
    for (slot_t p = begin; p < end; ++p) {
      member_list const m = members_of(wave, t.item, p);
      if (m.count < 2) continue;
      fetch_set();
      blend_into(
          team, layout, t.where, p, m.count, [&](std::uint32_t i) { return m.slots[i]; },
          [&](std::uint32_t i) { return weight[m.slots[i]]; }, b);
    }
  }

  /// Like merge_sets, but every lane merges a piece of a pivot's row. Only the lane that writes a piece reads
  /// what was there. The pivots are listed first, because in most rounds few slots are pivots.
  template <class Team>
  KVMELD_HD void merge_pieces(Team const& team, tile const& t, slot_t begin, slot_t end,
                              float const* weight) const {
    using T = typename Layout::element_type;
    row_pieces<Layout> const rows(layout, t.where);
    std::uint32_t const pieces = rows.count();
    piece_share const mine(team, pieces);
    slot_t* const pivots = team.template scratch<slot_t>(block);
    std::uint32_t const found = list_pivots(team, wave, t.item, begin, end - begin, pivots);
    for (std::uint32_t i = mine.row; mine.has_row() && i < found; i += mine.rows) {
      slot_t const p = pivots[i];
      member_list const m = members_of(wave, t.item, p);
      for (std::uint32_t index = mine.piece; index < pieces; index += mine.width) {
        float total[row_piece<T>::size];
        blend_pieces(
            rows, index, m.count, [&](std::uint32_t j) { return m.slots[j]; },
            [&](std::uint32_t j) { return weight[m.slots[j]]; }, total);
        row_piece<T> merged;
        for (std::uint32_t c = 0; c < row_piece<T>::size; ++c)
          merged.x[c] = element_traits<T>::from_float(total[c]);
        rows.write(p, index, merged);
      }
    }
    team.sync();
  }

  /// Merges column by column, in batches of sets. Sets whose members lie near each other have a batch of
  /// their own. One lane.
  template <class Team, class T>
  void merge_listed(Team const& team, tile const& t, std::uint32_t n, float const* weight, T* columns,
                    std::int64_t stride, std::uint32_t channels, std::uint32_t capacity,
                    void* scratch) const {
    column_sets near, far;
    auto const merge = [&](column_sets& sets) {
      merge_columns(team, sets, columns, stride, channels, capacity, scratch);
      sets.clear();
    };
    // As members_of, but values that do not change stay in registers.
    slot_t const* const members = wave.set_member + wave.at(t.item, 0);
    slot_t const* const ends = wave.set_end + wave.at(t.item, 0);
    slot_t begin = 0;
    for (slot_t p = 0; p < n; ++p) {
      member_list const m{members + begin, ends[p] - begin};
      begin = ends[p];
      if (m.count < 2) continue;
      column_sets& sets = column_sets::is_near(m) ? near : far;
      bool const fits = &sets == &far || sets.stays_near(m);
      if (fits && sets.add(p, m, weight)) continue;
      merge(sets);
      if (sets.add(p, m, weight)) continue;
      for (std::uint32_t c = 0; c < channels; ++c)
        merge_slot(columns + std::int64_t{c} * stride, p, m, weight);
    }
    merge(near);
    merge(far);
  }
  template <class T>
  KVMELD_HD static void merge_slot(T* x, slot_t p, member_list const& m, float const* weight) {
    float total = 0.0f;
    for (std::uint32_t j = 0; j < m.count; ++j) {
      total += weight[m.slots[j]] * element_traits<T>::to_float(x[m.slots[j]]);
    }
    x[p] = element_traits<T>::from_float(total);
  }

  template <class Team> KVMELD_HD void tokens_first(Team const& team, tile const& t) const {
    using T = typename Layout::element_type;
    std::uint32_t const n = wave.state[t.item].length;
    if (n == 0 || wave.state[t.item].unchanged != 0) return;
    std::uint32_t const first = t.index * channel_slice;
    std::uint32_t const channels = min_of(channel_slice, layout.channels() - first);
    float const* const weight = weights() + map.at(t.item, 0);
    segment<T> const s = layout.locate(t.where, 0);
    auto const column = [&](std::uint32_t i) { return s.base + std::int64_t{first + i} * s.channel_stride; };
    if constexpr (may_be_tuned<Team>) {
      if (team.lanes() == 1) {
        void* const scratch = team.template scratch<std::byte>(column_scratch());
        return merge_listed(team, t, n, weight, column(0), s.channel_stride, channels, s.remaining, scratch);
      }
    }
    // The outer loop goes over sets, so that a set is found once, and neighbouring lanes have neighbouring
    // slots. Sets are disjoint, so they need no barrier between them.
    for_each_set(team, wave, t.item, 0, n, [&](slot_t p, member_list const& m) {
      for (std::uint32_t i = 0; i < channels; ++i) merge_slot(column(i), p, m, weight);
    });
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
