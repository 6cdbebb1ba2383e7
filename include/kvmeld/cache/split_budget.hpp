// Budgets that tracks share: a split opens, ranks entries by score, and closes with what its tracks hold.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/split.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/identify/admit/pool.hpp>
#include <kvmeld/select/selector.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// After begin_phase: adds budgets and entries up. All tracks of a split take part, or none where it is within its budget.
struct open_split_phase : split_phase {
  double floor;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t)) return;
    auto const own = [&](std::uint32_t item) {
      return min_of(wave.state[item].limit, wave.ledger.extent.capacity);
    };
    std::uint32_t const held = sum(team, t.item, [&](std::uint32_t item) { return wave.state[item].length; });
    std::uint32_t const allowed = sum(team, t.item, own);
    team.for_each(wave.split, [&](std::uint32_t m) {
      track_state& s = wave.state[t.item + m];
      share_state h{};
      h.own = h.due = s.limit = own(t.item + m);
      h.reserve = h.floor = min_of(s.length, max_of(std::uint32_t{1}, floor_share(floor, h.own)));
      h.budget = min_of(held, allowed);
      s.active = held > allowed && s.length != 0 ? 1 : 0;
      wave.share[t.item + m] = h;
    });
  }
};

/// By score (after Ada-KV: Feng et al., "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient
/// LLM Inference", 2024; there the outcome is blended with the even one, here every track's floor comes first and the
/// rest competes, so that the sum is exact). The pinned ends are those of a track's own budget; what lies between competes.
template <class Select> struct rank_phase : split_phase {
  Select select;
  bool makes_centers, makes_sets;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (team.lane() != 0) return;
    track_state& s = wave.state[t.item];
    share_state& h = wave.share[t.item];
    h.keys = h.least = h.most = 0;
    h.fixed = s.length;
    if (s.active == 0) return;
    pins const p = select.pinned(s.length, h.own, s.shielded);
    s.sinks = p.sinks;
    s.recents = p.recents;
    std::uint32_t const ends = p.sinks + p.recents;
    // Sets need a centre besides what is kept whole. Pages that may not be written fill a budget: hands off.
    std::uint32_t const least = makes_centers ? p.total() + (makes_sets ? 1u : 0u) : ends;
    h.floor = p.total() <= h.own ? min_of(s.length, max_of(h.reserve, least)) : s.length;
    h.due = max_of(h.own, h.floor);
    h.fixed = ends;
    h.keys = h.most = s.length - ends;
    h.least = h.floor - ends;
  }
};

/// Entries that are to stay, and of them those that keys compete for.
struct stay_phase : split_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t)) return;
    std::uint32_t const due = sum(team, t.item, [&](std::uint32_t item) { return wave.share[item].due; });
    std::uint32_t const held = sum(team, t.item, [&](std::uint32_t item) { return wave.state[item].length; });
    std::uint32_t const fixed = sum(team, t.item, [&](std::uint32_t item) { return wave.share[item].fixed; });
    if (team.lane() != 0) return;
    share_state& leader = wave.share[t.item];
    leader.total = min_of(due, held);
    ask_pool(leader, leader.total > fixed ? leader.total - fixed : 0);
  }
};

/// Every track takes its quota of scores as its limit.
struct limit_phase : split_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state& s = wave.state[t.item];
    if (team.lane() != 0 || s.active == 0) return;
    s.limit = wave.share[t.item].fixed + wave.share[t.item].quota;
    s.active = s.length > s.limit ? 1 : 0;
  }
};

/// Before the fallback: what merging has not brought down goes from the lowest scores of all tracks, ties to the earlier
/// track and the lower slot, down to each track's reserve.
struct shortfall_phase : split_phase {
  bool last;  ///< no further rounds follow

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t)) return;
    std::uint32_t const alive = sum(team, t.item, [&](std::uint32_t item) { return wave.state[item].alive; });
    std::uint32_t const going =
        sum(team, t.item, [&](std::uint32_t item) { return wave.state[item].active; });
    std::uint32_t const budget = wave.share[t.item].budget;
    std::uint32_t const excess = alive > budget && (going == 0 || last) ? alive - budget : 0;
    team.for_each(wave.split, [&](std::uint32_t m) {
      share_state& h = wave.share[t.item + m];
      track_state const& s = wave.state[t.item + m];
      h.keys = s.length;
      h.least = 0;
      h.most = excess != 0 && s.alive > h.reserve ? s.alive - h.reserve : 0;
    });
    if (team.lane() == 0) ask_pool(wave.share[t.item], excess);
  }
};

/// Quotas of the shortfall as limits, which the fallback goes down to.
struct shortfall_limit_phase : split_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (team.lane() == 0) wave.state[t.item].limit = wave.state[t.item].alive - wave.share[t.item].quota;
  }
};

/// Before end_phase: a split that is done keeps its budget as a whole, or all its tracks are found not to.
struct close_split_phase : split_phase {
  bool last;  ///< no further rounds follow

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t)) return;
    std::uint32_t const alive = sum(team, t.item, [&](std::uint32_t item) { return wave.state[item].alive; });
    std::uint32_t const going =
        sum(team, t.item, [&](std::uint32_t item) { return wave.state[item].active; });
    bool const over = alive > wave.share[t.item].budget && (going == 0 || last);
    team.for_each(wave.split, [&](std::uint32_t m) {
      wave.state[t.item + m].limit = wave.state[t.item + m].alive;
      if (over) wave.ledger.findings[wave.where(t.item + m).index] |= finding::budget_unreached;
    });
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
