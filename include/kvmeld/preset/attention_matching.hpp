// SPDX-License-Identifier: Apache-2.0
// Eviction with what stays fitted to attention's outputs: Attention Matching, and the same over other
// rankings.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/no_sets.hpp>
#include <kvmeld/merge/drop.hpp>
#include <kvmeld/merge/fitted.hpp>
#include <kvmeld/score/global.hpp>
#include <kvmeld/score/keeping_queries.hpp>
#include <kvmeld/score/observation.hpp>
#include <kvmeld/score/reference_queries.hpp>
#include <kvmeld/select/top.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace preset {

/// Attention Matching (Zweiger et al., "Fast KV Compaction via Attention Matching", 2026, with the keys of
/// the highest attention): keeps what reference queries look at, and fits values to those queries' outputs
/// over all entries. The references are queries of a second reading of the prompt (the paper's
/// "repeat-prefill"), 64 per query head, spread over it.
namespace attention_matching {
/// The parts of this policy.
using type =
    policy<score::keeping_queries<score::root_mean_square>, select::top, identify::evict_rest, merge::fitted>;
/// Keeps a few sinks and recents, and fills the rest of the budget by score. The paper keeps neither: give
/// quantity::entries(0) for both.
inline type for_budget(quantity recents = quantity::at_most(32, 0.25),
                       quantity sinks = quantity::at_most(4, 0.25)) {
  return {{}, {sinks, recents, quantity::rest_of_budget()}, {}, {}};
}
}  // namespace attention_matching

/// An eviction policy that fits the values of what it keeps to reference queries, which it keeps besides.
/// Show it all queries of the prompt, not only those that `evicting` asks for. If `evicting` wants a second
/// reading of the prompt, the references are queries of that reading.
template <class Score, class Select>
policy<score::keeping_queries<Score>, Select, identify::evict_rest, merge::fitted> fitting(
    policy<Score, Select, identify::evict_rest, merge::drop> const& evicting,
    reference_queries queries = {}) {
  return {{evicting.score, queries}, evicting.select, {}, {}};
}

}  // namespace preset
}  // namespace KVMELD_ABI
}  // namespace kvmeld
