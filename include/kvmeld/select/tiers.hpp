// SPDX-License-Identifier: Apache-2.0
// Four tiers by importance: pinned, centres, mergeable, irrelevant.
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

/// EMS section 4.2. Pins the `sinks` first and `window` last entries and the `protect` best of the rest. The
/// next best become centres, as many as the budget has room for. Of the remaining entries, the best
/// (magnification - 1) * budget are mergeable, and the others irrelevant. Where the cache shares entries,
/// members compete with entries for these places: a token is ranked by its own score, whether it still has a
/// slot or not. Ties go to entries, then to the lower slot or member.
struct tiers {
  quantity sinks = quantity::entries(0);    ///< first entries that are pinned
  quantity window = quantity::entries(32);  ///< last entries that are pinned
  quantity protect = quantity::entries(0);  ///< best entries by score that are pinned, not centres
  double magnification = 4.0;               ///< gamma = (N_budget + N_tbm) / N_budget; tbm: to be merged

  static constexpr char const* name = "tiers";
  static constexpr select_facts facts{&select_facts::needs_score, &select_facts::makes_centers,
                                      &select_facts::pins_exactly};

  KVMELD_HD pins pinned(std::uint32_t length, std::uint32_t limit, std::uint32_t frozen) const {
    pins p = resolve_pins(sinks, window, protect, length, limit, frozen);
    p.centers = min_of(length - p.total(), limit > p.total() ? limit - p.total() : 0);
    return p;
  }
  /// Number of tokens, besides pinned entries and centres, that are not irrelevant under this budget.
  KVMELD_HD std::uint32_t others(std::uint32_t limit) const {
    double const all = (magnification - 1.0) * static_cast<double>(limit);
    return all < 1e9 ? floor_share(magnification - 1.0, limit) : 1000000000u;  // more than a track can hold
  }

  template <class Team>
  KVMELD_HD void assign(Team const& team, select_view const& view, pins const& p) const {
    pin_ends(team, view, p);
    std::uint32_t const n = view.length(), members = view.members();
    // A NaN score ranks lowest but stays eligible, so that the budget is met exactly.
    auto const open = [&](std::uint32_t i) {
      return view.role_of(i) == role::mergeable ? eligible_key(view.score(i)) : 0u;
    };
    select_k(team, n, p.heavy, open, [&](std::uint32_t i) { view.role_of(i) = role::pinned; });
    select_k(team, n, p.centers, open, [&](std::uint32_t i) { view.role_of(i) = role::center; });

    team.for_each(members, [&](std::uint32_t m) { view.keep_member(m, false); });
    team.for_each(n, [&](std::uint32_t i) {
      if (view.role_of(i) == role::mergeable) view.role_of(i) = role::irrelevant;
    });
    team.sync();
    select_k(
        team, n + members, min_of(others(view.limit()), view.room_for_members()),
        [&](std::uint32_t i) {
          if (i >= n) return eligible_key(view.member_score(i - n));
          return view.role_of(i) == role::irrelevant ? eligible_key(view.score(i)) : 0u;
        },
        [&](std::uint32_t i) {
          if (i < n) {
            view.role_of(i) = role::mergeable;
          } else {
            view.keep_member(i - n, true);
          }
        });
  }
  std::string problem() const {
    if (!is_within(magnification, 1.0, 1e6)) {
      return refusal("policy", "select::tiers.magnification", magnification, "1 to 1000000");
    }
    return first_problem({share_problem("select::tiers.sinks", sinks),
                          share_problem("select::tiers.window", window),
                          share_problem("select::tiers.protect", protect)});
  }
};

}  // namespace select
}  // namespace KVMELD_ABI
}  // namespace kvmeld
