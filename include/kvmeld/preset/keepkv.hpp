// SPDX-License-Identifier: Apache-2.0
// KeepKV, "KeepKV: Achieving Periodic Lossless KV Cache Compression for Efficient LLM Inference" (2025), in
// this library's parts.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/admit.hpp>
#include <kvmeld/identify/chunked_bipartite.hpp>
#include <kvmeld/merge/mass_preserving.hpp>
#include <kvmeld/score/global.hpp>
#include <kvmeld/select/top.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace preset {
namespace keepkv {

/// The parts of this policy.
using type = policy<score::global, select::top, identify::chunked_bipartite<admit::exact_budget>,
                    merge::mass_preserving>;

/// Our composition around the paper's idea that a merged entry keeps the attention of its members. A third of
/// the budget is recent entries, a quarter is heavy entries, and the most similar of the rest merge until the
/// budget is met. Weights go by accumulated attention; the paper predicts attention by a moving average, and
/// merges each evicted entry into its most similar kept one. The paper rescales the merged key; here the
/// degree has that effect: see merge::mass_preserving.
inline type for_budget(quantity recents = quantity::of_budget(1.0 / 3),
                       quantity heavy = quantity::of_budget(0.25)) {
  return {{}, {quantity::entries(0), recents, heavy}, {256, {}}, {}};
}

}  // namespace keepkv
}  // namespace preset
}  // namespace KVMELD_ABI
}  // namespace kvmeld
