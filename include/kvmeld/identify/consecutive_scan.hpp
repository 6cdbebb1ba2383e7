// SPDX-License-Identifier: Apache-2.0
// The walk behind consecutive_threshold: sets of consecutive similar entries for one threshold.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/compact_indices.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/identify/listed_places.hpp>
#include <kvmeld/identify/round_view.hpp>
#include <kvmeld/identify/rows.hpp>
#include <kvmeld/identify/scan_path.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// What an entry is compared with before it joins a set.
enum class anchor_rule : std::uint8_t {
  fixed,  ///< the newest entry of the set (KVMerger's first version; the default)
  chain,  ///< its newer neighbour (the reading |i - j| = 1 of the second version)
};

/// Rows of a scan's block: one per lane. A single lane takes 16 rows at once.
KVMELD_HD constexpr std::uint32_t scan_rows(std::uint32_t lanes) { return lanes == 1 ? 16 : lanes; }
/// Scratch of a scan over rows of `dim` channels, in bytes.
KVMELD_HD constexpr std::size_t consecutive_scan_scratch(std::uint32_t dim, std::uint32_t lanes) {
  return scratch_size(std::size_t{scan_rows(lanes) + 1} * dim * sizeof(float)) +
         scratch_size(scan_rows(lanes) * sizeof(float));
}

/// newest[b] = newest entry of set b, from marks[i].target = newest entry of the set of i. Collective;
/// barrier at the end.
template <class Team>
KVMELD_HD void list_sets(Team const& team, candidate const* marks, std::uint32_t n, slot_t* newest) {
  compact_indices(
      team, n, [&](std::uint32_t i) { return marks[i].target == i; },
      [&](std::uint32_t rank, std::uint32_t i) { newest[rank] = i; });
}

/// Removes the `excess` boundaries with the highest keys. marks[b].key is the key of the boundary between
/// sets b and b + 1; all marks[b].source are 0 before. marks[i].target then is the newest entry of the joined
/// set of i. Collective; barrier at the end.
template <class Team>
KVMELD_HD void join_closest(Team const& team, candidate* marks, slot_t const* newest, std::uint32_t sets,
                            std::uint32_t excess) {
  std::uint32_t const boundaries = sets - 1;
  select_k(
      team, boundaries, excess, [&](std::uint32_t b) { return marks[b].key; },
      [&](std::uint32_t b) { marks[b].source = 1; });
  team.for_each(sets, [&](std::uint32_t b) {
    std::uint32_t last = b;
    while (last < boundaries && marks[last].source != 0) ++last;
    std::uint32_t const oldest = b == 0 ? 0 : newest[b - 1] + 1;
    for (std::uint32_t i = oldest; i <= newest[b]; ++i) marks[i].target = newest[last];
  });
  team.sync();
}

/// One track's scan. It borrows arrays of the wave until sets are linked: the spare words hold inverse norms,
/// the room for centres holds the newest entries of the sets, and the candidates hold the marks and boundary
/// keys.
template <class Team, class Keys> class consecutive_scan {
public:
  KVMELD_HD consecutive_scan(proposal_tile<Team, Keys> const& tile, anchor_rule anchor, bool break_at_gap)
      : team_(tile.team()),
        keys_(tile.rows()),
        where_(tile.where()),
        anchor_(anchor),
        break_at_gap_(break_at_gap),
        n_(tile.state().live_count),
        d_(keys_.channels()),
        list_(tile.places()),
        field_(tile.live()),
        marks_(tile.candidates()),
        inverse_bits_(tile.spare_words()),
        newest_(tile.centers()),
        reference_(team_.template scratch<float>(std::size_t{scan_rows(team_.lanes()) + 1} * d_)),
        block_(reference_ + d_) {
    std::uint32_t const most = scan_rows(team_.lanes());
    float* const norms = team_.template scratch<float>(most);
    for (std::uint32_t i = 0; i < n_; i += most) {
      std::uint32_t const rows = min_of(n_ - i, most);
      load_rows(team_, keys_, where_, field_ + i, rows, block_, d_);
      team_.sync();
      inverse_norms(team_, block_, rows, d_, norms);
      team_.for_each(rows, [&](std::uint32_t r) { inverse_bits_[i + r] = float_bits(norms[r]); });
      team_.sync();
    }
  }

  /// Number of sets for this threshold.
  KVMELD_HD std::uint32_t count(float theta) {
    return walk(theta, [](std::uint32_t, std::uint32_t) {});
  }

  /// Halves the bracket of the threshold `steps` times.
  KVMELD_HD void bisect(std::uint32_t steps, std::uint32_t wanted, scan_bracket& now) {
    for (std::uint32_t i = 0; i < steps; ++i) now.halve(count(now.middle()) >= wanted);
  }

  /// Writes marks[i].target = newest entry of the set of i; returns the number of sets.
  KVMELD_HD std::uint32_t mark(float theta) {
    std::uint32_t const sets = walk(theta, [&](std::uint32_t oldest, std::uint32_t newest) {
      team_.for_each(newest - oldest + 1, [&](std::uint32_t i) { marks_[oldest + i].target = newest; });
    });
    team_.sync();
    return sets;
  }

  /// Removes the `excess` boundaries between neighbouring sets whose newest entries are most similar. A gap,
  /// or a row with NaN or infinity, keeps its neighbours apart: such a boundary has key 0.
  KVMELD_HD void join_neighbours(std::uint32_t sets, std::uint32_t excess) {
    list_sets(team_, marks_, n_, newest_);
    for (std::uint32_t b = 0; b + 1 < sets; ++b) {
      bool const gap = list_.apart(newest_[b], break_at_gap_);
      load_one(newest_[b], reference_);
      load_one(newest_[b + 1], block_);
      team_.sync();
      if (team_.lane() == 0) {
        marks_[b].key = gap ? 0u : order_key(similarity(reference_, newest_[b], block_, newest_[b + 1]));
        marks_[b].source = 0;
      }
      team_.sync();
    }
    join_closest(team_, marks_, newest_, sets, excess);
  }

private:
  /// Visits sets [oldest, newest], the newest set first. Each lane tests one older entry at a time. The first
  /// entry that fails ends the set, so the result does not depend on the number of lanes.
  template <class Visit> KVMELD_HD std::uint32_t walk(float theta, Visit visit) {
    std::uint32_t const bar = order_key(theta);
    std::uint32_t sets = 0;
    for (std::uint32_t end = n_; end > 0;) {  // entries below `end` are not in a set yet
      std::uint32_t const newest = end - 1;
      load_one(newest, reference_);
      team_.sync();
      std::uint32_t oldest = newest;
      bool open = true;
      while (open && oldest > 0) {
        std::uint32_t const rows = min_of(oldest, team_.lanes());
        for (std::uint32_t r = 0; r < rows; ++r) load_one(oldest - 1 - r, block_ + std::size_t{r} * d_);
        team_.sync();
        std::uint32_t joined = rows;
        if (team_.lane() < rows && !joins(oldest - 1 - team_.lane(), newest, oldest, bar))
          joined = team_.lane();
        joined = team_.reduce(joined, op_min{});
        open = joined == rows;
        oldest -= joined;
        if (open &&
            anchor_ == anchor_rule::chain) {  // the oldest member is what the next block compares with
          team_.for_each(d_,
                         [&](std::uint32_t c) { reference_[c] = block_[std::size_t{rows - 1} * d_ + c]; });
        }
        team_.sync();
      }
      visit(oldest, newest);
      ++sets;
      end = oldest;
    }
    return sets;
  }

  /// Whether entry i, row `lane` of the block, joins the set whose members so far are [oldest, newest].
  KVMELD_HD bool joins(std::uint32_t i, std::uint32_t newest, std::uint32_t oldest, std::uint32_t bar) const {
    if (list_.apart(i, break_at_gap_)) return false;
    float const* const row = block_ + std::size_t{team_.lane()} * d_;
    if (anchor_ == anchor_rule::fixed) return order_key(similarity(row, i, reference_, newest)) > bar;
    float const* const newer = i + 1 == oldest ? reference_ : row - d_;
    return order_key(similarity(row, i, newer, i + 1)) > bar;
  }

  // The passes that count sets and the pass that marks them have to agree. With -ffast-math, every inlined
  // copy of these functions may round differently. So there is one copy of each.
  [[gnu::noinline]] KVMELD_HD float cosine_of(float product, std::uint32_t i, std::uint32_t j) const {
    return cosine(product, bits_float(inverse_bits_[i]), bits_float(inverse_bits_[j]));
  }
  [[gnu::noinline]] KVMELD_HD float similarity(float const* a, std::uint32_t i, float const* b,
                                               std::uint32_t j) const {
    std::uint32_t const first = 0;
    float product;
    listed_products(team_, a, b, d_, &first, 1, d_, &product);
    return cosine_of(product, i, j);
  }
  KVMELD_HD void load_one(std::uint32_t i, float* to) const {
    keys_.load_tile(team_, where_, field_[i], 1, 0, d_, to, d_);
  }

  Team const& team_;
  Keys const& keys_;
  track where_;
  anchor_rule anchor_;
  bool break_at_gap_;
  std::uint32_t n_, d_;
  listed_places list_;
  slot_t const* field_;
  candidate* marks_;
  std::uint32_t* inverse_bits_;
  slot_t* newest_;
  float* reference_;
  float* block_;
};

}  // namespace identify
}  // namespace KVMELD_ABI
}  // namespace kvmeld
