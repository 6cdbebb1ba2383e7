// SPDX-License-Identifier: Apache-2.0
// The rows of a track as floats, for scores that are computed from keys and values.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/exec/weighted_rows.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/score/score_view.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// One row of keys or values, as floats.
class row_ref {
public:
  /// A view of `channels` floats.
  KVMELD_HD row_ref(float const* x, std::uint32_t channels) : x_(x), channels_(channels) {}
  /// Number of channels.
  KVMELD_HD std::uint32_t size() const { return channels_; }
  /// Element of channel `c`.
  KVMELD_HD float operator[](std::uint32_t c) const { return x_[c]; }
  /// Euclidean norm, finite for every finite row.
  KVMELD_HD float norm() const { return row_norm(x_, channels_); }
  /// Scalar product with a row of the same size.
  KVMELD_HD float dot(row_ref const& other) const { return kvmeld::dot(x_, other.x_, channels_); }

private:
  float const* x_;
  std::uint32_t channels_;
};

/// to[i][channels] = row(i), for i < count; row(i) is a row_ref, as for_each_block gives it. Collective; no
/// barrier.
template <class Team, class Row>
KVMELD_HD void copy_rows(Team const& team, Row const& row, std::uint32_t count, std::uint32_t channels,
                         float* to) {
  for (std::uint32_t i = 0; i < count; ++i) {
    row_ref const from = row(i);
    team.for_each(channels, [&](std::uint32_t c) { to[std::size_t{i} * channels + c] = from[c]; });
  }
}

/// Slots 0 to n - 1, cut into up to 16 ranges of whole blocks of rows. The blocks of a team share them out.
/// What is added up over ranges, in a fixed tree, does not depend on how many blocks there are.
struct row_ranges {
  static constexpr std::uint32_t block = 32;                  ///< see row_scratch
  static constexpr std::uint32_t most = most_blocks_of_team;  ///< ranges
  static constexpr std::uint32_t levels = 5;                  ///< of a tree over `most` ranges

  slot_t n, size;       ///< slots; slots of a range, but for the last one
  std::uint32_t count;  ///< ranges; 0 if n is 0

  /// The ranges of `slots` slots.
  KVMELD_HD explicit row_ranges(slot_t slots)
      : n(slots),
        size(ceil_div(ceil_div(slots, block), most) * block),
        count(slots == 0 ? 0 : ceil_div(slots, size)) {}

  /// Calls use(part, r, first, last) for the ranges that the calling lane's block of the team takes: range r
  /// is slots `first` to `last` - 1. No barrier.
  template <class Team, class Use> KVMELD_HD void share(Team const& team, Use use) const {
    auto const& part = block_of(team);
    block_place const mine = place_of_block(team);
    std::uint32_t const share = most / mine.count, begin = mine.index * share;
    for (std::uint32_t r = begin; r < min_of(count, begin + share); ++r)
      use(part, r, r * size, min_of(n, (r + 1) * size));
  }

  /// Adds up `floats` numbers over the ranges: add(part, first, last, to) adds those of slots `first` to
  /// `last` - 1 to to[floats], which holds zeros. Returns the totals, for every block of the team; they lie
  /// in `memory`, levels * floats floats of block_scratch. Collective; barrier at the end.
  template <class Team, class Add>
  KVMELD_HD float* add_up(Team const& team, std::uint32_t floats, float* memory, Add add) const {
    auto const& own = block_of(team);
    block_place const mine = place_of_block(team);
    auto const level = [&](std::uint32_t i) { return memory + std::size_t{i} * floats; };
    std::uint32_t depth = 0, done = 0;  // sums of neighbouring ranges that wait for their other half
    auto const join = [&] {
      --depth;
      own.for_each(floats, [&](std::uint32_t i) { level(depth - 1)[i] += level(depth)[i]; });
      own.sync();
    };
    share(team, [&](auto const& part, std::uint32_t, slot_t first, slot_t last) {
      float* const to = level(depth++);
      part.for_each(floats, [&](std::uint32_t i) { to[i] = 0.0f; });
      part.sync();
      add(part, first, last, to);
      part.sync();
      for (std::uint32_t pairs = ++done; pairs % 2 == 0; pairs /= 2) join();
    });
    while (depth > 1) join();
    team.sync();
    if (mine.count == 1 && count != 0) return memory;
    std::uint32_t const blocks = ceil_div(count, most / mine.count);  // that have ranges
    own.for_each(floats, [&](std::uint32_t i) {
      level(1)[i] = tree_sum(blocks, [&](std::uint32_t b) { return in_block(team, memory, b)[i]; });
    });
    team.sync();
    return level(1);
  }

private:
  /// The sum of term(0) to term(terms - 1), which are up to `most`, in a tree.
  template <class Term> KVMELD_HD static float tree_sum(std::uint32_t terms, Term term) {
    float x[most];
    unrolled<most>([&](auto number) { x[number.value] = number.value < terms ? term(number.value) : 0.0f; });
    unrolled<levels - 1>([&](auto number) {
      constexpr std::uint32_t step = 1u << decltype(number)::value;
      unrolled<most / (2 * step)>([&](auto pair) {
        constexpr std::uint32_t i = 2 * step * decltype(pair)::value;
        if (i + step < terms) x[i] += x[i + step];
      });
    });
    return x[0];
  }
};

/// Scratch in which track_rows work. The keys and the values of a track take turns in it.
struct row_scratch {
  static constexpr std::uint32_t block = row_ranges::block;  ///< rows that are loaded together

  float* tile;         ///< [block][row_stride(channels)]
  float* sums;         ///< [row_ranges::levels][channels]
  float* sum_of_rows;  ///< [channels]
  float* weight;       ///< [block]
  float* square;       ///< [block]
  float* product;      ///< [block]

  /// Takes scratch for rows of up to `channels` channels. Collective.
  template <class Team>
  KVMELD_HD row_scratch(Team const& team, std::uint32_t channels)
      : tile(block_scratch<float>(team, std::size_t{block} * row_stride(channels))),
        sums(block_scratch<float>(team, std::size_t{row_ranges::levels} * channels)),
        sum_of_rows(block_scratch<float>(team, channels)),
        weight(block_scratch<float>(team, block)),
        square(block_scratch<float>(team, block)),
        product(block_scratch<float>(team, block)) {}

  /// Bytes of scratch that the constructor takes.
  static constexpr std::size_t bytes(std::uint32_t channels) {
    return scratch_size(std::size_t{block} * row_stride(channels) * sizeof(float)) +
           scratch_size(std::size_t{row_ranges::levels} * channels * sizeof(float)) +
           scratch_size(std::size_t{channels} * sizeof(float)) + 3 * scratch_size(block * sizeof(float));
  }
};

/// The keys or the values of one track, in any layout: all of them, or the part that a team is given of a
/// track (score_uses::rows_alone). Rows come in blocks, in the order of slots. Rows that hold NaN or infinity
/// are left out. What the functions compute depends neither on the number of lanes nor on the number of
/// blocks of a team.
///
/// The blocks of a team (block_of) take turns with the blocks of rows. What a loop calls gets the team that
/// it runs on, `part`: one block of the whole team. It makes collective calls of `part` alone, and takes no
/// scratch.
template <class Layout> class track_rows {
public:
  /// The rows of the entries that `view` shows. All arguments have to outlive this.
  KVMELD_HD track_rows(Layout const& layout, score_view const& view, row_scratch const& scratch)
      : track_rows(layout, view, scratch, 0, view.length()) {}
  /// The part of these rows in slots `begin` to `end` - 1. `begin` must be a multiple of row_scratch::block.
  KVMELD_HD track_rows(Layout const& layout, score_view const& view, row_scratch const& scratch, slot_t begin,
                       slot_t end)
      : layout_(layout), view_(view), scratch_(scratch), begin_(begin), end_(end) {}

  /// Channels of a row.
  KVMELD_HD std::uint32_t channels() const { return layout_.channels(); }

  /// Calls body(part, slot, count, row) for blocks of up to row_scratch::block neighbouring slots from
  /// `first` to `last` - 1. All lanes of `part` call `body` together, and row(i) is the row_ref of slot
  /// `slot` + i. Rows that hold NaN or infinity are among them: ask score_view::usable. Collective; a barrier
  /// of `part` after each block, and one of the team at the end.
  template <class Team, class Body>
  KVMELD_HD void for_each_block(Team const& team, slot_t first, slot_t last, Body body) const {
    share_blocks(team, first, last, [&](auto const& part, slot_t s, std::uint32_t count) {
      auto const use = [&](detail::tile_view<float> const& tile) {
        body(part, s, count, [&](std::uint32_t i) { return row_ref(tile.rows + i * tile.ld, channels()); });
      };
      std::uint32_t const ld = row_stride(channels());
      if constexpr (std::is_same_v<typename Layout::element_type, float>) {
        detail::with_tile(part, layout_, view_.where(), s, count, scratch_.tile, ld, use);
      } else {
        layout_.load_tile(part, view_.where(), s, count, 0, channels(), scratch_.tile, ld);
        part.sync();
        use({scratch_.tile, ld});
      }
    });
  }

  /// Calls use(part, slot, count, rows, ld) for the same blocks, for primitives of exec/: element c of slot
  /// `slot` + i is rows[i * ld + c]. Rows are as they are stored if the team's primitives read them in place,
  /// or floats. Keys and values take turns in one scratch: a tile of keys is gone once a tile of values is
  /// asked for. Collective; barriers as for_each_block.
  template <class Team, class Use>
  KVMELD_HD void for_each_tile(Team const& team, slot_t first, slot_t last, Use use) const {
    share_blocks(team, first, last, [&](auto const& part, slot_t s, std::uint32_t count) {
      detail::with_tile(part, layout_, view_.where(), s, count, scratch_.tile, row_stride(channels()),
                        [&](auto const& tile) { use(part, s, count, tile.rows, tile.ld); });
    });
  }

  /// Calls visit(slot, row_ref) for the rows of slots `first` to `last` - 1, divided among the lanes.
  /// Collective; barrier at the end.
  template <class Team, class Visit>
  KVMELD_HD void for_each(Team const& team, slot_t first, slot_t last, Visit visit) const {
    for_each_block(team, first, last, [&](auto const& part, slot_t s, std::uint32_t count, auto const& row) {
      part.for_each(count, [&](std::uint32_t i) {
        if (view_.usable(s + i)) visit(s + i, row(i));
      });
    });
  }
  /// Calls visit(slot, row_ref) for all rows of the track.
  template <class Team, class Visit> KVMELD_HD void for_each(Team const& team, Visit visit) const {
    for_each(team, 0, view_.length(), visit);
  }

  /// Calls visit(slot, norm) with the Euclidean norms of all rows of the track, finite for every finite row.
  /// Divided among the lanes. Collective; barrier at the end.
  template <class Team, class Visit> KVMELD_HD void norms(Team const& team, Visit visit) const {
    measure(team, 0, view_.length(), nullptr,
            [&](auto const& part, slot_t s, std::uint32_t count, auto const& norm, auto const*, std::size_t) {
              part.for_each(count, [&](std::uint32_t i) {
                if (view_.usable(s + i)) visit(s + i, norm(i));
              });
            });
  }
  /// Calls visit(slot, norm, product) with the norms of all rows and their scalar products with
  /// x[channels()]. Divided among the lanes. Collective; barrier at the end.
  template <class Team, class Visit>
  KVMELD_HD void products(Team const& team, float const* x, Visit visit) const {
    measure(team, 0, view_.length(), x,
            [&](auto const& part, slot_t s, std::uint32_t count, auto const& norm, auto const*, std::size_t) {
              part.for_each(count, [&](std::uint32_t i) {
                if (view_.usable(s + i)) visit(s + i, norm(i), scratch_.product[i]);
              });
            });
  }
  /// total[c] = the sum of weight(slot, norm) * row[c] over all rows of the track. `total` has room for
  /// channels() floats and is block_scratch: every block of the team gets the whole sum. Collective; barrier
  /// at the end.
  template <class Team, class Weight>
  KVMELD_HD void weighted_sum(Team const& team, Weight weight, float* total) const {
    std::uint32_t const d = channels();
    float const one = 1.0f;
    add_up(
        team,
        [&](auto const& all_of_part, slot_t first, slot_t last, float* to) {
          measure(all_of_part, first, last, nullptr,
                  [&](auto const& part, slot_t s, std::uint32_t count, auto const& norm, auto const* tile,
                      std::size_t ld) {
                    std::uint32_t skipped = 0;
                    part.for_each(count, [&](std::uint32_t i) {
                      bool const counts = view_.usable(s + i);
                      scratch_.weight[i] = counts ? weight(s + i, norm(i)) : 0.0f;
                      skipped += counts ? 0u : 1u;
                    });
                    part.for_each(d, [&](std::uint32_t c) { scratch_.sum_of_rows[c] = 0.0f; });
                    bool const all = part.reduce(skipped, op_sum{}) == 0;
                    part.sync();
                    // What is skipped may be NaN, and must not be multiplied.
                    std::uint32_t const step = all ? count : 1;
                    for (std::uint32_t i = 0; i < count; i += step) {
                      if (!all && !view_.usable(s + i)) continue;
                      add_weighted_rows(part, scratch_.weight + i, 1, step, &one, tile + i * ld, ld, step, d,
                                        scratch_.sum_of_rows, d);
                    }
                    part.for_each(d, [&](std::uint32_t c) { to[c] += scratch_.sum_of_rows[c]; });
                  });
        },
        total);
  }
  /// total[c] = what row_ranges::add_up adds up for each channel. `total` is as for weighted_sum. Collective;
  /// barrier at the end.
  template <class Team, class Add> KVMELD_HD void add_up(Team const& team, Add add, float* total) const {
    std::uint32_t const d = channels();
    float const* const sums = row_ranges(view_.length()).add_up(team, d, scratch_.sums, add);
    block_of(team).for_each(d, [&](std::uint32_t c) { total[c] = sums[c]; });
    team.sync();
  }

  /// low[c] and high[c] = the least and the greatest element of channel c in the rows of slots `first` to
  /// `last` - 1. Without a row, `low` is above `high`. Both are block_scratch of one block, which asks alone:
  /// `part` is a team of one block. Collective; barrier at the end.
  template <class Part>
  KVMELD_HD void bounds(Part const& part, slot_t first, slot_t last, float* low, float* high) const {
    lane_range const mine = contiguous_range(part, channels());
    for (std::uint32_t c = mine.begin; c < mine.end; ++c) {
      low[c] = -element_traits<float>::lowest;
      high[c] = element_traits<float>::lowest;
    }
    for_each_block(part, first, last, [&](auto const&, slot_t s, std::uint32_t count, auto const& row) {
      for (std::uint32_t i = 0; i < count; ++i) {
        if (!view_.usable(s + i)) continue;
        row_ref const x = row(i);
        for (std::uint32_t c = mine.begin; c < mine.end; ++c) {
          low[c] = x[c] < low[c] ? x[c] : low[c];
          high[c] = x[c] > high[c] ? x[c] : high[c];
        }
      }
    });
  }

private:
  /// Calls use(part, slot, count) for the blocks of rows that the calling lane's block of the team takes.
  template <class Team, class Use>
  KVMELD_HD void share_blocks(Team const& team, slot_t first, slot_t last, Use use) const {
    auto const& part = block_of(team);
    block_place const mine = place_of_block(team);
    first = max_of(first, begin_);
    last = min_of(last, end_);
    std::uint32_t const blocks = first < last ? ceil_div(last - first, row_scratch::block) : 0;
    for (std::uint32_t b = mine.index; b < blocks; b += mine.count) {
      slot_t const s = first + b * row_scratch::block;
      use(part, s, min_of(row_scratch::block, last - s));
      part.sync();
    }
    if (mine.count != 1) team.sync();
  }
  /// Calls use(part, slot, count, norm, rows, ld) for the blocks of for_each_tile: norm(i) is the norm of a
  /// row, and scratch.product[i] its scalar product with x, unless x is null.
  template <class Team, class Use>
  KVMELD_HD void measure(Team const& team, slot_t first, slot_t last, float const* x, Use use) const {
    std::uint32_t const d = channels();
    for_each_tile(team, first, last,
                  [&](auto const& part, slot_t s, std::uint32_t count, auto const* rows, std::size_t ld) {
                    row_measures(part, rows, ld, count, d, x, scratch_.square, scratch_.product);
                    auto const norm = [&](std::uint32_t i) {
                      return finite_norm(scratch_.square[i], d,
                                         [&](std::uint32_t c) { return to_float(rows[i * ld + c]); });
                    };
                    use(part, s, count, norm, rows, ld);
                  });
  }
  template <class T> KVMELD_HD static float to_float(T x) { return element_traits<T>::to_float(x); }

  Layout const& layout_;
  score_view const& view_;
  row_scratch const& scratch_;
  slot_t begin_, end_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
