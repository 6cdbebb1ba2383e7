// SPDX-License-Identifier: Apache-2.0
// A score that was learned once per model, from keys alone.
#pragma once

#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/weighted_rows.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/attention_fold.hpp>
#include <kvmeld/score/kept_facts.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/score/score_view.hpp>
#include <kvmeld/score/track_rows.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// What score::learned has learned of a model: for each track of a sequence the weights of d linear features,
/// d squares, the logarithm of the position, and a constant.
struct learned_weights {
  /// [layers][kv_heads][floats(key_dim)], in memory that phases can read; or null: nothing was learned.
  float const* data = nullptr;
  std::uint32_t layers = 0, kv_heads = 0, key_dim = 0;  ///< of the model, or of the part that the cache holds

  /// Weights of one track, for keys of `key_dim` channels.
  KVMELD_HD static constexpr std::size_t floats(std::uint32_t key_dim) {
    return 2 * std::size_t{key_dim} + 2;
  }
  /// Weights of all tracks.
  constexpr std::size_t size() const { return std::size_t{layers} * kv_heads * floats(key_dim); }
};

namespace score {

/// A linear function of features of the key, which was fitted to the logarithm of KVzip's score
/// (preset::kvzip: the largest attention that a second reading of a prompt pays to the entry), for each KV
/// head of each layer of a model. So one reading is enough, and neither queries nor attention are shown. With
/// the key k of an entry before its rotation, and its position p, the entry scores
///
///     sum over c of (a_c k_c + b_c k_c^2) + e log(1 + p) + f.
///
/// a, b, e and f are those of the track (learned_weights). kvmeld.learn (in C++
/// calibrate::learned_fit) fits them by ridge regression. Values do not count: with them the fit is not
/// better (docs/learned.md). Scores can be compared between heads and layers: share budgets by
/// budget::over(budget_scope::all_layers, 0.0). (KVzap, arXiv 2601.07891, 2026, learns KVzip's scores from
/// hidden states, which a cache does not hold.)
///
/// An entry's score is computed when a compression first asks for it, and stays with it; when entries merge,
/// the result has the highest score of its members. An entry whose score is NaN ranks lowest.
///
/// Channel: the score. Cost: one rotation and 3 d multiply-adds per entry that has no score yet, for d key
/// channels. Reads keys, and no values. Scratch: 32 d + 96 floats.
struct learned {
  learned_weights weights;  ///< of this model; a cache refuses the policy without them
  /// How the engine rotated the keys that it stored: as when weights were learned. `frequencies` and `map`
  /// lie in memory that phases can read.
  rope_params rope;

  static constexpr char const* name = "learned";
  static constexpr score_facts facts{score_kind::log_peaks, observation::none, &score_facts::reads_rows,
                                     &score_facts::rows_alone};
  static constexpr float unknown =
      -element_traits<float>::lowest;  ///< score of an entry that was not asked for
  static constexpr channel_list channels() {
    channel_list c;
    c.add({channel_tag::learned_score, channel_rule::max, unknown});
    return c;
  }

  KVMELD_HD channel_update update(std::uint32_t, std::uint32_t, std::uint32_t rows) const {
    return {0, rows};
  }
  KVMELD_HD std::uint32_t next_window(std::uint32_t filled, std::uint32_t) const { return filled; }
  std::size_t scratch_bytes(shape const& s, int) const {
    return scratch_size(std::size_t{row_scratch::block} * s.key_dim * sizeof(float)) +
           scratch_size(std::size_t{3} * row_scratch::block * sizeof(float)) + rope_scratch(rope, s.key_dim);
  }

  template <class Team, class Rows>
  KVMELD_HD void evaluate(Team const& team, score_view const& view, Rows const& rows, float* out) const {
    std::uint32_t const d = rows.keys.channels();
    track const t = view.where();
    float const* const linear =
        weights.data + (std::size_t{t.layer} * weights.kv_heads + t.kv_head) * learned_weights::floats(d);
    float const* const square = linear + d;
    float* const turned = block_scratch<float>(team, std::size_t{row_scratch::block} * d);
    float* const of_keys = block_scratch<float>(team, std::size_t{3} * row_scratch::block);
    float *const of_squares = of_keys + row_scratch::block, *const unused = of_squares + row_scratch::block;
    double const* const turns = rope_table(team, rope, d);
    team.sync();
    rows.keys.for_each_block(
        team, 0, view.length(), [&](auto const& part, slot_t s, std::uint32_t count, auto const& row) {
          std::uint32_t asks = 0;
          part.for_each(count, [&](std::uint32_t i) { asks |= view.channel(0, s + i) == unknown ? 1u : 0u; });
          if (part.reduce(asks, op_max{}) != 0) {
            copy_rows(part, row, count, d, turned);
            part.sync();
            rotate_rows(part, rope, turns, turned, count, d,
                        [&](std::uint32_t i) { return -rope.turned_for(s + i, view.position(s + i)); });
            row_measures(part, turned, d, count, d, linear, unused, of_keys);
            part.for_each(count * d, [&](std::uint32_t i) { turned[i] *= turned[i]; });
            part.sync();
            row_measures(part, turned, d, count, d, square, unused, of_squares);
          }
          part.for_each(count, [&](std::uint32_t i) {
            float x = view.channel(0, s + i);
            if (x == unknown) {
              position_t const p = view.position(s + i);
              x = of_keys[i] + of_squares[i] +
                  square[d] * std::log(1.0f + static_cast<float>(p < 0 ? 0 : p)) + square[d + 1];
              if (view.usable(s + i)) view.keep(0, s + i, x);
            }
            out[s + i] = x;
          });
          part.sync();
        });
  }

  void tell_kept(kept_facts& to) const {
    to.add("digest of weights", weights.data, weights.size());
    to.add(rope);
  }
  std::string problem() const { return detail::part_rope_problem("score::learned", rope, false, true); }
  std::string problem_for(shape const& s) const {
    if (weights.data == nullptr) {
      return refusal("policy", "score::learned.weights", "null",
                     "what was learned of the model (kvmeld.learn, set_learned)");
    }
    for (auto const& [what, has, wants] : {std::tuple{"layers", weights.layers, s.layers},
                                           std::tuple{"kv_heads", weights.kv_heads, s.kv_heads},
                                           std::tuple{"key_dim", weights.key_dim, s.key_dim}}) {
      if (has == wants) continue;
      return refusal("policy", message("score::learned.weights.", what), has, wants,
                     ", as the cache has: they are of another model");
    }
    return detail::rope_problem("policy", rope, s.key_dim, false);
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
