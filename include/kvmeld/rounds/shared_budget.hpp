// SPDX-License-Identifier: Apache-2.0
// Budgets that tracks share: the entries of all tracks of a budget scope compete by
// score for the sum of the tracks' budgets.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/budget_scope.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/select/selector.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Base of the phases of budget scopes. Each track has a tile; the first track's tile does what concerns all.
struct budget_phase : phase_over<scored_tracks> {
  KVMELD_HD bool leads(tile const& t) const { return t.item % wave.per_budget == 0; }
  /// Sum of f(item) over the tracks of the budget scope that `first` leads. Collective.
  template <class Team, class F>
  KVMELD_HD std::uint32_t sum(Team const& team, std::uint32_t first, F f) const {
    std::uint32_t all = 0;
    team.for_each(wave.per_budget, [&](std::uint32_t m) { all += f(first + m); });
    return team.reduce(all, op_sum{});
  }
};

/// Runs after begin_phase: adds up budgets and entries. All tracks of a budget scope take part, or none if
/// the scope is within its budget.
struct open_budget_phase : budget_phase {
  double floor;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t)) return;
    auto const own = [&](std::uint32_t item) {
      return min_of(wave.state[item].limit, wave.ledger.extent.capacity);
    };
    std::uint32_t const held = sum(team, t.item, [&](std::uint32_t item) { return wave.state[item].length; });
    std::uint32_t const allowed = sum(team, t.item, own);
    bool const over = held > allowed;
    team.for_each(wave.per_budget, [&](std::uint32_t m) {
      track_state& s = wave.state[t.item + m];
      share_state h{};
      h.own = h.due = own(t.item + m);
      s.limit = over ? h.own : s.length;  // within the sum, a track may be above its own budget
      h.reserve = h.floor = min_of(s.length, max_of(std::uint32_t{1}, floor_share(floor, h.own)));
      h.budget = min_of(held, allowed);
      s.over_budget = over && s.length != 0 ? 1 : 0;
      wave.share[t.item + m] = h;
    });
  }
};

/// Prepares the division of a budget by score (after Ada-KV: Feng et al., "Ada-KV: Optimizing KV Cache
/// Eviction by Adaptive Budget Allocation for Efficient LLM Inference", 2024). Ada-KV blends the outcome with
/// the even division. Here every track's floor comes first and the rest competes, so that the sum is exact. A
/// track's own budget decides what is pinned at its ends, and how many sets it has (identifiers that fill a
/// budget); the entries between the ends compete for the rest.
template <class Select> struct rank_phase : budget_phase {
  Select select;
  bool makes_centers, makes_sets, leaves_room;  ///< the last: fills_budget

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (team.lane() != 0) return;
    track_state& s = wave.state[t.item];
    share_state& h = wave.share[t.item];
    h.keys = h.least = h.most = 0;
    h.fixed = s.length;
    if (s.over_budget == 0) return;
    pins const p = select.pinned(s.length, h.own, s.shielded);
    s.sinks = p.sinks;
    s.recents = p.recents;
    std::uint32_t const ends = p.sinks + p.recents;
    // Sets need a center besides what is pinned. A track keeps all its entries if it pins more than its
    // budget because pages may not be written.
    std::uint32_t const room = leaves_room ? min_of(s.length - ends, room_for_sets(p, h.own)) : 0;
    std::uint32_t const least = makes_centers ? p.total() + (makes_sets ? 1u : 0u) : ends + room;
    h.floor = p.total() <= h.own ? min_of(s.length, max_of(h.reserve, least)) : s.length;
    h.due = max_of(h.own, h.floor);
    h.fixed = ends + room;
    h.keys = s.length - ends;
    h.most = s.length - h.fixed;
    h.least = h.floor - h.fixed;
  }
};

/// Computes how many entries stay in all tracks, and how many of them have to compete.
struct stay_phase : budget_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t)) return;
    std::uint32_t const due = sum(team, t.item, [&](std::uint32_t item) { return wave.share[item].due; });
    std::uint32_t const held = sum(team, t.item, [&](std::uint32_t item) { return wave.state[item].length; });
    std::uint32_t const fixed = sum(team, t.item, [&](std::uint32_t item) { return wave.share[item].fixed; });
    if (team.lane() != 0) return;
    share_state& leader = wave.share[t.item];
    leader.total = min_of(due, held);
    leader.wanted = leader.total > fixed ? leader.total - fixed : 0;
    leader.prefix = 0;
  }
};

/// Counts order keys that begin with the digits found so far, by their next digit. Pass 0: the highest digit.
struct count_scores_phase : budget_phase {
  static constexpr bool near_scratch = true;
  std::uint32_t pass;

  std::size_t scratch_bytes(int) const { return scratch_size(budget_counts * sizeof(std::uint32_t)); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    share_state const s = wave.share[t.item];
    std::uint32_t const prefix = wave.share[wave.budget_leader(t.item)].prefix;
    std::uint32_t const shift = 24 - 8 * pass;
    std::uint32_t* const histogram = team.template scratch<std::uint32_t>(budget_counts);
    team.for_each(budget_counts, [&](std::uint32_t b) { histogram[b] = 0; });
    team.sync();
    float const* const score = wave.score + wave.at(t.item, wave.state[t.item].sinks);
    team.for_each(s.least < s.most ? s.keys : 0, [&](std::uint32_t i) {
      std::uint32_t const x = eligible_key(score[i]);
      if (x != 0 && (pass == 0 || x >> (shift + 8) == prefix))
        team.fetch_add(&histogram[(x >> shift) & 255u], 1);
    });
    team.sync();
    std::uint32_t* const out = wave.counts_of(t.item);
    team.for_each(budget_counts, [&](std::uint32_t b) { out[b] = histogram[b]; });
  }
};

/// Finds the next digit of the lowest order key that stays: the highest digit with which all tracks together
/// still keep `wanted` entries, where each track keeps between `least` and `most`. After the last pass every
/// track has its quota. It counts all higher keys. It also counts keys equal to the lowest one, as many as
/// are left; earlier tracks come first. Within a track the quota goes to the highest keys; if keys are equal,
/// the lower index comes first.
struct narrow_scores_phase : budget_phase {
  bool first_pass, last_pass;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t)) return;
    share_state* const share = wave.share + t.item;
    std::uint32_t const n = wave.per_budget;
    std::uint32_t const wanted = share[0].wanted, prefix = share[0].prefix;
    team.for_each(n, [&](std::uint32_t m) {  // counts from the highest digit down to this one
      std::uint32_t* const counts = wave.counts_of(t.item + m);
      for (std::uint32_t b = budget_counts - 1; b-- > 0;) counts[b] += counts[b + 1];
      if (first_pass) share[m].above = 0;
    });
    team.sync();
    std::uint32_t digit = 0;
    team.for_each(budget_counts, [&](std::uint32_t b) {
      std::uint32_t taken = 0;
      for (std::uint32_t m = 0; m < n; ++m)
        taken += share[m].clamped(share[m].above + wave.counts_of(t.item + m)[b]);
      if (taken >= wanted) digit = max_of(digit, b);
    });
    digit = team.reduce(digit, op_max{});
    team.for_each(n, [&](std::uint32_t m) {
      std::uint32_t const* const counts = wave.counts_of(t.item + m);
      std::uint32_t const higher = digit + 1 < budget_counts ? counts[digit + 1] : 0;
      share[m].above += higher;
      share[m].quota = share[m].above + counts[digit] - higher;  // with those that share the digit
    });
    team.sync();
    if (team.lane() == 0) share[0].prefix = prefix << 8 | digit;
    if (last_pass) share_ties(team, t.item, wanted);
  }

private:
  template <class Team>
  KVMELD_HD void share_ties(Team const& team, std::uint32_t first, std::uint32_t wanted) const {
    share_state* const share = wave.share + first;
    std::uint32_t const above = sum(
        team, first, [&](std::uint32_t item) { return wave.share[item].clamped(wave.share[item].above); });
    std::uint32_t const left = wanted > above ? wanted - above : 0;
    lane_range const mine = contiguous_range(team, wave.per_budget);
    std::uint32_t ties = 0;
    for (std::uint32_t m = mine.begin; m < mine.end; ++m)
      ties += share[m].clamped(share[m].quota) - share[m].clamped(share[m].above);
    std::uint32_t before = team.scan(ties).before;
    for (std::uint32_t m = mine.begin; m < mine.end; ++m) {
      std::uint32_t const sure = share[m].clamped(share[m].above);
      std::uint32_t const own = share[m].clamped(share[m].quota) - sure;
      share[m].quota = sure + min_of(own, left > before ? left - before : 0);
      before += own;
    }
  }
};

/// Sets every track's limit: the entries that do not compete, and its quota.
struct limit_phase : budget_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state& s = wave.state[t.item];
    if (team.lane() != 0 || s.over_budget == 0) return;
    s.limit = wave.share[t.item].fixed + wave.share[t.item].quota;
    s.over_budget = s.length > s.limit ? 1 : 0;
  }
};

/// Runs behind end_phase, once all tracks of a budget scope are planned. If the scope is done but above its
/// budget, all its tracks get warning::budget_unreached.
struct close_budget_phase : budget_phase {
  bool last;  ///< no further rounds follow

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t)) return;
    std::uint32_t const alive = sum(team, t.item, [&](std::uint32_t item) { return wave.state[item].alive; });
    std::uint32_t const going =
        sum(team, t.item, [&](std::uint32_t item) { return wave.state[item].over_budget; });
    bool const over = alive > wave.share[t.item].budget && (going == 0 || last);
    team.for_each(wave.per_budget, [&](std::uint32_t m) {
      wave.state[t.item + m].limit = wave.state[t.item + m].alive;
      if (over) wave.ledger.warnings[wave.where(t.item + m).index] |= warning::budget_unreached;
    });
  }
};

/// Sets the limits of tracks that share their budgets; runs before selection. A radix selection over order
/// keys, one digit per pass.
template <class Launch, class Policy> void limit_by_score(Launch const& launch, Policy const& p) {
  wave_ref const& wave = launch.wave;
  launch(rank_phase<typename Policy::select_type>{{wave},
                                                  p.select,
                                                  facts_of<select_facts>(p.select).makes_centers,
                                                  facts_of<identify_facts>(p.identify).makes_sets,
                                                  facts_of<identify_facts>(p.identify).fills_budget});
  launch(stay_phase{{wave}});
  constexpr std::uint32_t passes = 4;
  for (std::uint32_t pass = 0; pass < passes; ++pass) {
    launch(count_scores_phase{{wave}, pass});
    launch(narrow_scores_phase{{wave}, pass == 0, pass + 1 == passes});
  }
  launch(limit_phase{{wave}});
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
