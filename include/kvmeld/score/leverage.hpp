// SPDX-License-Identifier: Apache-2.0
// How little the other keys can stand in for a key: ridge leverage scores, the key half of Compactor.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/cholesky.hpp>
#include <kvmeld/exec/row_products.hpp>
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

/// Ridge leverage of keys (Alaoui and Mahoney, "Fast Randomized Algorithms for Kernel Ridge Regression with
/// Statistical Guarantees", 2015; of keys: Chari and Van Durme, "Compactor: Calibrated Query-Agnostic KV
/// Cache Compression with Approximate Leverage Scores", 2025). With x_i = k_i minus the mean key, w_i the
/// degree of entry i, and G = the sum of w_i x_i x_i^T, entry i scores x_i^T (G + r I)^-1 x_i, where r is
/// `ridge` times the mean of G's diagonal. A key scores high if it points where few other keys point. The
/// score is at least 0, and it does not change if all keys are scaled, moved or turned alike.
///
/// Keys are read as they are stored. With `rope`, each is first turned back by the position stored with its
/// entry, as Compactor takes leverage of keys before their rotation; scores then do not see positions. If the
/// squares of a track's keys sum up to 0 or overflow, all its entries score 0. Needs no attention. Reads the
/// keys three times. Cost: d^2 multiply-adds per entry and d^3 / 3 per track, for d key channels; with `rope`
/// 3 rotations per entry more. Scratch: d^2 + 68 d floats.
struct leverage {
  float ridge = 0.1f;  ///< above 0; larger: only directions of large extent count
  /// How the engine rotated the keys that it stored; by default they count as they lie. `frequencies` and
  /// `map` lie in memory that phases can read.
  rope_params rope = {};

  static constexpr char const* name = "leverage";
  static constexpr score_facts facts{&score_facts::reads_rows, &score_facts::spans_blocks};

  std::size_t scratch_bytes(shape const& s, int) const {
    std::size_t const d = s.key_dim;
    return scratch_size(d * sizeof(float)) + scratch_size(d * d * sizeof(float)) +
           scratch_size(d * row_scratch::block * sizeof(float)) +
           scratch_size(turned_floats(s.key_dim) * sizeof(float)) + team_sum_scratch() +
           2 * scratch_size(row_scratch::block * sizeof(float)) + rope_scratch(rope, s.key_dim);
  }

  template <class Team, class Rows>
  KVMELD_HD void evaluate(Team const& team, score_view const& view, Rows const& rows, float* out) const {
    auto const& keys = rows.keys;
    std::uint32_t const d = keys.channels();
    float* const mean = block_scratch<float>(team, d);
    float* const gram = block_scratch<float>(team, std::size_t{d} * d);
    float* const centred = block_scratch<float>(team, std::size_t{d} * row_scratch::block);  // [block][d]
    float* const turned = block_scratch<float>(team, turned_floats(d));                      // [d][turned_ld]
    float* const factor = block_scratch<float>(team, row_scratch::block);                    // of a row
    float* const ones = block_scratch<float>(team, row_scratch::block);
    double const* const turns = rope_table(team, rope, d);
    auto const& own = block_of(team);
    block_place const mine = place_of_block(team);
    own.for_each(row_scratch::block, [&](std::uint32_t i) { ones[i] = 1.0f; });
    own.for_each(d * d, [&](std::uint32_t i) { gram[i] = 0.0f; });
    find_mean(team, view, keys, turns, centred,
              mean);  // has a barrier, so that zeros come before bands of other blocks
    // The upper triangle of G: a few of its rows at a time, from their first diagonal element on. A team of
    // several blocks shares out these bands, and each of its blocks goes through all keys.
    std::uint32_t const band = mine.count == 1 ? rows_at_once : 4;
    auto const for_each_band = [&](auto const& use) {
      for (std::uint32_t a = mine.index * band; a < d; a += mine.count * band) use(a, min_of(band, d - a));
    };
    slot_t const last = mine.index * band < d ? view.length() : 0;  // a block without bands reads nothing
    keys.for_each_block(own, 0, last, [&](auto const& part, slot_t s, std::uint32_t count, auto const& row) {
      turn_back(part, view, s, count, row, turns, d, centred);
      part.for_each(count, [&](std::uint32_t i) {
        factor[i] = view.usable(s + i) ? std::sqrt(view.degree(s + i)) : 0.0f;
      });
      part.sync();
      for (std::uint32_t i = 0; i < count; ++i) {
        float const w = factor[i];
        row_ref const key = rope.active() ? row_ref(centred + i * d, d) : row(i);
        part.for_each(d, [&](std::uint32_t c) {
          float const x = w != 0.0f ? w * (key[c] - mean[c]) : 0.0f;
          centred[i * d + c] = x;
          turned[c * turned_ld + i] = x;
        });
      }
      part.sync();
      for_each_band([&](std::uint32_t a, std::uint32_t rows_of_band) {
        add_weighted_rows(part, turned + std::size_t{a} * turned_ld, rows_of_band, turned_ld, ones,
                          centred + a, d, count, d - a, gram + std::size_t{a} * d + a, d);
      });
    });
    float* const whole = in_block(team, gram, 0);
    if (mine.index != 0) {  // block 0 gets all bands
      for_each_band([&](std::uint32_t a, std::uint32_t rows_of_band) {
        own.for_each(rows_of_band * d, [&](std::uint32_t i) { whole[a * d + i] = gram[a * d + i]; });
      });
    }
    if (mine.count != 1) team.sync();
    own.for_each(d, [&](std::uint32_t c) { centred[c] = whole[std::size_t{c} * d + c]; });
    own.sync();
    float const trace = ordered_sum(d, [&](std::uint32_t c) { return centred[c]; });
    team.sync();
    if (!(trace > 0.0f) || !is_finite(trace)) {
      team.for_each(view.length(), [&](std::uint32_t i) { out[i] = 0.0f; });
      team.sync();
      return;
    }
    if (mine.index == 0) invert_factor(own, gram, d, ridge * (trace / static_cast<float>(d)));
    if (mine.count != 1) {
      team.sync();
      if (mine.index != 0) own.for_each(d * d, [&](std::uint32_t i) { gram[i] = whole[i]; });
      own.sync();
    }
    float* const solved = turned;  // L^-1 x of a block of rows: [block][ld]
    std::uint32_t const ld = row_stride(d);
    keys.for_each_block(
        team, 0, view.length(), [&](auto const& part, slot_t s, std::uint32_t count, auto const& row) {
          turn_back(part, view, s, count, row, turns, d, centred);
          part.for_each(count, [&](std::uint32_t i) { factor[i] = view.usable(s + i) ? 1.0f : 0.0f; });
          part.sync();
          for (std::uint32_t i = 0; i < count; ++i) {
            bool const counts = factor[i] != 0.0f;
            row_ref const key = rope.active() ? row_ref(centred + i * d, d) : row(i);
            part.for_each(d, [&](std::uint32_t c) {
              centred[i * d + c] = counts ? key[c] - mean[c] : 0.0f;
              solved[i * ld + c] = 0.0f;
            });
          }
          part.sync();
          for (std::uint32_t a = 0; a < d; a += rows_at_once) {
            add_weighted_rows(part, centred + a, count, d, ones, gram + std::size_t{a} * d + a, d,
                              min_of(rows_at_once, d - a), d - a, solved + a, ld);
            part.sync();
          }
          row_measures(part, solved, ld, count, d, nullptr, out + s, nullptr);
        });
  }

  void tell_kept(kept_facts& to) const { to.add(rope); }
  std::string problem() const {
    if (!(ridge > 0.0f) || !is_finite(ridge)) {
      return refusal("policy", "score::leverage.ridge", ridge, "above 0 and finite");
    }
    return detail::part_rope_problem("score::leverage", rope, false, true);
  }
  std::string problem_for(shape const& s) const {
    return detail::rope_problem("policy", rope, s.key_dim, false);
  }

private:
  static constexpr std::uint32_t rows_at_once = 16;  // at most row_scratch::block

  static constexpr std::uint32_t turned_ld = row_scratch::block + 1;  // neighbouring lanes write other banks
  /// Floats of a block of keys as columns, or of as many solutions as rows.
  KVMELD_HD static constexpr std::size_t turned_floats(std::uint32_t d) {
    return max_of(std::size_t{turned_ld} * d, std::size_t{row_scratch::block} * row_stride(d));
  }

  /// to[i][d] = the key of slot s + i before its rotation. Does nothing without `rope`. Collective; barrier
  /// at the end.
  template <class Team, class Row>
  KVMELD_HD void turn_back(Team const& team, score_view const& view, slot_t s, std::uint32_t rows,
                           Row const& row, double const* turns, std::uint32_t d, float* to) const {
    if (!rope.active()) return;
    copy_rows(team, row, rows, d, to);
    rotate_rows(team, rope, turns, to, rows, d,
                [&](std::uint32_t i) { return -rope.turned_for(s + i, view.position(s + i)); });
  }

  /// The mean key over tokens, for every block of the team. `block` has room for a block of keys. Collective;
  /// barrier at the end.
  template <class Team, class Keys>
  KVMELD_HD void find_mean(Team const& team, score_view const& view, Keys const& keys, double const* turns,
                           float* block, float* mean) const {
    std::uint32_t const d = keys.channels();
    if (rope.active()) {
      team.sync();
      keys.add_up(
          team,
          [&](auto const& own, slot_t first, slot_t last, float* to) {
            keys.for_each_block(own, first, last,
                                [&](auto const& part, slot_t s, std::uint32_t count, auto const& row) {
                                  turn_back(part, view, s, count, row, turns, d, block);
                                  part.for_each(d, [&](std::uint32_t c) {
                                    float sum = 0.0f;
                                    for (std::uint32_t i = 0; i < count; ++i) {
                                      if (view.usable(s + i))
                                        sum += view.degree(s + i) * block[std::size_t{i} * d + c];
                                    }
                                    to[c] += sum;
                                  });
                                });
          },
          mean);
    } else {
      keys.weighted_sum(
          team, [&](slot_t s, float) { return view.degree(s); }, mean);
    }
    float const tokens = team_sum(
        team, view.length(), [&](std::uint32_t i) { return view.usable(i) ? view.degree(i) : 0.0f; },
        team.template scratch<float>(team_partials));
    auto const& own = block_of(team);
    own.for_each(d, [&](std::uint32_t c) { mean[c] = tokens > 0.0f ? mean[c] / tokens : 0.0f; });
    own.sync();
  }

  /// Replaces a matrix A, given by its upper triangle, by L^-1, where A + r I = L L^T, with zeros above the
  /// diagonal. Collective; barrier at the end.
  template <class Team>
  KVMELD_HD static void invert_factor(Team const& team, float* a, std::uint32_t d, float r) {
    auto const at = [&](std::uint32_t i, std::uint32_t j) -> float& { return a[std::size_t{i} * d + j]; };
    auto const row = [&](std::uint32_t i) { return a + std::size_t{i} * d; };
    team.for_each(d, [&](std::uint32_t i) {
      for (std::uint32_t j = 0; j < i; ++j) at(i, j) = at(j, i);
    });
    team.sync();
    factor_cholesky(team, a, d, r);
    // Above the diagonal: the columns of L^-1, each by one lane.
    team.for_each(d, [&](std::uint32_t j) {
      for (std::uint32_t i = j + 1; i < d; ++i) {
        at(j, i) = -dot(row(i) + j, row(j) + j, i - j) * at(i, i);
      }
    });
    team.sync();
    team.for_each(d, [&](std::uint32_t j) {
      for (std::uint32_t i = j + 1; i < d; ++i) {
        at(i, j) = 0.0f;
      }
    });
    team.sync();
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
