// The preset to begin with if nothing speaks for another method. The composition is ours, its parts are
// published. docs/demo.md has measurements.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/admit.hpp>
#include <kvmeld/identify/chunked_bipartite.hpp>
#include <kvmeld/merge/weighted.hpp>
#include <kvmeld/score/blended.hpp>
#include <kvmeld/score/leverage.hpp>
#include <kvmeld/score/local.hpp>
#include <kvmeld/select/top.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace preset {
namespace recommended {

/// The parts of this policy.
using type = policy<score::blended<score::leverage, score::local>, select::top,
                    identify::chunked_bipartite<admit::top_share>, merge::degree_weighted>;

/// Keeps whole what the last queries look at (SnapKV's score) and what no other key can stand in for
/// (Compactor's leverage); both count alike. Chelsea's clusters take in everything else. Pinned are 4 sinks,
/// the newest 15% of the budget, and the 60% with the highest score. The other entries share the remaining
/// 25% as centroids with degrees. Needs the prompt's last 32 queries (observe) or their attention, and a
/// log-degree bias. Reaches its budget exactly.
inline type for_budget(quantity recents = quantity::of_budget(0.15),
                       quantity heavy = quantity::of_budget(0.6),
                       quantity sinks = quantity::at_most(4, 0.25)) {
  return {{}, {sinks, recents, heavy}, {}, {}};
}

}  // namespace recommended
}  // namespace preset
}  // namespace KVMELD_ABI
}  // namespace kvmeld
