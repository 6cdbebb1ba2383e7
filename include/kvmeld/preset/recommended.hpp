// SPDX-License-Identifier: Apache-2.0
// The presets to begin with: with_learned where scores were learned of the model, with_second_reading for
// prompts that can be read twice. Where neither is possible, use keydiff with one budget over all layers,
// which loses far more answers. If the question ends the prompt, use dropkv, which loses what is asked later
// (docs/real_models.md). The compositions are ours, their parts are published.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/preset/eviction.hpp>
#include <kvmeld/preset/learned.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/learned.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace preset {
namespace recommended {

/// For models of which scores were learned (docs/learned.md): a prompt is read once, nothing is observed. Let
/// all layers share the budget: budget::over(budget_scope::all_layers, 0.0). More of the last entries stay
/// than with KVzip's scores, as in learned::with_weights, but they may not fill a small budget.
inline auto with_learned(learned_weights const& weights, rope_params const& rope) {
  return with_centroids(learned::with_weights(weights, rope), rope, quantity::rest_of_budget(0.1),
                        quantity::at_most(16, 0.05));
}

/// For prompts that the engine can read a second time, which costs about two prefills (docs/observing.md):
/// KVzip's choice, and centroids of the rest; `rope` says how keys lie rotated. Let all layers share the
/// budget, as for with_learned; with a budget for each head far less is kept.
inline auto with_second_reading(rope_params const& rope) { return with_centroids(kvzip::for_budget(), rope); }

}  // namespace recommended
}  // namespace preset
}  // namespace KVMELD_ABI
}  // namespace kvmeld
