// SPDX-License-Identifier: Apache-2.0
// KVMerger's thresholds for a ratio: one per layer, as the paper gives them (KVMerger, section 4.2 and table
// 1).
#pragma once

#include <kvmeld/cache/cache_options.hpp>
#include <kvmeld/cache/merged_cache.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/identify/admit.hpp>
#include <kvmeld/identify/consecutive_threshold.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace calibrate {

/// Returns a threshold per layer. With it, the layer's heads together keep as near to `ratio` of their
/// entries as bisection to 2^-12 comes. `policy` is of the kind that preset::kvmerger::paper_50 returns. Its
/// selector says what is protected; its threshold is not used. `fill(cache)` receives a cache over `tensors`.
/// It opens sequence 0 with the sample's tokens and lets the cache observe their attention. K and V are read
/// on the host, and are not written. The metadata of a cache is allocated. The number of sets need not fall
/// wherever the threshold falls; the threshold found is one at which this number crosses the wanted one.
template <class Executor, class Policy, class Keys, class Values, class Fill>
std::vector<double> thresholds_for(Executor executor, Policy policy, kv<Keys, Values> const& tensors,
                                   shape const& extent, double ratio, Fill fill) {
  static_assert(is_immediate<Executor>::value,
                "kvmeld: calibrate::thresholds_for reads plans on the host: copy K and V there");
  if (!(is_within(ratio, 0.0, 1.0) && ratio > 0.0)) {
    (void)raise(refusal("thresholds_for", "ratio", ratio, "above 0 and at most 1"));
    return {};
  }
  std::vector<float> theta(extent.layers, 0.0f), low(extent.layers, -1.0f), high(extent.layers, 1.0f);
  policy.identify.admission = {0.0f, false, theta.data()};
  cache_options options{extent};
  options.whole_plan = true;
  merged_cache<Executor, Policy, Keys, Values> cache(std::move(executor), policy, tensors, options);
  fill(cache);
  std::uint32_t const tokens = cache.tokens(0);
  if (tokens < 2) {
    (void)raise(refusal("thresholds_for", "number of tokens of the sample", tokens, "at least 2"));
    return {};
  }
  for (int step = 0; step < 13; ++step) {
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer)
      theta[layer] = 0.5f * (low[layer] + high[layer]);
    // The budget only says whether to plan, so it is one below the length.
    if (!cache.plan({0}, budget::entries(tokens - 1), shortfall::keep).ok()) return {};
    std::vector<std::uint64_t> kept(extent.layers, 0), held(extent.layers, 0);
    work_list const work = cache.planned_work();
    for (std::uint32_t item = 0; item < work.tracks(extent); ++item) {
      std::uint32_t const layer = work.at(extent, item).layer;
      kept[layer] += cache.current_plan().new_length[item];
      held[layer] += cache.current_plan().old_length[item];
    }
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      bool const enough = static_cast<double>(kept[layer]) >= ratio * static_cast<double>(held[layer]);
      (enough ? high : low)[layer] = theta[layer];
    }
  }
  return {high.begin(), high.end()};
}

}  // namespace calibrate
}  // namespace KVMELD_ABI
}  // namespace kvmeld
