// SPDX-License-Identifier: Apache-2.0
// KVMerger, "Model Tells You Where to Merge: Adaptive KV Cache Merging for LLMs" (2024): defaults and
// citations.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/admit.hpp>
#include <kvmeld/identify/consecutive_threshold.hpp>
#include <kvmeld/merge/gaussian.hpp>
#include <kvmeld/score/global.hpp>
#include <kvmeld/select/top.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace preset {
namespace kvmerger {

/// KVMerger that meets a budget.
using type =
    policy<score::global, select::top, identify::consecutive_threshold<admit::exact_budget>, merge::gaussian>;
/// KVMerger with a given threshold, as printed.
using paper_type =
    policy<score::global, select::top, identify::consecutive_threshold<admit::threshold>, merge::gaussian>;

/// Our reading of KVMerger for a budget. A third of the budget is recent entries and a quarter heavy entries,
/// which is what the paper's 50% setting comes to (0.17 and 0.12 of the context). Each head has a threshold
/// that meets the budget. Weights are Gaussian, with the mean distance as bandwidth; degrees and scores add.
inline type for_budget(quantity recents = quantity::of_budget(1.0 / 3),
                       quantity heavy = quantity::of_budget(0.25)) {
  return {{}, {quantity::entries(0), recents, heavy}, {}, {}};
}

/// As for_budget, but with a threshold per layer that calibrate::thresholds_for found for a ratio with the
/// same quantities. `theta` is [layers] in memory that phases read, and must live as long as the policy is
/// used. The length reached depends on the data, but less so the more alike texts are (section 3.2: the
/// sparsity persists). The budget only says whether to compress: use shortfall::keep.
inline paper_type with_thresholds(float const* theta, quantity recents, quantity heavy) {
  paper_type p{};
  p.select = {quantity::entries(0), recents, heavy};
  p.identify.admission.per_layer = theta;
  return p;
}

/// As printed, for a 50% cache: theta 0.75, recent entries 0.17 and protected ones 0.12 of the context, sigma
/// 5, no degrees. The length reached depends on the data; the budget only says whether to compress:
/// use shortfall::keep.
inline paper_type paper_50() {
  paper_type p{};
  p.select = {quantity::entries(0), quantity::of_length(0.17), quantity::of_length(0.12)};
  p.merge.sigma = merge::bandwidth::fixed;
  p.merge.degrees = false;
  return p;
}
/// As printed, for a 35% cache: recent entries 0.08 and protected ones 0.02 of the context.
inline paper_type paper_35() {
  paper_type p = paper_50();
  p.select = {quantity::entries(0), quantity::of_length(0.08), quantity::of_length(0.02)};
  return p;
}

}  // namespace kvmerger
}  // namespace preset
}  // namespace KVMELD_ABI
}  // namespace kvmeld
