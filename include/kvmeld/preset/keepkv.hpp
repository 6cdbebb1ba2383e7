// KeepKV, "KeepKV: Achieving Periodic Lossless KV Cache Compression for Efficient LLM Inference" (2025), in
// this library's parts.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/admit/exact_budget.hpp>
#include <kvmeld/identify/chunked_bipartite.hpp>
#include <kvmeld/merge/mass_preserving.hpp>
#include <kvmeld/score/global.hpp>
#include <kvmeld/select/top.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace preset {
namespace keepkv {

/// The parts.
using type = policy<score::global, select::top, identify::chunked_bipartite<admit::exact_budget>,
                    merge::mass_preserving>;

/// A composition of ours around the paper's idea that a merged entry keeps its members' attention: a third of
/// the budget recent, a quarter heavy, the most similar of the rest merged until the budget is met, weights
/// by accumulated attention (the paper predicts attention by a moving average and merges each evicted entry
/// into its most similar kept one). Where the paper rescales the merged key, the degree does its work here:
/// see merge::mass_preserving.
inline type for_budget(quantity recents = quantity::of_budget(1.0 / 3),
                       quantity heavy = quantity::of_budget(0.25)) {
  return {{}, {quantity::entries(0), recents, heavy}, {256, {}}, {}};
}

}  // namespace keepkv
}  // namespace preset
}  // namespace KVMELD_ABI
}  // namespace kvmeld
