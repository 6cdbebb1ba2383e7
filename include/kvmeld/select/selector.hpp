// SPDX-License-Identifier: Apache-2.0
// What a selector is, and the phase that runs it.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/budget_scope.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/select/select_view.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A selector gives every entry of a track a role. It has one of two forms:
/// - `role choose(view, i)`: the role of entry i of a select_view; any lane asks
/// - `assign(team, view, pins)`: writes view.role_of(i) for all entries; all lanes of a team call it together
///
/// It has `pins pinned(length, limit, frozen)`: how many entries it will pin, and where. Host and device ask.
/// Everything else it states in its `facts` (select_facts).
namespace select_uses {
template <class S> using pinned = decltype(static_cast<pins>(contract::some<S>().pinned(0u, 0u, 0u)));
template <class S>
using choose = decltype(static_cast<role>(contract::some<S>().choose(contract::some<select_view>(), 0u)));
template <class S>
using assign = decltype(contract::some<S>().assign(contract::some<serial_team>(),
                                                   contract::some<select_view>(), contract::some<pins>()));
}  // namespace select_uses

namespace select {

/// What a selector has where it does not say otherwise; derive from it. It is for selectors that have
/// `choose`.
struct defaults {
  /// The frozen beginning alone is known before `choose` is asked.
  KVMELD_HD pins pinned(std::uint32_t, std::uint32_t, std::uint32_t frozen) const { return {frozen, 0, 0}; }
};

}  // namespace select

namespace detail {

/// Number of the first requirement that a selector fails, as require_selector counts; -1: none.
template <class S>
constexpr int missing_in_selector = contract::first_missing<
    std::is_trivially_copyable_v<S>, has_form_of_facts<select_facts, S>(),
    contract::allows<select_uses::pinned, S>,
    contract::allows<select_uses::choose, S> || contract::allows<select_uses::assign, S>>();

}  // namespace detail

/// Whether a type is a selector.
template <class Select> struct is_selector : std::bool_constant<detail::missing_in_selector<Select> == -1> {};

namespace detail {

/// Refuses a type that is no selector and says what it lacks. The compiler's note names the type.
template <class Select> constexpr void require_selector() {
  constexpr int missing = missing_in_selector<Select>;
  static_assert(missing != 0, "kvmeld: the selector is not trivially copyable");
  static_assert(missing != 1, "kvmeld: the selector states no `static constexpr select_facts facts`");
  static_assert(missing != 2, "kvmeld: the selector has no `pins pinned(length, limit, frozen)`");
  static_assert(missing != 3,
                "kvmeld: the selector has no `role choose(view, i)`, and no `assign(team, view, pins)`");
}

}  // namespace detail

/// Pins the first p.sinks and the last p.recents entries. Collective; no barrier.
template <class Team> KVMELD_HD void mark_ends(Team const& team, select_view const& view, pins const& p) {
  std::uint32_t const last = view.length() - p.recents;
  team.for_each(p.sinks, [&](std::uint32_t i) { view.role_of(i) = role::pinned; });
  team.for_each(p.recents, [&](std::uint32_t i) { view.role_of(last + i) = role::pinned; });
}

/// Pins the ends and marks all entries between them as mergeable. Collective; barrier at the end.
template <class Team> KVMELD_HD void pin_ends(Team const& team, select_view const& view, pins const& p) {
  mark_ends(team, view, p);
  team.for_each(view.length() - p.sinks - p.recents,
                [&](std::uint32_t i) { view.role_of(p.sinks + i) = role::mergeable; });
  team.sync();
}

namespace detail {

/// Scratch that `assign` may take from its team.
KVMELD_HD constexpr std::size_t select_scratch() { return 3 * select_k_scratch(); }

}  // namespace detail

/// Entries of a track's own budget that its pins leave, for sets.
KVMELD_HD inline std::uint32_t room_for_sets(pins const& p, std::uint32_t own) {
  return own - min_of(own, p.total());
}

/// How many entries of a track a selector pins. If tracks share a budget, a track's own budget decides the
/// pinned ends and the room for sets, and its part of the shared budget decides how many entries are chosen
/// by score: so a track of low scores, too, has sets that stand for all its entries. If all other entries
/// drop and the counts add up to 0 (shares of a small budget, or a threshold alone), one entry is pinned: the
/// best one, or without scores the last one. So a track that holds tokens never becomes empty.
template <class Select>
KVMELD_HD pins pins_of(Select const& select, wave_ref const& wave, std::uint32_t item,
                       select_facts const& facts, bool drops_unmerged) {
  track_state const& s = wave.state[item];
  if (wave.per_budget == 1) {
    pins p = select.pinned(s.length, s.limit, s.shielded);
    if (drops_unmerged && s.length != 0 && p.total() + p.centers == 0)
      (facts.needs_score ? p.heavy : p.recents) = 1;
    return p;
  }
  pins p = select.pinned(s.length, wave.share[item].own, s.shielded);
  std::uint32_t const rest = s.limit - min_of(s.limit, p.sinks + p.recents);
  if (facts.makes_centers) {
    p.centers = s.limit - min_of(s.limit, p.total());
  } else if (drops_unmerged) {
    p.heavy = rest;
  } else {
    p.heavy = rest - min_of(rest, room_for_sets(p, wave.share[item].own));
  }
  return p;
}

namespace detail {

/// Gives every entry its role, whichever form the selector has. Collective; barrier at the end.
template <class Select, class Team>
KVMELD_HD void assign_roles(Select const& select, Team const& team, select_view const& view,
                            [[maybe_unused]] pins const& p) {
  if constexpr (contract::allows<select_uses::choose, Select>) {
    team.for_each(view.length(), [&](std::uint32_t i) { view.role_of(i) = select.choose(view, i); });
  } else {
    select.assign(team, view, p);
  }
  team.sync();
}

template <class Select> struct select_phase {
  Select select;
  wave_ref wave;
  select_facts facts;   ///< of the selector as it is configured
  bool drops_unmerged;  ///< of the identifier: entries that are neither pinned nor centres go

  static constexpr bool light = stated_facts<select_facts, Select>.light;
  static constexpr bool near_scratch = true, spans_blocks = true;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return select_scratch(); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state& s = wave.state[t.item];
    if (s.over_budget == 0) return;
    pins const p = pins_of(select, wave, t.item, facts, drops_unmerged);
    select_view const view(wave, t.item);
    bool const fits = p.total() <= s.limit;  // else pages that may not be written fill the budget: all stay
    if (fits) assign_roles(select, team, view, p);
    // The shielded beginning stays, whatever a selector says.
    team.for_each(fits ? s.shielded : s.length, [&](std::uint32_t i) { view.role_of(i) = role::pinned; });
    team.sync();
    if (p.total() + p.centers <= 1) keep_one(team, view);
    if (team.lane() != 0) return;
    s.sinks = p.sinks;
    s.recents = p.recents;
    if (fits) return;
    s.over_budget = 0;
    if (wave.per_budget > 1) wave.share[t.item].floor = s.length;
  }

private:
  /// Pins the best entry, or without scores the last one, if none would stay. Collective; barrier at the end.
  template <class Team> KVMELD_HD void keep_one(Team const& team, select_view const& view) const {
    std::uint32_t const n = view.length();
    if (n == 0) return;
    std::uint32_t stay = 0;
    team.for_each(n, [&](std::uint32_t i) {
      role const r = view.role_of(i);
      bool const goes = r == role::irrelevant || (drops_unmerged && r == role::mergeable);
      stay |= goes ? 0u : 1u;
    });
    stay = team.reduce(stay, op_max{});
    if (stay != 0) return;
    std::uint32_t one = n - 1;
    if (facts.needs_score) {  // ties to the lower slot
      std::uint32_t highest = 0;
      team.for_each(n, [&](std::uint32_t i) { highest = max_of(highest, eligible_key(view.score(i))); });
      highest = team.reduce(highest, op_max{});
      one = n;
      team.for_each(n, [&](std::uint32_t i) {
        if (eligible_key(view.score(i)) == highest) one = min_of(one, i);
      });
      one = team.reduce(one, op_min{});
    }
    if (team.lane() == 0) view.role_of(one) = role::pinned;
    team.sync();
  }
};

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
