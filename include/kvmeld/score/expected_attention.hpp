// SPDX-License-Identifier: Apache-2.0
// The attention that future queries can be expected to pay: Expected Attention.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/weighted_rows.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/kept_facts.hpp>
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

/// Expected Attention (Devoto et al., "Expected Attention: KV Cache Compression by Estimating Attention from
/// Future Queries Distribution", 2025). For every query head, `observe` keeps mean mu and covariance S of the
/// queries before their rotation, times the scale of logits. Let R be the mean of the rotations of the next
/// `future` positions. Entry i of degree n_i gets, for a query drawn from a normal distribution of that mean
/// and covariance, the expected weight
///
///     exp(mu^T R^T k_i + k_i^T R S R^T k_i / 2) n_i,
///
/// and s_i is its share of the weights of all entries, averaged over the query heads of the KV head. The
/// entry scores (s_i + epsilon) |v_i|. As in the authors' kvpress, the first `sinks` tokens stay apart: their
/// queries do not count, and their entries take no part in the shares and score as high as the best entry. An
/// entry whose weight is not finite, and queries that hold NaN or infinity, do not count. In a track that
/// observed sinks alone, all shares are equal.
///
/// The scores order entries. They see neither softcap, sink logits nor windows. Moments do not know of
/// positions, so `shift` changes nothing. After `renumber`, the entries at the new positions 0 to sinks - 1
/// are the sinks. Moments keep the queries that `truncate` forgets.
///
/// Table: 1 + d + d^2 floats per query head, for d key channels; counts are exact up to 2^24 queries. Cost,
/// per query head: d^2 multiply-adds per query observed, and as many per entry in a compression, which reads
/// the keys once per query head of the group. Scratch: 66 d floats.
struct expected_attention {
  /// How the engine rotates queries, and keys likewise. `frequencies` must be finite and lie in memory that
  /// phases can read. `map` must be null, because future positions follow one another.
  rope_params rope;
  std::uint32_t future = 512;  ///< number of next positions that queries are expected at, at least 1
  std::uint32_t sinks = 4;     ///< tokens at positions below it stay apart
  float epsilon = 0.0f;        ///< at least 0; kvpress takes 0.01 where heads share budgets
  bool keys_rotated = true;    ///< false: keys lie unrotated, as where attention_params.rope is given

  static constexpr char const* name = "expected_attention";
  static constexpr score_facts facts{&score_facts::reads_rows, &score_facts::spans_blocks};

  /// Floats of the table of a track. Per query head: a count, the mean, and the sum of x x^T over queries x
  /// minus their mean.
  std::size_t table_floats(shape const& s) const {
    return std::size_t{s.queries_per_kv_head} * floats_of_head(s.key_dim);
  }
  std::size_t scratch_bytes(shape const& s, int) const {
    std::size_t const d = s.key_dim;
    return 2 * scratch_size(d * (block + 1) * sizeof(float)) + 2 * scratch_size(block * sizeof(float)) +
           scratch_size(d * sizeof(float)) + team_sum_scratch() + rope_scratch(rope, s.key_dim);
  }

  /// Joins the moments of blocks of queries to those of the table (Chan, Golub and LeVeque, "Updating
  /// Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979, equation 2.1).
  template <class Team, class Queries>
  KVMELD_HD void absorb(Team const& team, float* table, std::uint32_t head, Queries const& queries) const {
    std::uint32_t const d = queries.channels(), n = queries.count(), ld = block + 1;
    float* const count = table + head * floats_of_head(d);
    float* const mean = count + 1;
    float* const square = mean + d;
    float* const x = team.template scratch<float>(std::size_t{d} * ld);       // [block + 1][d]
    float* const turned = team.template scratch<float>(std::size_t{d} * ld);  // [d][block + 1]
    float* const counts = team.template scratch<float>(block);
    float* const ones = team.template scratch<float>(block);
    double const* const turns = rope_table(team, rope, d);
    team.for_each(block, [&](std::uint32_t i) { ones[i] = 1.0f; });
    for (std::uint32_t first = 0; first < n; first += block) {
      std::uint32_t const rows = min_of(block, n - first);
      float const used = queries.load_unrotated(team, rope, turns, first, rows, sinks, x, counts);
      float const before = count[0];
      if (used == 0.0f) continue;
      // The distance between the two means is a row of its own.
      float const share = used / (before + used), weight = std::sqrt(before * share);
      team.for_each(d, [&](std::uint32_t c) {
        float sum = 0.0f;
        for (std::uint32_t i = 0; i < rows; ++i) sum += counts[i] != 0.0f ? x[std::size_t{i} * d + c] : 0.0f;
        float const middle = sum / used, distance = middle - mean[c];
        for (std::uint32_t i = 0; i <= rows; ++i) {
          float& to = x[std::size_t{i} * d + c];
          to = i == rows ? weight * distance : counts[i] != 0.0f ? to - middle : 0.0f;
          turned[std::size_t{c} * ld + i] = to;
        }
        mean[c] += share * distance;
      });
      team.sync();
      for (std::uint32_t a = 0; a < d; a += block) {
        add_weighted_rows(team, turned + std::size_t{a} * ld, min_of(block, d - a), ld, ones, x, d, rows + 1,
                          d, square + std::size_t{a} * d, d);
      }
      if (team.lane() == 0) count[0] = before + used;
      team.sync();
    }
  }

  template <class Team, class Rows>
  KVMELD_HD void evaluate(Team const& team, score_view const& view, Rows const& rows, float* out) const {
    std::uint32_t const n = view.length(), d = rows.keys.channels();
    span<float const> const table = view.table();
    auto const heads = static_cast<std::uint32_t>(table.size() / floats_of_head(d));
    float* const turned = block_scratch<float>(team, std::size_t{d} * (block + 1));
    float* const spread = block_scratch<float>(team, std::size_t{d} * (block + 1));
    float* const ones = block_scratch<float>(team, block);
    float* const future_turn = block_scratch<float>(team, d);
    float* const partial = team.template scratch<float>(team_partials);
    double const* const turns = rope_table(team, rope, d);
    auto const& own = block_of(team);
    own.for_each(block, [&](std::uint32_t i) { ones[i] = 1.0f; });
    team.for_each(n, [&](std::uint32_t i) { out[i] = 0.0f; });
    team.sync();
    find_future_turn(own, rope.turned_for(n, static_cast<position_t>(view.tokens())), turns, rope.pairs(d),
                     future_turn);
    auto const apart = [&](std::uint32_t i) { return std::int64_t{view.position(i)} < std::int64_t{sinks}; };
    for (std::uint32_t h = 0; h < heads; ++h) {
      float const* const count = table.data() + h * floats_of_head(d);
      float const* const mean = count + 1;
      float const* const square = mean + d;
      float const scale = count[0] > 0.0f ? 0.5f / count[0] : 0.0f;
      rows.keys.for_each_block(
          team, 0, n, [&](auto const& part, slot_t s, std::uint32_t rows_here, auto const& row) {
            turn_keys(part, view, s, rows_here, row, turns, future_turn, d, turned);
            part.for_each(rows_here * d, [&](std::uint32_t i) { spread[i] = 0.0f; });
            part.sync();
            add_weighted_rows(part, turned, rows_here, d, ones, square, d, d, d, spread, d);
            part.sync();
            part.for_each(rows_here, [&](std::uint32_t i) {
              float const* const key = turned + std::size_t{i} * d;
              float const logit = dot(mean, key, d) + scale * dot(spread + std::size_t{i} * d, key, d) +
                                  log_of_degree(view.degree(s + i));
              bool const takes_part = view.usable(s + i) && !apart(s + i) && is_finite(logit);
              view.room()[s + i] = takes_part ? logit : element_traits<float>::lowest;
            });
          });
      add_shares(team, view.room(), n, 1.0f / static_cast<float>(heads), partial, out);
    }
    rows.values.norms(team, [&](slot_t s, float norm) { out[s] = (out[s] + epsilon) * norm; });
    std::uint32_t best = 0;
    team.for_each(n, [&](std::uint32_t i) {
      if (view.usable(i) && !apart(i)) best = max_of(best, order_key(out[i]));
    });
    best = team.reduce(best, op_max{});
    team.for_each(n, [&](std::uint32_t i) {
      if (apart(i)) out[i] = best != 0 ? order_value(best) : 0.0f;
    });
    team.sync();
  }

  void tell_kept(kept_facts& to) const {
    to.add("sinks", sinks);
    to.add(rope);
  }
  std::string problem() const {
    if (future == 0) return refusal("policy", "score::expected_attention.future", future, "at least 1");
    if (!(epsilon >= 0.0f) || !is_finite(epsilon)) {
      return refusal("policy", "score::expected_attention.epsilon", epsilon, "at least 0 and finite");
    }
    return detail::part_rope_problem("score::expected_attention", rope, true, keys_rotated);
  }
  std::string problem_for(shape const& s) const {
    return detail::rope_problem("policy", rope, s.key_dim, false);
  }

private:
  static constexpr std::uint32_t block = row_scratch::block;

  KVMELD_HD static constexpr std::size_t floats_of_head(std::uint32_t d) {
    return 1 + d + std::size_t{d} * d;
  }

  /// turn[p] and turn[pairs + p] = mean of the cosines and of the sines by which pair p turns at `future`
  /// positions from `next` on. The mean of exp(i a j) over j < F is exp(i a (F - 1) / 2) sin(F a / 2) / (F
  /// sin(a / 2)); whole turns of a do not matter. Collective; barrier at the end.
  template <class Team>
  KVMELD_HD void find_future_turn(Team const& team, position_t next, double const* turns, std::uint32_t pairs,
                                  float* turn) const {
    double const f = static_cast<double>(future);
    team.for_each(pairs, [&](std::uint32_t p) {
      double const one = turns[p] - std::floor(turns[p] + 0.5);
      float const base = static_cast<float>(future) * sine_of_half_turns(one);
      float const length = base == 0.0f ? 1.0f : sine_of_half_turns(f * one) / base;
      double const middle = (static_cast<double>(next) + (f - 1.0) / 2.0) * one;
      float const angle = static_cast<float>(2.0 * pi * (middle - std::floor(middle + 0.5)));
      turn[p] = length * std::cos(angle);
      turn[pairs + p] = length * std::sin(angle);
    });
    team.sync();
  }

  static constexpr double pi = 3.14159265358979323846;

  /// sin(pi x). Reduced in double and computed in float, like rotate_pair.
  KVMELD_HD static float sine_of_half_turns(double x) {
    double const whole = std::floor(x + 0.5), pairs = std::floor(whole / 2.0);
    float const sine = std::sin(static_cast<float>(pi * (x - whole)));
    return whole != 2.0 * pairs ? -sine : sine;
  }

  /// to[i][d] = R^T k of the rows of slots s + i, rotated first if they lie unrotated: products with it are
  /// products of the key with a query turned by R. Collective; barrier at the end.
  template <class Team, class Row>
  KVMELD_HD void turn_keys(Team const& team, score_view const& view, slot_t s, std::uint32_t rows,
                           Row const& row, double const* turns, float const* turn, std::uint32_t d,
                           float* to) const {
    std::uint32_t const pairs = rope.pairs(d);
    copy_rows(team, row, rows, d, to);
    if (!keys_rotated) {
      rotate_rows(team, rope, turns, to, rows, d,
                  [&](std::uint32_t i) { return rope.turned_for(s + i, view.position(s + i)); });
    }
    team.sync();
    for (std::uint32_t i = 0; i < rows; ++i) {
      float* const key = to + std::size_t{i} * d;
      team.for_each(pairs,
                    [&](std::uint32_t p) { rotate_pair(rope, key, p, pairs, turn[p], -turn[pairs + p]); });
    }
    team.sync();
  }

  /// out[i] += part * softmax(logit)[i]. Logits that are the lowest float have no share. Collective; barrier
  /// at the end.
  template <class Team>
  KVMELD_HD static void add_shares(Team const& team, float const* logit, std::uint32_t n, float part,
                                   float* partial, float* out) {
    constexpr float none = element_traits<float>::lowest;
    std::uint32_t most = 0;
    team.for_each(n, [&](std::uint32_t i) { most = max_of(most, order_key(logit[i])); });
    float const top = order_value(team.reduce(most, op_max{}));
    auto const weight = [&](std::uint32_t i) { return logit[i] > none ? std::exp(logit[i] - top) : 0.0f; };
    float const sum = team_sum(team, n, weight, partial);
    team.for_each(n, [&](std::uint32_t i) { out[i] += sum > 0.0f ? part * (weight(i) / sum) : 0.0f; });
    team.sync();
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
