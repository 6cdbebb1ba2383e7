// SPDX-License-Identifier: Apache-2.0
// D2O's token level (Wan et al., "D2O: Dynamic Discriminative Operations for Efficient Long-Context
// Inference", 2024).
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/admit.hpp>
#include <kvmeld/identify/nearest_center.hpp>
#include <kvmeld/merge/weighted.hpp>
#include <kvmeld/score/global.hpp>
#include <kvmeld/select/tiers.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace preset {
namespace d2o {

/// D2O's parts.
using type = policy<score::global, select::tiers,
                    identify::nearest_center<admit::ema_threshold, identify::resemblance::keys>,
                    merge::similarity_weighted>;

/// Evicts as H2O does: half of the budget is recent entries, half is chosen by accumulated attention. An
/// evicted entry merges into the heavy hitter whose key it resembles most, if the two are as alike as a
/// threshold that follows the track. For the layer budgets of the paper, pass budget::per_track.
inline type defaults(float beta = 0.7f) {
  return {{}, {quantity::entries(0), quantity::of_budget(0.5), quantity::entries(0), 1e6}, {{beta}}, {}};
}

}  // namespace d2o
}  // namespace preset
}  // namespace KVMELD_ABI
}  // namespace kvmeld
