// SPDX-License-Identifier: Apache-2.0
// What the last queries look at, less what other keys resemble: R-KV.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/softmax.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/score/last_queries.hpp>
#include <kvmeld/score/pooling.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/score/score_view.hpp>
#include <kvmeld/score/track_rows.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score {

/// R-KV (Cai et al., "R-KV: Redundancy-aware KV Cache Compression for Reasoning Models", 2025): entry i
/// scores lambda z_i - (1 - lambda) r_i.
///
/// z_i is the attention of the last `window` queries: the largest logit over the query heads of the KV head,
/// softmax over the entries before the window, the mean over the queries, and a maximum over `pool.kernel`
/// neighbours. r is the softmax over all entries of how much a key resembles the others: r_j is made from the
/// mean over i of cos(k_i, k_j). For each i, the last entry j with a cosine above `alike` does not count, so
/// the newest of several equal keys is not redundant. Entries of the window's own tokens score as high as the
/// best other entry; the paper keeps them.
///
/// The order of steps, and the defaults but for lambda, are those of the authors' code; lambda is the
/// paper's. There, a key that resembles no other strikes out its cosine with entry 0; here it strikes out
/// none. The paper has no degrees: here logits contain the log degree, and every entry counts once in r. Keys
/// are compared as they lie, with their rotation. A key of zeros has cosine 0.
///
/// Cost per track of n entries: 2 n d window multiply-adds for each query head, 3 n d for the sums of
/// cosines, and at most n^2 d for the cosines above `alike`, in tiles of 32 x 32 from the newest keys on. 32
/// keys are done when each has found its last alike key. No matrix of n x n is stored. Scratch: 32 (d + 75) +
/// 98 window floats.
struct redundancy : last_queries {
  float lambda = 0.1f;                 ///< share of attention in the score, 0 to 1
  float alike = 0.5f;                  ///< keys with a cosine above it are alike
  pooling pool{7, pooling_mode::max};  ///< of z

  static constexpr char const* name = "redundancy";

  std::size_t scratch_bytes(shape const& s, int) const {
    std::size_t const rows = scratch_size(std::size_t{block} * s.key_dim * sizeof(float));
    std::size_t const tile = scratch_size(std::size_t{block} * block * sizeof(float));
    std::size_t const logits = scratch_size(std::size_t{window} * block * sizeof(float));
    std::size_t const lists =
        3 * scratch_size(block * sizeof(float)) + 2 * scratch_size(team_rows * sizeof(float));
    std::size_t const sums = scratch_size(window * sizeof(float)) +
                             scratch_size(std::size_t{row_ranges::most} * window * sizeof(float));
    return rows + tile + lists + 2 * logits + 2 * sums + team_sum_scratch() + key_tile_bytes(s);
  }

  template <class Team, class Rows>
  KVMELD_HD void evaluate(Team const& team, score_view const& view, Rows const& rows, float* out) const {
    std::uint32_t const n = view.length();
    float* const partial = team.template scratch<float>(team_partials);
    add_likeness(team, view, rows.keys, out);
    soften_likeness(team, view, out, partial);
    position_t const end = add_attention(team, view, rows.keys, out);
    // Entries of the window's own tokens.
    std::uint32_t best = 0;
    auto const own = [&](std::uint32_t i) { return view.position(i) >= end; };
    team.for_each(n, [&](std::uint32_t i) {
      if (view.usable(i) && !own(i)) best = max_of(best, order_key(out[i]));
    });
    best = team.reduce(best, op_max{});
    team.for_each(n, [&](std::uint32_t i) {
      if (own(i)) out[i] = order_value(best);
    });
    team.sync();
  }

  std::string problem() const {
    if (!is_within(static_cast<double>(lambda), 0.0, 1.0)) {
      return refusal("policy", "score::redundancy.lambda", lambda, "0 to 1, a share");
    }
    if (!is_finite(alike)) return refusal("policy", "score::redundancy.alike", alike, "finite");
    return first_problem({last_queries::problem(), pool.problem()});
  }

private:
  static constexpr std::uint32_t block = row_scratch::block;
  static constexpr std::uint32_t team_rows = most_blocks_of_team * block;  // that a team compares at a time

  /// out[j] = the sum over i != j of cos(k_i, k_j), without the cosines that are struck out. Each sum of
  /// cosines is the product of a direction with the sum of all directions. Uses the view's room. Collective;
  /// barrier at the end.
  template <class Team, class Keys>
  KVMELD_HD void add_likeness(Team const& team, score_view const& view, Keys const& keys, float* out) const {
    std::uint32_t const n = view.length(), d = keys.channels();
    float* const mine = block_scratch<float>(team, std::size_t{block} * d);
    float* const product = block_scratch<float>(team, std::size_t{block} * block);
    float* const square = block_scratch<float>(team, block);
    float* const last_cosine = block_scratch<float>(team, block);
    slot_t* const last = block_scratch<slot_t>(team, block);
    found_rows const found{block_scratch<slot_t>(team, team_rows), block_scratch<float>(team, team_rows)};
    float* const inverse = view.room();
    keys.for_each_tile(
        team, 0, n, [&](auto const& part, slot_t s, std::uint32_t count, auto const* rows, std::size_t ld) {
          row_measures(part, rows, ld, count, d, nullptr, square, nullptr);
          part.for_each(count, [&](std::uint32_t i) {
            bool const counts = view.usable(s + i) && is_finite(square[i]);
            inverse[s + i] = counts ? inverse_norm(square[i]) : 0.0f;
            out[s + i] = 0.0f;
          });
        });
    keys.weighted_sum(
        team, [&](slot_t s, float) { return inverse[s]; }, mine);
    keys.products(team, mine, [&](slot_t s, float, float sum) {
      if (inverse[s] > 0.0f) out[s] = sum * inverse[s] - 1.0f;
    });
    // Every block of the team finds the last alike entries of `block` others at a time.
    auto const& own = block_of(team);
    block_place const place = place_of_block(team);
    for (slot_t round = 0; round < n; round += place.count * block) {
      slot_t const first = round + place.index * block;
      std::uint32_t const here = first < n ? min_of(block, n - first) : 0;
      keys.for_each_block(own, first, first + here,
                          [&](auto const& part, slot_t, std::uint32_t count, auto const& row) {
                            copy_rows(part, row, count, d, mine);
                            part.for_each(count, [&](std::uint32_t i) { last[i] = n; });
                          });
      // From the last tile on, until every row has found its last entry that is alike.
      std::uint32_t open = here;
      for (slot_t tiles = ceil_div(n, block); tiles > 0 && open != 0; --tiles) {
        slot_t const begin = (tiles - 1) * block;
        keys.for_each_tile(
            own, begin, min_of(n, begin + block),
            [&](auto const& part, slot_t s, std::uint32_t count, auto const* rows, std::size_t ld) {
              row_products(part, mine, here, d, rows, count, ld, d, product, block);
              part.for_each(here, [&](std::uint32_t i) {
                if (last[i] == n)
                  find_last(inverse, first + i, s, count, product + i * block, last + i, last_cosine + i);
              });
            });
        open = 0;
        own.for_each(here,
                     [&](std::uint32_t i) { open |= last[i] == n && inverse[first + i] > 0.0f ? 1u : 0u; });
        open = own.reduce(open, op_max{});
      }
      std::uint32_t const all = min_of(place.count * block, n - round);
      team.sync();
      own.for_each(all, [&](std::uint32_t i) {
        found.last[i] = in_block(team, last, i / block)[i % block];
        found.cosine[i] = in_block(team, last_cosine, i / block)[i % block];
      });
      own.sync();
      team.for_each(all, [&](std::uint32_t i) { strike_out(found, i, all, n, out); });
      team.sync();
    }
  }

  /// What the blocks of a team found for entries that follow one another.
  struct found_rows {
    slot_t* last;   ///< the last entry that is alike; n: none
    float* cosine;  ///< of the two
  };
  /// Takes all cosines with the same last entry as entry `i` of `count` from out[last], in order, if `i` is
  /// the first of them.
  KVMELD_HD static void strike_out(found_rows const& found, std::uint32_t i, std::uint32_t count, slot_t n,
                                   float* out) {
    slot_t const last = found.last[i];
    if (last == n) return;
    for (std::uint32_t j = 0; j < i; ++j) {
      if (found.last[j] == last) return;
    }
    float rest = out[last];
    for (std::uint32_t j = i; j < count; ++j) rest -= found.last[j] == last ? found.cosine[j] : 0.0f;
    out[last] = rest;
  }

  /// Looks for the last of the entries s + j, j < count, whose cosine with entry `own` is above `alike`.
  KVMELD_HD void find_last(float const* inverse, slot_t own, slot_t s, std::uint32_t count,
                           float const* product, slot_t* last, float* last_cosine) const {
    auto const cosine_with = [&](std::uint32_t j) {
      return cosine(product[j], inverse[own], inverse[s + j]);
    };
    std::uint32_t any = 0;
    for (std::uint32_t j = 0; j < count; ++j) any |= cosine_with(j) > alike ? 1u : 0u;
    for (std::uint32_t j = count; any != 0 && j-- > 0;) {
      float const x = cosine_with(j);
      if (!(x > alike) || s + j == own || inverse[own] == 0.0f || inverse[s + j] == 0.0f) continue;
      *last = s + j;
      *last_cosine = x;
      return;
    }
  }

  /// out[j] = -(1 - lambda) softmax of out[j] / n. Collective; barrier at the end.
  template <class Team>
  KVMELD_HD void soften_likeness(Team const& team, score_view const& view, float* out, float* partial) const {
    std::uint32_t const n = view.length();
    // Means are cosines, so that no exponential overflows.
    auto const weight = [&](std::uint32_t j) {
      return view.usable(j) ? std::exp(out[j] / static_cast<float>(n)) : 0.0f;
    };
    float const total = team_sum(team, n, weight, partial);
    team.for_each(
        n, [&](std::uint32_t j) { out[j] = total > 0.0f ? (lambda - 1.0f) * (weight(j) / total) : 0.0f; });
    team.sync();
  }

  /// Adds lambda z. Returns the position from which on entries belong to the window. Collective; barrier at
  /// the end.
  template <class Team, class Keys>
  KVMELD_HD position_t add_attention(Team const& team, score_view const& view, Keys const& keys,
                                     float* out) const {
    std::uint32_t const n = view.length(), d = keys.channels(), group = view.queries_per_kv_head();
    float* const logits = block_scratch<float>(team, std::size_t{window} * block);
    float* const of_head = block_scratch<float>(team, std::size_t{window} * block);
    float* const highest = block_scratch<float>(team, window);
    float* const sum = block_scratch<float>(team, window);
    float* const range_highest = team.template scratch<float>(std::size_t{row_ranges::most} * window);
    float* const range_sum = team.template scratch<float>(std::size_t{row_ranges::most} * window);
    key_tile const scratch = key_scratch(team, d);
    auto const first = queries_of(view, 0, d);
    std::uint32_t const count = first.count();
    if (count == 0) return static_cast<position_t>(view.tokens());
    position_t const end = first.position(0);
    // logits[q][j] of a block: the largest over the heads.
    auto const find_logits = [&](auto const& part, slot_t s, std::uint32_t columns, auto const* rows,
                                 std::size_t ld) {
      for (std::uint32_t h = 0; h < group; ++h) {
        queries_of(view, h, d).products(part, rows, ld, columns, of_head, block);
        part.for_each(count * block, [&](std::uint32_t m) {
          std::uint32_t const j = m % block;
          if (j >= columns) return;
          bool const before = view.position(s + j) < end;
          float const x = before ? logit(view, s + j, end, of_head[m]) : element_traits<float>::lowest;
          logits[m] = h == 0 ? x : max_of(logits[m], x);
        });
        part.sync();
      }
    };
    row_ranges const ranges(n);
    ranges.share(team, [&](auto const& own, std::uint32_t r, slot_t begin, slot_t stop) {
      own.for_each(count, [&](std::uint32_t q) { sum[q] = 0.0f; });
      own.sync();
      for_each_key_tile(
          own, view, keys, scratch, begin, stop,
          [&](auto const& part, slot_t s, std::uint32_t columns, auto const* rows, std::size_t ld) {
            find_logits(part, s, columns, rows, ld);
            part.for_each(count, [&](std::uint32_t q) {
              soften(part, logits + q * block, nullptr, columns, highest + q, sum + q, s != begin);
            });
          });
      own.for_each(count, [&](std::uint32_t q) {
        range_highest[r * window + q] = highest[q];
        range_sum[r * window + q] = sum[q];
      });
      own.sync();
    });
    team.sync();
    auto const& own = block_of(team);
    own.for_each(count, [&](std::uint32_t q) {
      float most = range_highest[q];
      for (std::uint32_t r = 1; r < ranges.count; ++r) most = max_of(most, range_highest[r * window + q]);
      highest[q] = most;
      sum[q] = ordered_sum(ranges.count, [&](std::uint32_t r) {
        return range_sum[r * window + q] * std::exp(range_highest[r * window + q] - most);
      });
    });
    own.sync();
    float* const attention = view.room();
    for_each_key_tile(
        team, view, keys, scratch, 0, n,
        [&](auto const& part, slot_t s, std::uint32_t columns, auto const* rows, std::size_t ld) {
          find_logits(part, s, columns, rows, ld);
          part.for_each(columns, [&](std::uint32_t j) {
            float total = 0.0f;
            for (std::uint32_t q = 0; q < count; ++q) {
              float const x = logits[q * block + j];
              if (x > element_traits<float>::lowest) total += std::exp(x - highest[q]) / sum[q];
            }
            attention[s + j] = total / static_cast<float>(count);
          });
        });
    team.for_each(n, [&](std::uint32_t i) {
      out[i] += lambda * pool.at(i, n, [&](std::uint32_t j) { return attention[j]; });
    });
    team.sync();
    return end;
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
