// SPDX-License-Identifier: Apache-2.0
// The scan of consecutive_threshold for one lane with kernels. It reads rows in place and remembers how far
// each set reaches, so that most products are computed once.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/identify/consecutive_scan.hpp>
#include <kvmeld/identify/listed_places.hpp>
#include <kvmeld/identify/round_view.hpp>
#include <kvmeld/identify/rows.hpp>
#include <kvmeld/identify/scan_path.hpp>
#include <kvmeld/layout/joined.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// One track's scan, with the sets of consecutive_scan. It borrows the same arrays. The candidates hold what
/// is known of entries, until marks overwrite their targets:
/// - Fixed anchors: entries target .. i - 1 have keys of `source` or more with entry i, and entry target - 1
///   has `key`, 0 if it never joins entry i. So the set of i is known for all thresholds from `key` to below
///   `source`.
/// - Chains: `key` is that of entries i and i + 1.
template <class Team, class Keys> class remembering_scan {
public:
  KVMELD_HD remembering_scan(proposal_tile<Team, Keys> const& tile, anchor_rule anchor, bool break_at_gap)
      : team_(tile.team()),
        keys_(tile.rows()),
        where_(tile.where()),
        anchor_(anchor),
        break_at_gap_(break_at_gap),
        n_(tile.state().live_count),
        d_(keys_.channels()),
        loaded_(n_),
        list_(tile.places()),
        field_(tile.live()),
        known_(tile.candidates()),
        inverse_bits_(tile.spare_words()),
        newest_(tile.centers()),
        anchor_row_(team_.template scratch<float>(std::size_t{block + 1} * d_)),
        block_(anchor_row_ + d_) {
    for (std::uint32_t i = 0; i < n_; i += block) inverse_bits_[i] = unmeasured;
    if (anchor_ == anchor_rule::fixed) {
      for (std::uint32_t i = 0; i < n_; ++i) known_[i] = itself(i);
    } else {
      for (std::uint32_t i = n_ - 1; i-- > 0;) known_[i].key = key_of(i, i + 1);
    }
  }

  /// Halves the bracket of the threshold `steps` times. Where rows outgrow the caches, the first steps are
  /// foretold, so that one pass over the rows serves them all.
  KVMELD_HD void bisect(std::uint32_t steps, std::uint32_t wanted, scan_bracket& now) {
    bool const foretold = anchor_ == anchor_rule::fixed && n_ >= least_foretold;
    std::uint32_t done = foretold ? bisect_ahead(steps, wanted, now) : 0;
    for (; done < steps; ++done) now.halve(leaves(now.middle(), wanted));
  }

  /// Writes marks[i].target = newest entry of the set of i; returns the number of sets.
  KVMELD_HD std::uint32_t mark(float theta) {
    std::uint32_t const bar = order_key(theta);
    std::uint32_t sets = 0;
    for (std::uint32_t end = n_; end > 0; ++sets) {
      std::uint32_t const newest = end - 1, oldest = oldest_of(newest, bar);
      for (std::uint32_t i = oldest; i <= newest; ++i) known_[i].target = newest;
      end = oldest;
    }
    return sets;
  }

  /// As in consecutive_scan, after mark(). A fixed anchor remembers its key with the first entry that does
  /// not join. This is the newest of the older set.
  KVMELD_HD void join_neighbours(std::uint32_t sets, std::uint32_t excess) {
    list_sets(team_, known_, n_, newest_);
    for (std::uint32_t b = 0; b + 1 < sets; ++b) {  // newest_[b + 1] > b: its key is not overwritten yet
      std::uint32_t const key =
          anchor_ == anchor_rule::fixed ? known_[newest_[b + 1]].key : key_of(newest_[b], newest_[b + 1]);
      known_[b].key = key;
      known_[b].source = 0;
    }
    join_closest(team_, known_, newest_, sets, excess);
  }

private:
  static constexpr std::uint32_t block = scan_rows(1);      ///< rows that are compared or measured at once
  static constexpr std::uint32_t window = 256;              ///< entries whose rows stay in the cache
  static constexpr std::uint32_t least_foretold = 4096;     ///< entries of a list that a sample foretells
  static constexpr std::uint32_t sample = 64;               ///< entries of a piece of the sample
  static constexpr std::uint32_t sample_pieces = 32;        ///< of them, at most
  static constexpr std::uint32_t sample_distance = 512;     ///< from one piece to the next, at least
  static constexpr std::uint32_t sample_bisections = 10;    ///< a sample does not tell more
  static constexpr std::uint32_t unmeasured = 0xffffffffu;  ///< no norm has these bits

  /// Does the first steps of the bisection with few passes over the rows: a sample foretells which middles
  /// they come to. Returns how many it has done. The outcome is that of one step after the other.
  KVMELD_HD std::uint32_t bisect_ahead(std::uint32_t steps, std::uint32_t wanted, scan_bracket& now) {
    std::uint32_t const most = min_of(steps, scan_path::max_steps);
    std::uint32_t done = 0;
    float expected = foretell(wanted);
    for (int pass = 0; pass < 2 && done < most; ++pass) {
      scan_path const path(now, expected, most - done);
      bool enough[scan_path::max_steps];
      try_at_once(path, wanted, enough);
      std::uint32_t const right = path.follow(enough, now);
      expected = path.middle[right - 1];  // the threshold lies beyond it, probably not far
      done += right;
    }
    return done;
  }

  /// Whether a threshold leaves at least `wanted` sets.
  KVMELD_HD bool leaves(float theta, std::uint32_t wanted) {
    tally c{n_, 0};
    count_down(c, order_key(theta), wanted, 0);
    return c.sets >= wanted;
  }

  /// enough[k] = leaves(path.middle[k], wanted). All thresholds go through a window of the list before they
  /// go on to the next.
  KVMELD_HD void try_at_once(scan_path const& path, std::uint32_t wanted, bool* enough) {
    tally counts[scan_path::max_steps];
    for (std::uint32_t k = 0; k < path.steps; ++k) counts[k] = {n_, 0};
    for (std::uint32_t from = n_; from > 0;) {
      from -= min_of(from, window);
      for (std::uint32_t k = 0; k < path.steps; ++k)
        count_down(counts[k], order_key(path.middle[k]), wanted, from);
    }
    for (std::uint32_t k = 0; k < path.steps; ++k) enough[k] = counts[k].sets >= wanted;
  }

  struct tally {
    std::uint32_t end;   ///< entries below are not in a set yet
    std::uint32_t sets;  ///< of the other entries
  };
  /// Counts sets until one reaches below entry `from`, or it is clear whether there are `wanted`.
  KVMELD_HD void count_down(tally& c, std::uint32_t bar, std::uint32_t wanted, std::uint32_t from) {
    while (c.end > from && c.sets < wanted && c.sets + c.end >= wanted) {
      c.end = oldest_of(c.end - 1, bar);
      ++c.sets;
    }
  }

  /// An estimate of the threshold, by bisection on a sample of the list. The last set of a piece may reach
  /// below it and counts as whole.
  KVMELD_HD float foretell(std::uint32_t wanted) {
    std::uint32_t const distance = max_of(sample_distance, n_ / sample_pieces);
    scan_bracket now;
    for (std::uint32_t i = 0; i < sample_bisections; ++i) {
      std::uint32_t const bar = order_key(now.middle());
      std::uint64_t sets = 0, seen = 0;
      for (std::uint32_t from = n_; from >= 2 * sample; from -= min_of(from, distance)) {
        std::uint32_t const first = from - sample;
        std::uint32_t end = from;
        for (; end > first; ++sets) end = reach(end - 1, bar, first - sample);
        seen += from - end;
      }
      now.halve(sets * n_ >= wanted * seen);
    }
    return now.middle();
  }

  /// The oldest entry of the set whose newest entry is `newest`.
  KVMELD_HD std::uint32_t oldest_of(std::uint32_t newest, std::uint32_t bar) {
    if (anchor_ == anchor_rule::fixed) return reach(newest, bar, 0);
    std::uint32_t oldest = newest;
    while (oldest > 0 && known_[oldest - 1].key > bar) --oldest;
    return oldest;
  }

  /// oldest_of() for a fixed anchor. A set that reaches down to entry `first` need not be followed further.
  KVMELD_HD std::uint32_t reach(std::uint32_t anchor, std::uint32_t bar, std::uint32_t first) {
    candidate& k = known_[anchor];
    if (k.source <= bar) k = itself(anchor);
    while (k.key > bar && k.target > first) extend(anchor, k, bar);
    return k.target;
  }

  /// What is known of a fixed anchor at first: it joins itself.
  KVMELD_HD static candidate itself(std::uint32_t i) { return {0xffffffffu, 0xffffffffu, i + 1}; }

  /// The entry that `key` belongs to joins the anchor, and so do older ones while their keys are above `bar`.
  KVMELD_HD void extend(std::uint32_t anchor, candidate& k, std::uint32_t bar) {
    k.source = min_of(k.source, k.key);
    --k.target;
    k.key = 0;
    // Most sets are short: a set that has grown is compared with more entries at once.
    std::uint32_t const members = anchor - k.target,
                        rows = min_of(k.target, min_of(block, max_of(4u, members))), first = k.target - rows;
    if (rows == 0) return;
    float product[block];
    multiply(anchor, first, rows, product);
    for (std::uint32_t r = rows; r-- > 0;) {
      k.key =
          list_.apart(first + r, break_at_gap_) ? 0u : order_key(cosine_of(product[r], first + r, anchor));
      if (k.key <= bar || r == 0) return;
      k.source = min_of(k.source, k.key);
      k.target = first + r;
    }
  }

  /// The key of two entries that are neighbours or the newest of neighbouring sets.
  KVMELD_HD std::uint32_t key_of(std::uint32_t older, std::uint32_t newer) {
    if (list_.apart(older, break_at_gap_)) return 0;
    float product;
    multiply(newer, older, 1, &product);
    return order_key(cosine_of(product, older, newer));
  }

  // With -ffast-math, every inlined copy of this function may round differently, and cosines that are
  // computed again would not be the same.
  [[gnu::noinline]] KVMELD_HD float cosine_of(float product, std::uint32_t i, std::uint32_t j) const {
    return cosine(product, bits_float(inverse_bits_[i]), bits_float(inverse_bits_[j]));
  }

  /// product[r] = product of the rows of entries `anchor` and first + r. Makes their norms known.
  KVMELD_HD void multiply(std::uint32_t anchor, std::uint32_t first, std::uint32_t rows, float* product) {
    // A set grows downwards without gaps, and by no more than a block: what lies above `first` is measured.
    measure(anchor);
    measure(first);
    if (loaded_ != anchor) keys_.load_tile(team_, where_, field_[anchor], 1, 0, d_, anchor_row_, d_);
    loaded_ = anchor;
    slot_t const* const slots = field_ + first;
    std::uint32_t at[block];
    for (std::uint32_t r = 0; r < rows; ++r) at[r] = slots[r] - slots[0];
    auto const listed = [&](auto const* pool, std::size_t ld) {
      listed_products(team_, anchor_row_, pool, ld, at, rows, d_, product);
    };
    if (with_stored(keys_, slots[0], at[rows - 1] + 1, listed)) return;
    load_rows(team_, keys_, where_, slots, rows, block_, d_);
    for (std::uint32_t r = 0; r < rows; ++r) at[r] = r;
    listed(block_, d_);
  }

  /// Computes the inverse norms of the block that holds entry i, unless they are known.
  KVMELD_HD void measure(std::uint32_t i) {
    std::uint32_t const first = i / block * block, rows = min_of(n_ - first, block);
    if (inverse_bits_[first] != unmeasured) return;
    float square[block];
    for (std::uint32_t r = 0, run = 0; r < rows; r += run) {
      slot_t const* const slots = field_ + first + r;
      for (run = 1; r + run < rows && slots[run] == slots[0] + run;) ++run;
      auto const measured = [&](auto const* x, std::size_t ld) {
        row_measures(team_, x, ld, run, d_, nullptr, square + r, nullptr);
      };
      if (with_stored(keys_, slots[0], run, measured)) continue;
      load_rows(team_, keys_, where_, slots, run, block_, d_);
      measured(block_, d_);
    }
    for (std::uint32_t r = 0; r < rows; ++r) inverse_bits_[first + r] = float_bits(inverse_norm(square[r]));
  }

  /// Calls use(rows, ld) with the rows of `slots` slots where they are stored. Returns false where kernels do
  /// not read them there.
  template <class Layout, class Use>
  KVMELD_HD bool with_stored(Layout const& layout, slot_t first, std::uint32_t slots, Use const& use) const {
    if constexpr (has_row_kernels<Team, Layout>::value) {
      auto const s = layout.locate(where_, first);
      bool const in_place = s.channel_stride == 1 && s.token_stride >= 0 && s.remaining >= slots;
      if (in_place) use(s.base, static_cast<std::size_t>(s.token_stride));
      return in_place;
    } else {
      return false;
    }
  }
  template <class Layout, class Use>
  KVMELD_HD bool with_stored(kvmeld::detail::joined_rows<Layout> const& rows, slot_t first,
                             std::uint32_t slots, Use const& use) const {
    return rows.count == 1 && with_stored(rows.layout, first, slots, use);
  }

  Team const& team_;
  Keys const& keys_;
  track where_;
  anchor_rule anchor_;
  bool break_at_gap_;
  std::uint32_t n_, d_;
  std::uint32_t loaded_;  ///< entry whose row is in anchor_row_
  listed_places list_;
  slot_t const* field_;
  candidate* known_;
  std::uint32_t* inverse_bits_;  ///< of measured blocks
  slot_t* newest_;
  float* anchor_row_;
  float* block_;
};

}  // namespace identify
}  // namespace KVMELD_ABI
}  // namespace kvmeld
