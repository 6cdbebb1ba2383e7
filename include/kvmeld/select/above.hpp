// SPDX-License-Identifier: Apache-2.0
// Roles by a threshold on the score: what is above it stays, however many entries that are (KVzap, DMS).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/select/select_view.hpp>
#include <kvmeld/select/selector.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace select {

/// Pins the `sinks` first and `recents` last entries and, of the rest, those that score at least `threshold`.
/// All other entries are mergeable. The budget is an upper bound: if more entries reach the threshold than it
/// has room for, those with the highest scores stay (ties to the lower slot). Tracks within their budget are
/// compressed too; with budget::ratio(1.0) the threshold alone decides. A NaN does not reach it. Tracks
/// cannot share budgets. As in DMS (Lancucki et al., "Inference-Time Hyper-Scaling with KV Cache
/// Compression", 2025) and in kvpress for KVzap ("KVzap: Fast, Adaptive, and Faithful KV Cache Pruning",
/// 2026), recent entries stay whatever they score, until they are no longer recent.
struct above {
  float threshold = 0.0f;                           ///< finite; least score that stays
  quantity sinks = quantity::entries(0);            ///< first entries
  quantity recents = quantity::at_most(128, 0.25);  ///< last entries

  static constexpr char const* name = "above";
  static constexpr select_facts facts{&select_facts::needs_score, &select_facts::thins_any_track};

  KVMELD_HD pins pinned(std::uint32_t length, std::uint32_t limit, std::uint32_t frozen) const {
    return resolve_pins(sinks, recents, quantity::entries(0), length, limit, frozen);
  }
  template <class Team>
  KVMELD_HD void assign(Team const& team, select_view const& view, pins const& p) const {
    pin_ends(team, view, p);
    std::uint32_t const least = order_key(threshold), limit = view.limit();
    auto const reaches = [&](std::uint32_t i) {
      return view.role_of(i) == role::mergeable && order_key(view.score(i)) >= least;
    };
    select_k(
        team, view.length(), limit - min_of(limit, p.sinks + p.recents),
        [&](std::uint32_t i) { return reaches(i) ? eligible_key(view.score(i)) : 0u; },
        [&](std::uint32_t i) { view.role_of(i) = role::pinned; });
  }
  std::string problem() const {
    if (!is_finite(threshold)) {
      return refusal("policy", "select::above.threshold", threshold, "a finite number");
    }
    return first_problem(
        {share_problem("select::above.sinks", sinks), share_problem("select::above.recents", recents)});
  }
};

}  // namespace select
}  // namespace KVMELD_ABI
}  // namespace kvmeld
