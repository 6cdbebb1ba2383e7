// SPDX-License-Identifier: Apache-2.0
// The eviction baselines: policies whose merge function is `drop`.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/identify/no_sets.hpp>
#include <kvmeld/merge/drop.hpp>
#include <kvmeld/score/above_mean.hpp>
#include <kvmeld/score/by_chunk.hpp>
#include <kvmeld/score/critical.hpp>
#include <kvmeld/score/given.hpp>
#include <kvmeld/score/global.hpp>
#include <kvmeld/score/local.hpp>
#include <kvmeld/score/none.hpp>
#include <kvmeld/select/above.hpp>
#include <kvmeld/select/sinks_and_recents.hpp>
#include <kvmeld/select/top.hpp>

#include <cstdint>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace preset {

/// StreamingLLM (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023): keeps the
/// first `sinks` entries and the most recent ones.
namespace streaming_llm {
/// StreamingLLM's parts.
using type = policy<score::none, select::sinks_and_recents, identify::evict_rest, merge::drop>;
/// Keeps the first `sinks` entries, and fills the rest of the budget with the most recent ones.
inline type with_sinks(std::uint32_t sinks = 4) {
  return {{}, {quantity::entries(sinks), quantity::rest_of_budget()}, {}, {}};
}
}  // namespace streaming_llm

/// H2O (Zhang et al., "Heavy-Hitter Oracle", 2023): half of the budget is recent entries, half is chosen by
/// accumulated attention.
namespace h2o {
/// H2O's parts.
using type = policy<score::global, select::top, identify::evict_rest, merge::drop>;
/// H2O with half of the budget for each.
inline type defaults() {
  return {{}, {quantity::entries(0), quantity::of_budget(0.5), quantity::rest_of_budget()}, {}, {}};
}
}  // namespace h2o

/// SnapKV (Li et al., "LLM Knows What You Are Looking for Before Generation", 2024): keeps the last `window`
/// entries, and those that the window's queries look at; scores are pooled with a kernel of 7. Compresses a
/// prompt once.
namespace snapkv {
/// SnapKV's parts.
using type = policy<score::local, select::top, identify::evict_rest, merge::drop>;
/// Keeps the last `window` entries, and fills the rest of the budget with what the window's queries look at
/// most.
inline type with_window(std::uint32_t window = 32, pooling pool = {}) {
  return {
      {window, pool}, {quantity::entries(0), quantity::entries(window), quantity::rest_of_budget()}, {}, {}};
}
}  // namespace snapkv

/// TOVA (Oren et al., "Transformers are Multi-State RNNs", 2024): keeps what the newest query looks at, and
/// the newest entry. The paper averages over all heads of a layer: give the cache plan_scope::layer for that.
namespace tova {
/// TOVA's parts.
using type = policy<score::local, select::top, identify::evict_rest, merge::drop>;
/// The attention of one query, not pooled.
inline type defaults() {
  return {{1, {1}}, {quantity::entries(0), quantity::entries(1), quantity::rest_of_budget()}, {}, {}};
}
}  // namespace tova

/// ChunkKV (Liu et al., "ChunkKV: Semantic-Preserving KV Cache Compression for Efficient Long-Context LLM
/// Inference", 2025): keeps chunks of neighbouring entries whole, the best by their mean score.
namespace chunkkv {
/// The given eviction policy, which now ranks chunks of `chunk` slots by their mean score. The paper takes
/// SnapKV's score.
template <class Score>
policy<score::by_chunk<Score>, select::top, identify::evict_rest, merge::drop> over(
    policy<Score, select::top, identify::evict_rest, merge::drop> const& evicting, std::uint32_t chunk = 20) {
  return {{evicting.score, chunk}, evicting.select, {}, {}};
}
}  // namespace chunkkv

/// CriticalKV (Feng et al., "Identify Critical KV Cache in LLM Inference from an Output Perturbation
/// Perspective", 2025): half of the budget as the given policy chooses, the rest by score times the size of
/// what a value adds to the output. With budget::over(budget_scope::layer), heads share their budgets
/// (AdaKV).
namespace criticalkv {
/// The given eviction policy by attention, refined with the model's output projections. Without them, the
/// size of the value counts.
template <class Score, class T = float>
policy<score::critical<Score, T>, select::top, identify::evict_rest, merge::drop> over(
    policy<Score, select::top, identify::evict_rest, merge::drop> const& evicting,
    output_projection<T> const& projection = {}) {
  score::critical<Score, T> refined(evicting.score, projection);
  refined.sinks = evicting.select.sinks;
  refined.recents = evicting.select.recents;
  return {refined, evicting.select, {}, {}};
}
}  // namespace criticalkv

/// PyramidKV (Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling",
/// 2024): SnapKV with budgets that fall from the first layer to the last.
namespace pyramidkv {
/// Numbers of entries for budget::per_track, for a cache that holds all layers of a model. They fall linearly
/// over the layers, and every layer gets at least `window` of them. Their mean is `entries`. The part of the
/// last layer above the window is 1 / beta of the mean part. If the first layer would get more than `tokens`
/// entries, it gets `tokens`, and the later layers fall less.
inline std::vector<std::uint32_t> budgets(shape const& extent, std::uint32_t entries, std::uint32_t tokens,
                                          std::uint32_t window = 32, double beta = 20.0) {
  double const mean = entries > window ? static_cast<double>(entries - window) : 0.0;
  double const most = tokens > window ? static_cast<double>(tokens - window) : 0.0;
  double const first = min_of(2.0 * mean - mean / beta, max_of(most, mean));
  double const fall = extent.layers > 1 ? 2.0 * (first - mean) / (extent.layers - 1.0) : 0.0;
  double const highest = extent.layers > 1 ? first : mean;
  // Rounding sums, not terms, keeps the total.
  auto const sum = [&](std::uint32_t layers) {
    return static_cast<std::uint64_t>(layers * highest - fall * layers * (layers - 1.0) / 2.0 + 0.5);
  };
  std::vector<std::uint32_t> out(extent.tracks());
  for (std::uint32_t l = 0; l < extent.layers; ++l) {
    std::uint32_t const n = min_of(entries, window) + static_cast<std::uint32_t>(sum(l + 1) - sum(l));
    for (std::uint32_t q = 0; q < extent.sequences; ++q) {
      for (std::uint32_t h = 0; h < extent.kv_heads; ++h) out[make_track(extent, l, q, h).index] = n;
    }
  }
  return out;
}
}  // namespace pyramidkv

/// KVzip (Kim et al., "KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction", 2025): the
/// model reads the prompt a second time, and what that reading looks at stays. docs/observing.md shows how.
/// The paper lets all layers and heads share their budgets: budget::over(budget_scope::all_layers, 0.0).
namespace kvzip {
/// KVzip's parts.
using type = policy<score::max_attention, select::top, identify::evict_rest, merge::drop>;
/// Keeps a few sinks, and fills the rest of the budget by score. As in the paper, recent entries have no
/// place of their own.
inline type for_budget(quantity recents = quantity::entries(0), quantity sinks = quantity::at_most(4, 0.25)) {
  return {{}, {sinks, recents, quantity::rest_of_budget()}, {}, {}};
}
}  // namespace kvzip

/// KVzip+ (NVIDIA's kvpress 0.5.5): KVzip by what an entry adds to a query's output, divided by the norm of
/// the query's hidden state x. Give the query sample the weights 1 / |x| (score::max_output).
namespace kvzip_plus {
/// As kvzip::for_budget. `projection` holds the model's W_O; without it, values count by their own length.
template <class T = float>
policy<score::max_output<T>, select::top, identify::evict_rest, merge::drop> for_budget(
    output_projection<T> const& projection = {}, quantity recents = quantity::entries(0),
    quantity sinks = quantity::at_most(4, 0.25)) {
  return {projection, {sinks, recents, quantity::rest_of_budget()}, {}, {}};
}
}  // namespace kvzip_plus

/// KVzap ("KVzap: Fast, Adaptive, and Faithful KV Cache Pruning", arXiv 2601.07891, 2026): a small model,
/// trained to predict KVzip's scores, scores every entry; what is below a threshold goes, once it is no
/// longer recent. The engine brings the scores with `set_scores`. The trained evictors of DMS (Lancucki et
/// al., "Inference-Time Hyper-Scaling with KV Cache Compression", 2025) decide likewise.
namespace kvzap {
/// KVzap's parts.
using type = policy<score::given, select::above, identify::evict_rest, merge::drop>;
/// Keeps what scores at least `threshold`, and the last entries. The budget of a call is an upper bound;
/// budget::ratio(1.0) bounds nothing.
inline type with_threshold(float threshold, quantity recents = quantity::at_most(128, 0.25),
                           quantity sinks = quantity::entries(0)) {
  return {{}, {threshold, sinks, recents}, {}, {}};
}
}  // namespace kvzap

/// Scissorhands (Liu et al., "Exploiting the Persistence of Importance Hypothesis", 2023): as H2O, but the
/// score counts how often, among the last `window` queries, an entry received more than the mean attention.
namespace scissorhands {
/// Scissorhands' parts.
using type = policy<score::above_mean, select::top, identify::evict_rest, merge::drop>;
/// Half of the budget is recent entries, half is chosen by score; `window` queries count.
inline type defaults(std::uint32_t window = 400) {
  return {{window}, {quantity::entries(0), quantity::of_budget(0.5), quantity::rest_of_budget()}, {}, {}};
}
}  // namespace scissorhands

}  // namespace preset
}  // namespace KVMELD_ABI
}  // namespace kvmeld
