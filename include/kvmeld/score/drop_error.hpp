// SPDX-License-Identifier: Apache-2.0
// How much an output changes if an entry is dropped: DropKV.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/weighted_rows.hpp>
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

/// DropKV (Zhang et al., "DropKV: Decoupling Residual-Output Perturbation for Near-Optimal KV-Cache
/// Eviction", 2026). With p_i the probability of entry i for a query, o the query's output and v_i the value,
/// the entry scores
///
///     sum over the last `window` queries of (p_i / (1 - p_i))^2 |v_i - o|^2,
///
/// averaged over the query heads of the KV head, then pooled. A term is the exact squared change of the
/// output if entry i alone is dropped. The most probable entry of a query has the same term in another form:
/// p_i^2 |v_i - o*|^2, where o* is the output of the other entries, or 0 if there are none. So the change is
/// exact too where p_i nears 1; the authors' code adds 1e-6 to 1 - p_i instead. As in that code, the pool is
/// a mean over 11 neighbours with zeros beyond the ends. Entries of degree n count as n tokens that are
/// dropped together.
///
/// Cost per entry, query head and query: 3 d + 2 v multiply-adds; d and v are the channels of keys and
/// values. Reads keys three times and values twice per query head. Scratch: window (5 v + 75) floats.
struct drop_error : last_queries {
  pooling pool{11, pooling_mode::zero_padded};  ///< of the changes

  static constexpr char const* name = "drop_error";

  std::size_t scratch_bytes(shape const& s, int) const {
    return 2 * scratch_size(std::size_t{window} * block * sizeof(float)) +
           scratch_size(row_ranges::levels * sums_of(s.value_dim) * sizeof(float)) +
           5 * scratch_size(window * sizeof(float)) + key_tile_bytes(s);
  }

  template <class Team, class Rows>
  KVMELD_HD void evaluate(Team const& team, score_view const& view, Rows const& rows, float* out) const {
    std::uint32_t const n = view.length(), d = rows.keys.channels(), group = view.queries_per_kv_head();
    std::uint32_t const dv = rows.values.channels();
    constexpr float none = element_traits<float>::lowest;
    float* const logits = block_scratch<float>(team, std::size_t{window} * block);
    float* const terms = block_scratch<float>(team, std::size_t{window} * block);
    float* const sums = block_scratch<float>(team, row_ranges::levels * sums_of(dv));
    slot_t* const top = block_scratch<slot_t>(team, window);      // the most probable entry
    slot_t* const own_top = block_scratch<slot_t>(team, window);  // among the entries of this block
    float* const highest = block_scratch<float>(team, window);
    float* const own_highest = block_scratch<float>(team, window);
    float* const ones = block_scratch<float>(team, window);
    key_tile const scratch = key_scratch(team, d);
    auto const& own = block_of(team);
    block_place const mine = place_of_block(team);
    float* const change = out;
    team.for_each(n, [&](std::uint32_t i) { change[i] = 0.0f; });
    own.for_each(window, [&](std::uint32_t q) { ones[q] = 1.0f; });
    for (std::uint32_t h = 0; h < group; ++h) {
      auto const queries = queries_of(view, h, d);
      std::uint32_t const count = queries.count();
      // Calls use(part, slot, columns) with logits[q][j] of blocks of entries.
      auto const for_each_block_of_logits = [&](auto const& whole, slot_t from, slot_t to, auto const& use) {
        for_each_key_tile(
            whole, view, rows.keys, scratch, from, to,
            [&](auto const& part, slot_t s, std::uint32_t columns, auto const* keys, std::size_t ld) {
              queries.products(part, keys, ld, columns, logits, block);
              part.for_each(count * block, [&](std::uint32_t m) {
                std::uint32_t const q = m / block, j = m % block;
                if (j >= columns) return;
                float& x = logits[m];
                x = logit(view, s + j, queries.position(q), x);
              });
              part.sync();
              use(part, s, columns);
            });
      };
      own.for_each(count, [&](std::uint32_t q) {
        own_top[q] = n;
        own_highest[q] = none;
      });
      own.sync();
      for_each_block_of_logits(team, 0, n, [&](auto const& part, slot_t s, std::uint32_t columns) {
        part.for_each(count, [&](std::uint32_t q) {
          for (std::uint32_t j = 0; j < columns; ++j) {
            float const x = logits[q * block + j];
            if (!(x > own_highest[q])) continue;
            own_highest[q] = x;
            own_top[q] = s + j;
          }
        });
      });
      own.for_each(count, [&](std::uint32_t q) {  // of all blocks; the first entry of equal ones
        top[q] = n;
        highest[q] = none;
        for (std::uint32_t b = 0; b < mine.count; ++b) {
          float const x = in_block(team, own_highest, b)[q];
          slot_t const at = in_block(team, own_top, b)[q];
          if (!(x > highest[q]) && !(x == highest[q] && at < top[q])) continue;
          highest[q] = x;
          top[q] = at;
        }
      });
      own.sync();
      // Of all entries but `top`: their weighted values, and behind them their weights. That of `top` is 1.
      float* const output = row_ranges(n).add_up(
          team, static_cast<std::uint32_t>(sums_of(dv)), sums,
          [&](auto const& of_range, slot_t from, slot_t to, float* sum) {
            for_each_block_of_logits(
                of_range, from, to, [&](auto const& part, slot_t s, std::uint32_t columns) {
                  part.for_each(count * block, [&](std::uint32_t m) {
                    std::uint32_t const q = m / block, j = m % block;
                    if (j >= columns) return;
                    float& x = logits[m];
                    x = x > none && s + j != top[q] ? std::exp(x - highest[q]) : 0.0f;
                  });
                  part.sync();
                  part.for_each(count, [&](std::uint32_t q) {
                    sum[window * dv + q] +=
                        ordered_sum(columns, [&](std::uint32_t j) { return logits[q * block + j]; });
                  });
                  add_values(part, view, rows.values, s, columns, logits, count, ones, sum);
                });
          });
      float const* const others = output + std::size_t{window} * dv;
      own.for_each(count * dv, [&](std::uint32_t i) {
        float const weight = others[i / dv];
        output[i] = weight > 0.0f ? output[i] / weight : 0.0f;
      });
      for (std::uint32_t q = 0; q < count; ++q) {
        if (top[q] == n) continue;
        float* const o = output + std::size_t{q} * dv;
        rows.values.for_each_block(
            own, top[q], top[q] + 1, [&](auto const& part, slot_t s, std::uint32_t, auto const& row) {
              row_ref const value = row(0);
              float const p = 1.0f / (1.0f + others[q]);
              if (team.lane() == 0) change[s] += p * p * squared_distance_of(value, o);
              part.sync();
              part.for_each(dv, [&](std::uint32_t c) { o[c] = p * value[c] + (1.0f - p) * o[c]; });
            });
      }
      team.sync();
      for_each_block_of_logits(team, 0, n, [&](auto const& part, slot_t s, std::uint32_t columns) {
        rows.values.for_each_tile(
            part, s, s + columns,
            [&](auto const&, slot_t, std::uint32_t, auto const* values, std::size_t ld) {
              row_distances(part, output, count, dv, values, columns, ld, dv, terms, block);
              part.for_each(count * block, [&](std::uint32_t m) {
                std::uint32_t const q = m / block, j = m % block;
                if (j >= columns) return;
                float const x = logits[m];
                float const p = std::exp(x - highest[q]) / (1.0f + others[q]), share = p / (1.0f - p);
                terms[m] = x > none && s + j != top[q] ? share * share * terms[m] : 0.0f;
              });
              part.sync();
              part.for_each(columns, [&](std::uint32_t j) {
                float total = 0.0f;
                for (std::uint32_t q = 0; q < count; ++q) total += terms[q * block + j];
                change[s + j] += total;
              });
            });
      });
    }
    float* const pooled = view.room();
    team.for_each(n, [&](std::uint32_t i) {
      pooled[i] = pool.at(i, n, [&](std::uint32_t j) { return change[j]; }) / static_cast<float>(group);
    });
    team.sync();
    team.for_each(n, [&](std::uint32_t i) { out[i] = pooled[i]; });
    team.sync();
  }

  std::string problem() const { return first_problem({last_queries::problem(), pool.problem()}); }

private:
  static constexpr std::uint32_t block = row_scratch::block;
  /// Floats that are added up over ranges of entries.
  KVMELD_HD std::size_t sums_of(std::uint32_t value_dim) const {
    return std::size_t{window} * (value_dim + 1);
  }

  KVMELD_HD static float squared_distance_of(row_ref const& v, float const* o) {
    return ordered_sum(v.size(), [&](std::uint32_t c) { return (v[c] - o[c]) * (v[c] - o[c]); });
  }

  /// output[q][dv] += the sum over j of weights[q][j] times value j. Collective; barrier at the end.
  template <class Team, class Values>
  KVMELD_HD static void add_values(Team const& team, score_view const& view, Values const& values, slot_t s,
                                   std::uint32_t columns, float const* weights, std::uint32_t count,
                                   float const* ones, float* output) {
    std::uint32_t const dv = values.channels();
    std::uint32_t skipped = 0;
    team.for_each(columns, [&](std::uint32_t j) { skipped += view.usable(s + j) ? 0u : 1u; });
    bool const all = team.reduce(skipped, op_sum{}) == 0;
    values.for_each_tile(
        team, s, s + columns, [&](auto const& part, slot_t, std::uint32_t, auto const* rows, std::size_t ld) {
          std::uint32_t const step =
              all ? columns : 1;  // what is skipped may be NaN, and must not be multiplied
          for (std::uint32_t j = 0; j < columns; j += step) {
            if (!all && !view.usable(s + j)) continue;
            add_weighted_rows(part, weights + j, count, block, ones, rows + j * ld, ld, step, dv, output, dv);
          }
        });
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
