// SPDX-License-Identifier: Apache-2.0
// Chelsea, "Efficient Long-Context LLM Inference via KV Cache Clustering" (2025): defaults and citations.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/admit.hpp>
#include <kvmeld/identify/chunked_bipartite.hpp>
#include <kvmeld/merge/weighted.hpp>
#include <kvmeld/score/none.hpp>
#include <kvmeld/select/sinks_and_recents.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace preset {
namespace chelsea {

/// Chelsea's parts.
using type = policy<score::none, select::sinks_and_recents, identify::chunked_bipartite<admit::top_share>,
                    merge::degree_weighted>;

/// Keeps 16 sinks and 64 recents, and cuts the middle into chunks of 256 entries. Each round merges the most
/// similar share r_i of the middle, until the budget is met (section 4). For a budget too small for these
/// counts, pass quantity::at_most(64, 1.0 / 3) or the like.
inline type with_schedule(round_schedule schedule, quantity sinks = quantity::entries(16),
                          quantity recents = quantity::entries(64)) {
  return {{}, {sinks, recents}, {256, {schedule}}, {}};
}
/// r_i = 0.45 - 0.05 min(3, i).
inline type llama2() { return with_schedule({0.45, 0.05, 3, 0.05}); }
/// r_i = 0.35 - 0.1 min(2, i).
inline type llama3() { return with_schedule({0.35, 0.1, 2, 0.05}); }
/// r_i = 0.2 - 0.1 min(2, i), but at least 0.05. The formula reaches 0; the floor is ours (the paper gives
/// none).
inline type qwen() { return with_schedule({0.2, 0.1, 2, 0.05}); }
/// r_i = 0.25 in every round (needle in a haystack).
inline type needle() { return with_schedule({0.25, 0.0, 0, 0.05}); }

}  // namespace chelsea
}  // namespace preset
}  // namespace KVMELD_ABI
}  // namespace kvmeld
