// SPDX-License-Identifier: Apache-2.0
// Any eviction policy that ranks by score, merging what it would evict.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/admit.hpp>
#include <kvmeld/identify/chunked_bipartite.hpp>
#include <kvmeld/identify/no_sets.hpp>
#include <kvmeld/merge/drop.hpp>
#include <kvmeld/merge/weighted.hpp>
#include <kvmeld/select/top.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace preset {

/// A policy that clusters what `evicting` would evict. It keeps the same sinks and recents, and the best
/// `heavy` entries by the same score. All others become centroids with degrees (Chelsea's identifier), which
/// take the rest of the budget. Needs a log-degree bias. Reaches its budget exactly.
template <class Score>
policy<Score, select::top, identify::chunked_bipartite<admit::top_share>, merge::degree_weighted> merging(
    policy<Score, select::top, identify::evict_rest, merge::drop> const& evicting,
    quantity heavy = quantity::of_budget(0.45)) {
  return {evicting.score, {evicting.select.sinks, evicting.select.recents, heavy}, {}, {}};
}

}  // namespace preset
}  // namespace KVMELD_ABI
}  // namespace kvmeld
