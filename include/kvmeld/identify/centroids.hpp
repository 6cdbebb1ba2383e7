// SPDX-License-Identifier: Apache-2.0
// Entries that are not kept whole become centroids: k-means on keys, within stretches of a track.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/identify/rows.hpp>
#include <kvmeld/queries/rope.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// The live entries of a track become as many clusters as the budget leaves room for: k-means (Lloyd, "Least
/// Squares Quantization in PCM", 1982) on keys, each entry with its degree as weight. Where `rope` says how
/// keys lie rotated, they are compared as they were before; entries of like meaning are then alike wherever
/// they stand, and a compressed cache is nearer to the full one (docs/real_models.md). They merge as they
/// lie. The list of live entries is cut into stretches of `chunk` neighbours, so that the cost is linear in
/// their number; a stretch gets its share of the clusters. Seeds lie at equal strides in a stretch. After
/// `steps` steps every entry goes to the nearest mean (ties to the earlier one). A cluster that ended empty
/// takes the entry that is farthest from its own mean. The entry nearest to the mean of a cluster is the
/// pivot of the set (the oldest of those that are as near, within a thousandth: two entries are always as
/// near as each other), and the merge function makes the centroid: merge::score_weighted
/// or, where scores only order entries, merge::degree_weighted.
///
/// Best behind a selector that keeps the entries with the best scores whole, and leaves a share of the budget
/// for centroids.
///
/// The budget is met for any rows, as long as one entry may merge; rows with NaN or infinity stay. Cost: per
/// entry, steps + 2 times the number of clusters of its stretch times key channels, and a rotation, on teams
/// of several lanes as often. Scratch: the rows of a stretch on one lane, 32 rows on others, and 256 means.
/// Heads that share a plan are turned back by the positions of the first of them. Results depend neither on
/// lanes nor on blocks; tuned forms of the host may fuse multiply and add (row_products), so that entries
/// between two means may go to the other one.
struct centroids {
  std::uint32_t chunk = 1024;  ///< entries of a stretch, neighbours in the live-slot list; at least 2
  std::uint32_t steps = 6;     ///< times that means are computed
  /// How the engine rotated the keys that it stored; inactive: they are compared as they lie. `frequencies`
  /// and `map` lie in memory that phases can read.
  rope_params rope{};

  static constexpr char const* name = "centroids";
  static constexpr identify_facts facts{&identify_facts::meets_budget, &identify_facts::fills_budget,
                                        &identify_facts::needs_keys};
  static constexpr std::uint32_t most = 128;      ///< clusters of a stretch; with more, stretches are shorter
  static constexpr std::uint32_t tile_rows = 32;  ///< entries that are compared together

  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, min_of(most, chunk)); }
  std::size_t scratch_bytes(shape const& s, int lanes) const {
    std::size_t const row = s.key_dim * sizeof(float);
    return 2 * scratch_size(most * row) + 2 * scratch_size(most * sizeof(float)) +
           scratch_size(rows_at_once(static_cast<std::uint32_t>(lanes)) * row) +
           scratch_size(std::size_t{tile_rows} * most * sizeof(float)) +
           2 * scratch_size(most * sizeof(std::uint32_t)) + rope_scratch(rope, s.key_dim);
  }

  template <class View> KVMELD_HD void propose(View const& tile) const {
    auto const& team = tile.team();
    stretch const part = stretch_of(tile.state(), tile.index());
    if (part.clusters == 0) return;
    auto const& keys = tile.rows();
    track const where = tile.where();
    std::uint32_t const d = keys.channels(), n = part.count, m = part.clusters;
    slot_t const* const slots = tile.live() + part.begin;
    candidate* const out = tile.candidates() + part.begin;  // target: number of the cluster, until the end
    float* const mean = team.template scratch<float>(std::size_t{most} * d);
    float* const sum = team.template scratch<float>(std::size_t{most} * d);
    float* const weight = team.template scratch<float>(most);
    float* const half_square = team.template scratch<float>(most);  // of the square of a mean
    std::uint32_t const room = rows_at_once(team.lanes());
    bool const keeps = n <= room;  // all rows, from the first pass to the last
    float* const held = team.template scratch<float>(std::size_t{room} * d);
    float* const product = team.template scratch<float>(std::size_t{tile_rows} * most);
    std::uint32_t* const size = team.template scratch<std::uint32_t>(most);
    std::uint32_t* const pivot = team.template scratch<std::uint32_t>(most);
    double const* const turns = rope_table(team, rope, tile.ledger().extent.key_dim);
    entry_indices const in_ledger = tile.ledger().from(where);
    auto const degree = [&](std::uint32_t i) { return tile.ledger().degree[in_ledger(slots[i])]; };
    // Turns rows[count][d] back, of which row i is that of slot_of(i), and its heads lie side by side.
    std::uint32_t const dim = tile.ledger().extent.key_dim, heads = d / dim;
    auto const turn_back = [&](float* to, std::uint32_t count, auto slot_of) {
      team.sync();
      rotate_rows(team, rope, turns, to, count * heads, dim, [&](std::uint32_t i) {
        slot_t const s = slot_of(i / heads);
        return -rope.turned_for(s, tile.ledger().position[in_ledger(s)]);
      });
    };
    auto const halve = [&] {
      row_measures(team, mean, d, m, d, nullptr, half_square, nullptr);
      team.for_each(m, [&](std::uint32_t j) { half_square[j] *= 0.5f; });
      team.sync();
    };
    // Calls with_block(first, count, rows) for blocks of entries whose rows and nearest means are known.
    auto const assign = [&](bool loads, auto with_block) {
      for (std::uint32_t first = 0; first < n; first += tile_rows) {
        std::uint32_t const count = min_of(tile_rows, n - first);
        float* const rows = held + (keeps ? std::size_t{first} * d : 0);
        if (loads || !keeps) {
          load_rows(team, keys, where, slots + first, count, rows, d);
          turn_back(rows, count, [&](std::uint32_t i) { return slots[first + i]; });
        }
        row_products(team, rows, count, d, mean, m, d, d, product, most);
        team.for_each(count, [&](std::uint32_t i) {
          out[first + i] = {0, slots[first + i], nearest_of(product + std::size_t{i} * most, half_square, m)};
        });
        team.sync();
        with_block(first, count, rows);
        team.sync();
      }
    };
    auto const seed = [&](std::uint32_t j) { return slots[std::uint64_t{j} * n / m]; };
    for (std::uint32_t j = 0; j < m; ++j)
      keys.load_tile(team, where, seed(j), 1, 0, d, mean + std::size_t{j} * d, d);
    turn_back(mean, m, seed);
    for (std::uint32_t step = 0; step < steps; ++step) {
      halve();
      team.for_each(m * d, [&](std::uint32_t i) { sum[i] = 0.0f; });
      team.for_each(m, [&](std::uint32_t j) { weight[j] = 0.0f; });
      team.sync();
      assign(step == 0, [&](std::uint32_t first, std::uint32_t count, float const* rows) {
        auto const own = contiguous_range(team, d + 1);  // channels of this lane; the last one counts
        for (std::uint32_t i = 0; i < count; ++i) {
          std::uint32_t const j = out[first + i].target;
          float const w = degree(first + i);
          float const* const x = rows + std::size_t{i} * d;
          float* const to = sum + std::size_t{j} * d;
          for (std::uint32_t c = own.begin; c < min_of(own.end, d); ++c) to[c] += w * x[c];
          if (own.end == d + 1) weight[j] += w;
        }
      });
      team.for_each(m * d, [&](std::uint32_t i) {
        float const w = weight[i / d];
        if (w > 0.0f) mean[i] = sum[i] / w;
      });
      team.sync();
    }
    halve();
    assign(steps == 0, [&](std::uint32_t first, std::uint32_t count, float const* rows) {
      team.for_each(count, [&](std::uint32_t i) {
        float const* const x = rows + std::size_t{i} * d;
        float const* const c = mean + std::size_t{out[first + i].target} * d;
        out[first + i].key =
            order_key(ordered_sum(d, [&](std::uint32_t k) { return (x[k] - c[k]) * (x[k] - c[k]); }));
      });
    });
    fill_empty(team, out, n, size, m);
    std::uint32_t* const least = size;
    auto const own = contiguous_range(team, m);  // clusters of this lane
    auto const of_own = [&](auto with) {
      for (std::uint32_t i = 0; i < n; ++i) {
        std::uint32_t const j = out[i].target;
        if (own.begin <= j && j < own.end) with(i, j);
      }
    };
    for (std::uint32_t j = own.begin; j < own.end; ++j) least[j] = pivot[j] = none;
    of_own([&](std::uint32_t i, std::uint32_t j) { least[j] = min_of(least[j], out[i].key); });
    of_own([&](std::uint32_t i, std::uint32_t j) {
      bool const near = out[i].key == least[j] || order_value(out[i].key) <= order_value(least[j]) * as_near;
      if (near && pivot[j] == none) pivot[j] = slots[i];
    });
    team.sync();
    team.for_each(n, [&](std::uint32_t i) { out[i].target = pivot[out[i].target]; });
  }

  template <class Round> KVMELD_HD void admit(Round& round) const {
    candidate const* const list = round.candidates();
    if (round.excess() == 0) return;
    round.for_each(round.live(), [&](std::uint32_t i) {
      if (list[i].target != list[i].source) round.merge_slot(list[i].source, list[i].target);
    });
  }

  std::string problem() const {
    if (chunk < 2) return refusal("policy", "identify::centroids.chunk", chunk, "at least 2");
    return kvmeld::detail::part_rope_problem("identify::centroids", rope, false, true);
  }
  std::string problem_for(shape const& s) const {
    return kvmeld::detail::rope_problem("policy", rope, s.key_dim, false);
  }

private:
  /// Rows that scratch holds. A single lane, as on a host, holds those of a stretch, so that it loads and
  /// turns them once.
  KVMELD_HD std::uint32_t rows_at_once(std::uint32_t lanes) const {
    std::uint32_t const entries = min_of(chunk, 2048u);
    return lanes == 1 ? max_of(tile_rows, entries + entries / 8) : tile_rows;
  }
  static constexpr float as_near = 1.001f;  ///< of squared distances
  static constexpr std::uint32_t none = 0xffffffffu;

  /// The mean with the largest product less half of its square, which is the nearest one; of equals the
  /// first.
  KVMELD_HD static std::uint32_t nearest_of(float const* product, float const* half_square, std::uint32_t m) {
    constexpr std::uint32_t wide = 8;  // means that are compared side by side, so that hosts use vectors
    float top[wide];
    std::uint32_t at[wide];
    for (std::uint32_t k = 0; k < wide; ++k) {
      top[k] = element_traits<float>::lowest;
      at[k] = 0;
    }
    auto const compare = [&](std::uint32_t k, std::uint32_t j) {
      float const x = product[j] - half_square[j];
      bool const more = x > top[k];
      top[k] = more ? x : top[k];
      at[k] = more ? j : at[k];
    };
    std::uint32_t const whole = m / wide * wide;
    for (std::uint32_t j = 0; j < whole; j += wide)
      for (std::uint32_t k = 0; k < wide; ++k) compare(k, j + k);
    for (std::uint32_t k = 0; k < wide; ++k)
      if (whole + k < m) compare(k, whole + k);
    std::uint32_t best = 0;
    for (std::uint32_t k = 1; k < wide; ++k)
      if (top[k] > top[best] || (top[k] == top[best] && at[k] < at[best])) best = k;
    return at[best];
  }

  /// A stretch of the live-slot list.
  struct stretch {
    std::uint32_t begin, count, clusters;  ///< its first entry, its entries, and the clusters they become
  };

  /// Stretch `index` of a track; without clusters behind the last one. Each stretch has at least as many
  /// entries as clusters, of which it has 1 to `most`.
  KVMELD_HD stretch stretch_of(track_state const& s, std::uint32_t index) const {
    std::uint32_t const n = s.live_count;
    if (n == 0 || s.excess() == 0) return {0, 0, 0};
    std::uint32_t const m = n > s.excess() ? n - s.excess() : 1;
    std::uint32_t const parts = min_of(m, max_of(ceil_div(n, chunk), ceil_div(m, min_of(most, chunk))));
    if (index >= parts) return {0, 0, 0};
    auto const cluster = [&](std::uint32_t i) {
      return static_cast<std::uint32_t>(std::uint64_t{i} * m / parts);
    };
    auto const entry = [&](std::uint32_t j) {
      return static_cast<std::uint32_t>((std::uint64_t{j} * n + m - 1) / m);
    };
    std::uint32_t const first = cluster(index), last = cluster(index + 1);
    return {entry(first), entry(last) - entry(first), last - first};
  }

  /// Gives every empty cluster the entry that is farthest from its own mean, of clusters with two or more.
  /// Collective; barrier at the beginning and at the end.
  template <class Team>
  KVMELD_HD static void fill_empty(Team const& team, candidate* list, std::uint32_t n, std::uint32_t* size,
                                   std::uint32_t m) {
    team.for_each(m, [&](std::uint32_t j) { size[j] = 0; });
    team.sync();
    team.for_each(n, [&](std::uint32_t i) { team.fetch_add(&size[list[i].target], 1); });
    team.sync();
    if (team.lane() == 0) {
      for (std::uint32_t j = 0; j < m; ++j) {
        if (size[j] != 0) continue;
        std::uint32_t farthest = n;
        for (std::uint32_t i = 0; i < n; ++i) {
          if (size[list[i].target] < 2) continue;
          if (farthest == n || list[i].key > list[farthest].key) farthest = i;
        }
        --size[list[farthest].target];
        list[farthest].target = j;
        list[farthest].key = 0;
        size[j] = 1;
      }
    }
    team.sync();
  }
};

}  // namespace identify
}  // namespace KVMELD_ABI
}  // namespace kvmeld
