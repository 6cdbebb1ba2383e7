// The presets to begin with if nothing speaks for another method: with_learned where scores were learned of
// the model, with_second_reading for prompts that can be read twice, for_budget for all else. The
// compositions are ours, their parts are published. docs/real_models.md has measurements.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/no_sets.hpp>
#include <kvmeld/merge/drop.hpp>
#include <kvmeld/preset/eviction.hpp>
#include <kvmeld/preset/learned.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/blended.hpp>
#include <kvmeld/score/drop_error.hpp>
#include <kvmeld/score/learned.hpp>
#include <kvmeld/score/leverage.hpp>
#include <kvmeld/select/top.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace preset {
namespace recommended {

/// The parts of for_budget.
using type = policy<score::blended<score::leverage, score::drop_error>, select::top, identify::evict_rest,
                    merge::drop>;

/// For models of which scores were learned (docs/learned.md): a prompt is read once, nothing is observed. Let
/// all layers share the budget: budget::over(budget_scope::all_layers, 0.0).
inline auto with_learned(learned_weights const& weights, rope_params const& rope) {
  return with_centroids(learned::with_weights(weights, rope));
}

/// For prompts that the engine can read a second time, which costs about two prefills (docs/observing.md):
/// KVzip's choice, and centroids of the rest. Let all layers share the budget, as for with_learned; with a
/// budget for each head far less is kept.
inline auto with_second_reading() { return with_centroids(kvzip::for_budget()); }

/// For prompts and answers that are read once, of models of which nothing was learned. Keeps what the outputs
/// of the last 8 queries need (DropKV's score) and what no other key can stand in for (Compactor's leverage);
/// both count alike. Show it the last 8 queries by `observe`; it takes no rows of attention. Needs no bias.
/// Reaches its budget exactly. Budgets may be shared by all layers, budget::over(budget_scope::all_layers),
/// which changes little (docs/budgets.md). It knows nothing of later questions: a real model loses most facts
/// of a prompt with it, at half of the entries already, where the other two keep nearly all
/// (docs/real_models.md).
inline type for_budget(quantity recents = quantity::at_most(32, 0.25),
                       quantity sinks = quantity::at_most(4, 0.25)) {
  return {{}, {sinks, recents, quantity::rest_of_budget()}, {}, {}};
}

}  // namespace recommended
}  // namespace preset
}  // namespace KVMELD_ABI
}  // namespace kvmeld
