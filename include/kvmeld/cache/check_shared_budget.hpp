// SPDX-License-Identifier: Apache-2.0
// Budgets that tracks share: which calls refuse them, and what the host knows about them.
#pragma once

#include <kvmeld/cache/cache_options.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/budget_scope.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/policy/rules.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

inline char const* name_of_scope(budget_scope s) {
  return s == budget_scope::head    ? "budget_scope::head"
         : s == budget_scope::layer ? "budget_scope::layer"
                                    : "budget_scope::all_layers";
}

/// The entries that the tracks of one budget scope hold and may keep together, as the host knows them.
struct budget_sum {
  std::uint32_t tracks = 0, held = 0, allowed = 0;
  std::uint32_t excess() const { return held > allowed ? held - allowed : 0; }
};

/// Sums over the tracks of the budget scope that track `of` is in; held(track) gives a track's entries.
template <class Held>
budget_sum sum_of_budget(shape const& s, track of, budget const& allowed, std::uint32_t seen, Held held) {
  budget_sum all;
  bool const whole = allowed.among() == budget_scope::all_layers;
  for (std::uint32_t layer = whole ? 0 : of.layer; layer < (whole ? s.layers : of.layer + 1); ++layer) {
    for (std::uint32_t head = 0; head < s.kv_heads; ++head) {
      track const t = make_track(s, layer, of.sequence, head);
      ++all.tracks;
      all.held += held(t);
      all.allowed += min_of(allowed.resolve(t, seen), s.capacity);
    }
  }
  return all;
}

/// Whether a track is the first of its budget scope.
inline bool leads_budget(budget_scope among, track t) {
  return among == budget_scope::head || (t.kv_head == 0 && (among == budget_scope::layer || t.layer == 0));
}

}  // namespace detail

namespace check_calls {

/// Why a call cannot share this budget between tracks; empty if it can.
template <class Policy>
std::string shared_budget(char const* call, budget const& allowed, Policy const& policy,
                          cache_options const& options) {
  if (allowed.among() == budget_scope::head) return {};
  char const* const name = detail::name_of_scope(allowed.among());
  if (!is_within(allowed.floor(), 0.0, 1.0)) {
    return refusal(call, message("floor of a budget over ", name), allowed.floor(),
                   "0 to 1, a share of a track's own budget");
  }
  if (allowed.among() > options.budgets_over) {
    return refusal(call, "scope of the budget", name, "no wider than options.budgets_over, which is ",
                   detail::name_of_scope(options.budgets_over));
  }
  if (options.scope != plan_scope::head) {
    return refusal(call, "scope of the budget", name,
                   "budget_scope::head, because tracks that share a plan stay equally long (options.scope)");
  }
  if (!stays_by_score(policy)) {
    return refusal(call, "scope of the budget", name, "budget_scope::head, because policy ",
                   name_of_policy(policy), " does not decide by score alone what stays");
  }
  return {};
}

}  // namespace check_calls
}  // namespace KVMELD_ABI
}  // namespace kvmeld
