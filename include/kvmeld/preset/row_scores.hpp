// SPDX-License-Identifier: Apache-2.0
// Methods whose scores are computed from keys and values. They need no attention; some need queries.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/no_sets.hpp>
#include <kvmeld/merge/drop.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/blended.hpp>
#include <kvmeld/score/distance_preference.hpp>
#include <kvmeld/score/drop_error.hpp>
#include <kvmeld/score/expected_attention.hpp>
#include <kvmeld/score/key_geometry.hpp>
#include <kvmeld/score/lag_relative.hpp>
#include <kvmeld/score/leverage.hpp>
#include <kvmeld/score/redundancy.hpp>
#include <kvmeld/select/top.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace preset {

/// KeyDiff (Park et al., 2025): keeps the keys that point away from the mean direction of all keys.
namespace keydiff {
/// KeyDiff's parts.
using type = policy<score::key_difference, select::top, identify::evict_rest, merge::drop>;
/// Keeps a few sinks and recents, and fills the rest of the budget by score. The paper keeps neither: give
/// quantity::entries(0) for both.
inline type for_budget(quantity recents = quantity::at_most(32, 0.25),
                       quantity sinks = quantity::at_most(4, 0.25)) {
  return {{}, {sinks, recents, quantity::rest_of_budget()}, {}, {}};
}
}  // namespace keydiff

/// Leverage (Chari and Van Durme, "Compactor", 2025, without its attention term): keeps the keys that the
/// other keys cannot stand in for.
namespace leverage {
/// The parts of this policy.
using type = policy<score::leverage, select::top, identify::evict_rest, merge::drop>;
/// Keeps a few sinks and recents, and fills the rest of the budget by score.
inline type for_budget(quantity recents = quantity::at_most(32, 0.25),
                       quantity sinks = quantity::at_most(4, 0.25)) {
  return {{}, {sinks, recents, quantity::rest_of_budget()}, {}, {}};
}
/// Takes the leverage of keys before their rotation, as in the paper. `rope` says how the engine rotated the
/// keys that it stored.
inline type with_rope(rope_params const& rope, quantity recents = quantity::at_most(32, 0.25),
                      quantity sinks = quantity::at_most(4, 0.25)) {
  type out = for_budget(recents, sinks);
  out.score.rope = rope;
  return out;
}
}  // namespace leverage

/// Expected Attention (Devoto et al., 2025): keeps what future queries will look at, if they are distributed
/// as the queries so far. Show it queries with `observe`; log-sum-exps may be empty.
namespace expected_attention {
/// The parts of this policy.
using type = policy<score::expected_attention, select::top, identify::evict_rest, merge::drop>;
/// Keeps a few sinks and recents, and fills the rest of the budget by score. `rope` says how the engine
/// rotates queries and the keys that it stores. The paper keeps no recents: give quantity::entries(0).
inline type with_rope(rope_params const& rope, quantity recents = quantity::at_most(32, 0.25),
                      quantity sinks = quantity::at_most(4, 0.25)) {
  return {{rope}, {sinks, recents, quantity::rest_of_budget()}, {}, {}};
}
}  // namespace expected_attention

/// TriAttention (Mao et al., "TriAttention: Efficient Long Reasoning with Trigonometric KV Compression",
/// 2026): keeps what future queries will look at, by how far back queries look on average. Show it queries
/// with `observe`; log-sum-exps may be empty. Or set `score.means` to those of calibrate::query_means, as the
/// paper does, and show it nothing. For long answers: compress after every `period` tokens.
namespace triattention {
/// TriAttention's parts.
using type = policy<score::distance_preference, select::top, identify::evict_rest, merge::drop>;
/// Tokens from one compression to the next in the paper.
constexpr std::uint32_t period = 128;
/// Keeps a few sinks and recents, and fills the rest of the budget by score. `rope` says how the engine
/// rotates queries and the keys that it stores. The paper pins neither: give quantity::entries(0) for both.
inline type with_rope(rope_params const& rope, quantity recents = quantity::at_most(32, 0.25),
                      quantity sinks = quantity::at_most(4, 0.25)) {
  return {{rope}, {sinks, recents, quantity::rest_of_budget()}, {}, {}};
}
}  // namespace triattention

/// R-KV (Cai et al., "R-KV: Redundancy-aware KV Cache Compression for Reasoning Models", 2025): keeps what
/// the last 8 queries look at and what no later key resembles. Show it the last queries with `observe`;
/// log-sum-exps may be empty. For long answers: compress after every `period` tokens.
namespace rkv {
/// R-KV's parts.
using type = policy<score::redundancy, select::top, identify::evict_rest, merge::drop>;
/// Tokens from one compression to the next in the paper.
constexpr std::uint32_t period = 128;
/// Keeps a few sinks and recents, and fills the rest of the budget by score. The paper keeps no sinks, and 8
/// recents: give quantity::entries(8) and quantity::entries(0).
inline type for_budget(quantity recents = quantity::at_most(32, 0.25),
                       quantity sinks = quantity::at_most(4, 0.25)) {
  return {{}, {sinks, recents, quantity::rest_of_budget()}, {}, {}};
}
}  // namespace rkv

/// DropKV (Zhang et al., "DropKV: Decoupling Residual-Output Perturbation for Near-Optimal KV-Cache
/// Eviction", 2026): keeps the entries without which the outputs of the last queries would change most. Show
/// it the last queries with `observe`; log-sum-exps may be empty.
namespace dropkv {
/// DropKV's parts.
using type = policy<score::drop_error, select::top, identify::evict_rest, merge::drop>;
/// Keeps a few sinks and recents, and fills the rest of the budget by the outputs of the last `window`
/// queries. The authors keep no sinks, and `window` recents: give quantity::entries(window) and
/// quantity::entries(0).
inline type with_window(std::uint32_t window = 8, quantity recents = quantity::at_most(32, 0.25),
                        quantity sinks = quantity::at_most(4, 0.25)) {
  return {{{window}}, {sinks, recents, quantity::rest_of_budget()}, {}, {}};
}
}  // namespace dropkv

/// What the outputs of the last 8 queries need (DropKV's score) and what no other key can stand in for
/// (Compactor's leverage); both count alike. The composition is ours. Show it the last 8 queries by
/// `observe`; it takes no rows of attention. Needs no bias. It finds what lies far from all other keys, as
/// planted numbers do in a small model. It does not know what will be asked for: a real model loses half of
/// its answers with half of the entries (docs/real_models.md).
namespace leverage_dropkv {
/// The parts.
using type = policy<score::blended<score::leverage, score::drop_error>, select::top, identify::evict_rest,
                    merge::drop>;
/// Keeps a few sinks and recents, and fills the rest of the budget by score.
inline type for_budget(quantity recents = quantity::at_most(32, 0.25),
                       quantity sinks = quantity::at_most(4, 0.25)) {
  return {{}, {sinks, recents, quantity::rest_of_budget()}, {}, {}};
}
}  // namespace leverage_dropkv

/// Knorm (Devoto et al., 2024): keeps the keys with the smallest norms.
namespace knorm {
/// Knorm's parts.
using type = policy<score::key_norm, select::top, identify::evict_rest, merge::drop>;
/// Fills the budget by score, beside the sinks and recents that the caller asks for.
inline type for_budget(quantity recents = quantity::entries(0), quantity sinks = quantity::entries(0)) {
  return {{}, {sinks, recents, quantity::rest_of_budget()}, {}, {}};
}
}  // namespace knorm

/// LagKV (Liang et al., 2025): keeps an equal share of every chunk, by how much rows vary beside the next
/// chunk. Budgets below sinks + 2 lag entries evict from the last chunk too, and the newest entries stay
/// longest.
namespace lagkv {
/// LagKV's parts.
using type = policy<score::lag_relative, select::top, identify::evict_rest, merge::drop>;
/// `sinks` entries stay. The others are ranked in chunks of `lag` entries.
inline type with_lag(std::uint32_t lag = 128, std::uint32_t sinks = 4) {
  return {{sinks, lag}, {quantity::entries(sinks), quantity::entries(0), quantity::rest_of_budget()}, {}, {}};
}
}  // namespace lagkv

}  // namespace preset
}  // namespace KVMELD_ABI
}  // namespace kvmeld
