// SPDX-License-Identifier: Apache-2.0
// Chelsea's outlier heads: those whose keys have no similar neighbours keep everything, the others less
// (Chelsea, section 4.3).
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
#include <kvmeld/identify/chunked_bipartite.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/merge/weighted.hpp>
#include <kvmeld/score/none.hpp>
#include <kvmeld/select/sinks_and_recents.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace calibrate {

/// How Chelsea finds outlier heads: by edges with a cosine above `edge_threshold`.
struct outlier_rule {
  float edge_threshold = 0.8f;               ///< edges of at most this cosine do not count
  std::uint32_t chunk = 256;                 ///< entries of a chunk, as in identify::chunked_bipartite
  quantity sinks = quantity::entries(16);    ///< first entries that are left out
  quantity recents = quantity::entries(64);  ///< last entries that are left out
};

/// Share of unmatched A entries per head of one sequence: [layers][kv_heads]. A is every other entry of the
/// middle, between sinks and recents. An A entry is unmatched if no B entry of its chunk has a cosine above
/// the rule's threshold. The share is 1 where the middle has fewer than two entries. K and V, slots 0 to
/// `tokens` - 1, lie in memory that the executor and the host can read. They are not written. Allocates the
/// metadata of a cache of its own. Average the shares over samples of text as long as the contexts to come.
/// Refuses what merged_cache refuses; returns an empty vector then where exceptions are off.
template <class Executor, class Keys, class Values>
std::vector<double> unmatched_shares(Executor executor, kv<Keys, Values> const& tensors, shape const& extent,
                                     std::uint32_t sequence, std::uint32_t tokens, outlier_rule rule = {}) {
  static_assert(is_immediate<Executor>::value,
                "kvmeld: calibrate::unmatched_shares reads plans on the host: copy K and V there");
  using identifier = identify::chunked_bipartite<admit::threshold>;
  using policy_type = policy<score::none, select::sinks_and_recents, identifier, merge::degree_weighted>;
  identifier const match{rule.chunk, {rule.edge_threshold}};
  cache_options options{extent};
  options.whole_plan = true;
  merged_cache<Executor, policy_type, Keys, Values> cache(
      std::move(executor), policy_type{{}, {rule.sinks, rule.recents}, match, {}}, tensors, options);
  std::vector<double> out;
  if (!cache.open(sequence, tokens).ok()) return out;
  std::uint32_t const pinned = rule.sinks.resolve(tokens, 1, 0) + rule.recents.resolve(tokens, 1, 0);
  if (tokens < pinned + 2) return std::vector<double>(std::size_t{extent.layers} * extent.kv_heads, 1.0);
  if (!cache.plan({sequence}, budget::entries(pinned + 1), shortfall::keep).ok()) return out;
  std::uint32_t const edges = match.edges(tokens - pinned);
  plan_ref const& found = cache.current_plan();
  work_list const work = cache.planned_work();
  for (std::uint32_t item = 0; item < work.tracks(extent); ++item) {
    std::uint32_t const merged = found.old_length[item] - found.new_length[item];
    out.push_back(1.0 - static_cast<double>(merged) / edges);
  }
  return out;
}

/// Marks the heads with the largest shares of unmatched entries: floor(fraction * heads) of them, at least
/// one where fraction > 0; ties to the lower head.
inline std::vector<bool> outlier_heads(std::vector<double> const& unmatched, double fraction = 0.04) {
  std::string problem;
  if (!(is_within(fraction, 0.0, 1.0) && fraction < 1.0)) {
    problem = refusal("outlier_heads", "fraction", fraction, "at least 0 and below 1");
  } else if (unmatched.empty()) {
    problem = refusal("outlier_heads", "number of shares", 0, "at least 1, one per head");
  }
  if (!raise(problem)) return {};
  auto const heads = static_cast<std::uint32_t>(unmatched.size());
  std::uint32_t const count = fraction > 0.0 ? max_of(1u, floor_share(fraction, heads)) : 0;
  std::vector<std::size_t> order(heads);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return unmatched[a] > unmatched[b]; });
  std::vector<bool> out(heads, false);
  for (std::uint32_t i = 0; i < count; ++i) out[order[i]] = true;
  return out;
}

/// Share per head: outliers keep everything, the others (ratio - f) / (1 - f), where f is the share of
/// outliers. The mean is then `ratio`.
inline std::vector<double> outlier_shares(std::vector<bool> const& outlier, double ratio) {
  auto const heads = static_cast<double>(outlier.size());
  auto const whole = static_cast<double>(std::count(outlier.begin(), outlier.end(), true));
  std::string problem;
  if (!(is_within(ratio, 0.0, 1.0) && (ratio * heads > whole || (ratio == 1.0 && whole == heads)))) {
    problem =
        refusal("outlier_shares", "ratio", ratio,
                whole == heads ? "1, because all heads" : "above the share of heads that",
                whole == heads ? " keep everything"
                               : message(" keep everything, ", whole, " of ", heads, ", and at most 1"));
  }
  if (!raise(problem)) return {};
  double const rest = whole == heads ? 1.0 : (ratio * heads - whole) / (heads - whole);
  std::vector<double> out;
  for (bool const is : outlier) out.push_back(is ? 1.0 : rest);
  return out;
}

}  // namespace calibrate
}  // namespace KVMELD_ABI
}  // namespace kvmeld
