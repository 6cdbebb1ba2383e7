// SPDX-License-Identifier: Apache-2.0
// Checks whether a cache can be built: extent, layouts, policy, and whether the engine's attention can add
// the bias of merged entries.
#pragma once

#include <kvmeld/cache/cache_options.hpp>
#include <kvmeld/cache/check_shared_budget.hpp>
#include <kvmeld/core/budget_scope.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/layout/latent.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/layout_problem.hpp>
#include <kvmeld/layout/overlap.hpp>
#include <kvmeld/merge/fitted.hpp>
#include <kvmeld/merge/merge_function.hpp>
#include <kvmeld/policy/check_policy.hpp>
#include <kvmeld/policy/rules.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/shared/sharing.hpp>

#include <cstdint>
#include <limits>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

/// Why attention cannot use the entries of this merge function under these options; empty if it can. An entry
/// that stands for N tokens needs log N added to its logit; without it, the entry gets too little attention.
template <class Merge> std::string bias_problem(Merge const& merge, cache_options const& options) {
  if (!merge.carries_degree() || options.ignore_degree) return {};
  if (options.bias == bias_support::none) {
    return refusal(
        "options", "bias", "bias_support::none",
        "per_head, or shared with options.scope layer or all_layers, because merged entries stand for "
        "several tokens (or set options.ignore_degree)");
  }
  if (options.bias == bias_support::shared && fit_of(merge).degrees) {
    return refusal(
        "options", "bias", "bias_support::shared",
        "per_head, because every head fits degrees of its own (or set merge::fitted.degrees = false)");
  }
  if (options.bias == bias_support::shared && options.scope == plan_scope::head) {
    return refusal(
        "options", "bias", "bias_support::shared",
        "per_head, because every head makes a plan of its own (or set options.scope to layer or all_layers, "
        "or options.ignore_degree)");
  }
  return {};
}

/// Why K and V do not fit a cache of this extent; empty if they do.
template <class Keys, class Values>
std::string tensors_problem(kv<Keys, Values> const& x, shape const& extent) {
  std::string problem = layout_problem("keys", x.keys, extent.key_dim, extent);
  if (problem.empty()) problem = layout_problem("values", x.values, extent.value_dim, extent);
  if (problem.empty()) problem = validate_tensors(x, extent, 1);
  // In tensors that grow, tracks may overlap beyond the slots that they hold now. Slots of one track never
  // may.
  shape const track{1, 1, 1, 1, extent.key_dim, extent.value_dim, extent.capacity};
  if (problem.empty()) problem = folding_problem("keys", x.keys, track, 2);
  if constexpr (!reads_keys<Values>::value) {
    if (problem.empty()) problem = folding_problem("values", x.values, track, 2);
  }
  return problem;
}

/// Why this merge function cannot merge values that are channels of the keys; empty if it can.
template <class Values, class Merge> std::string latent_problem(Merge const& merge) {
  merge_facts const m = facts_of<merge_facts>(merge);
  if (reads_keys<Values>::value && fit_of(merge).values) {
    return refusal("policy", "merge::fitted.values", "true",
                   "false, because values are channels of the keys (latent), and keys stay");
  }
  if (!reads_keys<Values>::value || (!m.spreads && !m.shares)) return {};
  return refusal("policy", "merge function", "one that merges values otherwise than keys",
                 "one that gives both the same weights, because values are channels of the keys (latent)");
}

}  // namespace detail

/// Why tracks cannot be padded to one length under these options; empty if they can, or need not be.
template <class Merge> std::string padding_problem(Merge const&, cache_options const& options) {
  if (!options.padded) return {};
  if (options.whole_plan) {
    return refusal(
        "options", "padded", "true",
        "false with options.whole_plan, whose plans may be edited to lengths that the host does not know");
  }
  if (std::string text = detail::sharing_of<Merge>::padding_problem(); !text.empty()) return text;
  if (options.bias == bias_support::per_head) return {};
  if (options.bias == bias_support::shared && options.scope != plan_scope::head) return {};
  return refusal(
      "options", "padded", "true",
      "false, because empty slots are masked by a bias (or set options.bias to per_head, or to shared "
      "with options.scope layer or all_layers)");
}

namespace detail {

/// Why options.budgets_over is too wide; empty if it is not. Slots of a budget scope are counted in 32 bits.
inline std::string shared_budget_size_problem(cache_options const& options) {
  std::uint32_t const tracks = tracks_per_budget(options.budgets_over, options.extent);
  std::uint64_t const entries = std::uint64_t{tracks} * options.extent.capacity;
  constexpr std::uint32_t most = std::numeric_limits<std::uint32_t>::max();
  if (tracks == 1 || entries <= most) return {};
  return refusal("options.budgets_over",
                 message("number of slots of a ", detail::name_of_scope(options.budgets_over)), entries,
                 "at most ", most);
}

/// Why a cache cannot be built from these arguments; empty if it can.
template <class Policy, class Keys, class Values>
std::string construction_problem(Policy const& p, kv<Keys, Values> const& x, cache_options const& options) {
  std::string problem = extent_problem(options.extent);
  if (problem.empty()) problem = members_problem(options.members, options.extent.tracks());
  if (problem.empty()) problem = ledger_pages_problem(options);
  if (problem.empty()) problem = scope_problem(options);
  if (problem.empty()) problem = tensors_problem(x, options.extent);
  if (problem.empty()) problem = configuration_problem(p);
  if (problem.empty()) problem = table_problem(p.score, options.extent);
  if (problem.empty()) problem = shape_problem(p.identify, options.extent);
  if (problem.empty()) problem = bias_problem(p.merge, options);
  if (problem.empty()) problem = latent_problem<Values>(p.merge);
  if (problem.empty()) problem = padding_problem(p.merge, options);
  if (problem.empty()) problem = shared_budget_size_problem(options);
  if (problem.empty()) problem = sharing_of<typename Policy::merge_type>::room_problem(options.members);
  return refusal_within("merged_cache", problem);
}

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
