// SPDX-License-Identifier: Apache-2.0
// Policies by what was learned of a model once: one reading, one budget over all layers, centroids.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/centroids.hpp>
#include <kvmeld/identify/no_sets.hpp>
#include <kvmeld/merge/drop.hpp>
#include <kvmeld/merge/weighted.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/blended.hpp>
#include <kvmeld/score/learned.hpp>
#include <kvmeld/score/leverage.hpp>
#include <kvmeld/select/top.hpp>

#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace preset {

/// The policy that with_centroids makes of one with this score. Its means are weighted by attention if the
/// score tells of amounts, and by degrees if the score only orders entries.
template <class Score>
using centroids_of = policy<Score, select::top, identify::centroids,
                            std::conditional_t<stated_facts<score_facts, Score>.gives == score_kind::order,
                                               merge::degree_weighted, merge::score_weighted>>;

/// A policy that makes centroids of what `evicting` would evict. It keeps the best `heavy` entries by the
/// same score whole, and few sinks and recents. All others become centroids (identify::centroids), for which
/// `heavy` leaves a tenth of the budget. Where tracks share a budget, each track still has a tenth of its own
/// budget for them, however low its scores are. So no head loses all that it attended to. `rope` says how
/// keys lie rotated: clusters are of keys as they were before. Needs a log-degree bias. Reaches its budget
/// exactly.
template <class Score>
centroids_of<Score> with_centroids(
    policy<Score, select::top, identify::evict_rest, merge::drop> const& evicting, rope_params const& rope,
    quantity heavy = quantity::rest_of_budget(0.1), quantity recents = quantity::at_most(4, 0.125),
    quantity sinks = quantity::at_most(1, 0.125)) {
  identify::centroids clusters;
  clusters.rope = rope;
  return {evicting.score, {sinks, recents, heavy}, clusters, {}};
}

/// Evicts by score::learned, which is ours: KVzip's scores, learned from keys, so that a prompt is read once.
/// Let all layers share the budget: budget::over(budget_scope::all_layers, 0.0).
namespace learned {
/// The parts.
using type = policy<score::learned, select::top, identify::evict_rest, merge::drop>;
/// `weights` are those of the model, `rope` says how keys lie rotated. The last entries stay, because their
/// learned scores are too low for the words that come next.
inline type with_weights(learned_weights const& weights, rope_params const& rope,
                         quantity recents = quantity::at_most(16, 0.125),
                         quantity sinks = quantity::at_most(4, 0.125)) {
  return {{weights, rope}, {sinks, recents, quantity::rest_of_budget()}, {}, {}};
}
}  // namespace learned

/// Evicts by score::learned and Compactor's leverage of keys as they lie, which count alike. For engines
/// whose heads share one plan (plan_scope::all_layers), where no head can keep what it alone needs: there
/// leverage finds the tokens that differ from all others, and the blend keeps more than either score
/// (docs/engines/llama_cpp.md).
namespace learned_leverage {
/// The parts.
using type =
    policy<score::blended<score::leverage, score::learned>, select::top, identify::evict_rest, merge::drop>;
/// As learned::with_weights.
inline type with_weights(learned_weights const& weights, rope_params const& rope,
                         quantity recents = quantity::at_most(16, 0.125),
                         quantity sinks = quantity::at_most(4, 0.125)) {
  return {{{}, {weights, rope}}, {sinks, recents, quantity::rest_of_budget()}, {}, {}};
}
}  // namespace learned_leverage

}  // namespace preset
}  // namespace KVMELD_ABI
}  // namespace kvmeld
