// SPDX-License-Identifier: Apache-2.0
// The sets of a plan as lists: for every pivot its members in ascending order; and the scores of sets, added
// up.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/compact_indices.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Members of one pivot in ascending order, the pivot included. Empty if nothing merges into the slot.
struct member_list {
  slot_t const* slots;  ///< ascending
  std::uint32_t count;  ///< members, the pivot among them
};

/// The set of a pivot in this step.
KVMELD_HD inline member_list members_of(wave_ref const& wave, std::uint32_t item, slot_t pivot) {
  slot_t const* const ends = wave.set_end + wave.at(item, 0);
  slot_t const begin = pivot == 0 ? 0 : ends[pivot - 1];
  return {wave.set_member + wave.at(item, begin), ends[pivot] - begin};
}

namespace detail {

/// Whether slot begin + i has a set of two or more, for the lists of a track.
struct merging_slots {
  slot_t const* ends;
  slot_t before;

  KVMELD_HD merging_slots(wave_ref const& wave, std::uint32_t item, slot_t begin)
      : ends(wave.set_end + wave.at(item, begin)), before(begin == 0 ? 0 : ends[-1]) {}
  KVMELD_HD bool operator()(std::uint32_t i) const { return ends[i] > (i == 0 ? before : ends[i - 1]) + 1; }
};

}  // namespace detail

/// Calls f(pivot, members) for the sets of two or more among the pivots begin .. begin + count - 1, divided
/// among the lanes. There is no order and no barrier at the end.
template <class Team, class F>
KVMELD_HD void for_each_set(Team const& team, wave_ref const& wave, std::uint32_t item, slot_t begin,
                            std::uint32_t count, F f) {
  for_each_chosen(team, count, detail::merging_slots(wave, item, begin),
                  [&](std::uint32_t i) { f(begin + i, members_of(wave, item, begin + i)); });
}

/// Lists in `pivots` those of the slots begin .. begin + count - 1 that have a set of two or more, in
/// ascending order. Returns how many there are. Collective; barrier at the end.
template <class Team>
KVMELD_HD std::uint32_t list_pivots(Team const& team, wave_ref const& wave, std::uint32_t item, slot_t begin,
                                    std::uint32_t count, slot_t* pivots) {
  return compact_indices(team, count, detail::merging_slots(wave, item, begin),
                         [=](std::uint32_t rank, std::uint32_t i) { pivots[rank] = begin + i; });
}

namespace detail {

/// Spread sources of a track in ascending order. set_member holds them behind the sets.
KVMELD_HD inline member_list spreads_of(wave_ref const& wave, std::uint32_t item) {
  track_state const& s = wave.state[item];
  slot_t const begin = s.length == 0 ? 0 : wave.set_end[wave.at(item, s.length - 1)];
  return {wave.set_member + wave.at(item, begin), s.spreads};
}

/// Moves the pivot, which stands first, to its place among members in ascending order.
KVMELD_HD inline void place_pivot(slot_t* list, std::uint32_t n) {
  for (std::uint32_t i = 1; i < n && list[i] < list[i - 1]; ++i) {
    slot_t const pivot = list[i - 1];
    list[i - 1] = list[i];
    list[i] = pivot;
  }
}

/// The order of slots.
struct ascending {
  KVMELD_HD bool operator()(slot_t a, slot_t b) const { return a < b; }
};

/// Sorts lists that lie side by side in list[0] to list[n - 1], each by `less`, which is a total order.
/// `list_of(x)` tells where the list of an element lies; no element comes twice. `longest` is the length of
/// the longest list, and `room` has n words. Elements of short lists count those before them. Longer lists
/// then merge, two runs at a time: an element finds its place in the other run by bisection. (Sorts of CUB
/// take a fixed number of elements per thread, or are launches of their own.) Collective; barrier at the
/// end.
template <class Team, class ListOf, class Less>
KVMELD_HD void sort_lists(Team const& team, slot_t* list, slot_t* room, std::uint32_t n,
                          std::uint32_t longest, ListOf list_of, Less less) {
  constexpr std::uint32_t short_run = 32;
  slot_t *from = list, *to = room;
  auto const place_all = [&](std::uint32_t width, auto place_of) {
    team.for_each(n, [&](std::uint32_t k) {
      slot_t const x = from[k];
      lane_range const whole = list_of(x);
      std::uint32_t const begin = whole.begin + (k - whole.begin) / width * width;
      to[place_of(x, k, lane_range{begin, min_of(whole.end, begin + width)})] = x;
    });
    team.sync();
    slot_t* const sorted = to;
    to = from;
    from = sorted;
  };
  place_all(short_run, [&](slot_t x, std::uint32_t, lane_range run) {
    std::uint32_t before = 0;
    for (std::uint32_t j = run.begin; j < run.end; ++j) before += less(from[j], x) ? 1u : 0u;
    return run.begin + before;
  });
  for (std::uint32_t width = short_run; width < longest; width *= 2) {
    place_all(2 * width, [&](slot_t x, std::uint32_t k, lane_range both) {
      std::uint32_t const middle = min_of(both.end, both.begin + width);
      lane_range const other = k < middle ? lane_range{middle, both.end} : lane_range{both.begin, middle};
      std::uint32_t begin = other.begin, end = other.end;
      while (begin < end) {
        std::uint32_t const probe = (begin + end) / 2;
        if (less(from[probe], x)) {
          begin = probe + 1;
        } else {
          end = probe;
        }
      }
      return k < middle ? k + begin - middle : k - middle + begin;
    });
  }
  if (from == list) return;
  team.for_each(n, [&](std::uint32_t k) { list[k] = room[k]; });
  team.sync();
}

/// Lists the sets of `map` (the step or the plan) in set_end and set_member, and notes whether `map` changes
/// anything. The places of listed entries (wave.place) are lost, because nothing reads them any more.
struct link_phase : track_phase {
  plan_ref map;
  static constexpr bool light = false, wide = true;  ///< many passes over the entries

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state const& was = wave.state[t.item];
    std::uint32_t const n = was.length;
    if (was.unchanged != 0 && was.over_budget == 0 && map.fates == wave.step.fates)
      return;  // the lists are up to date
    slot_t* const end = wave.set_end + wave.at(t.item, 0);
    slot_t* const member = wave.set_member + wave.at(t.item, 0);
    fate const* const fates = map.fates + map.at(t.item, 0);
    slot_t const* const target = map.target + map.at(t.item, 0);
    auto const joins = [=](std::uint32_t i) { return (fates[i] == fate::merge) | (fates[i] == fate::share); };
    std::uint32_t changes = 0;
    team.for_each(n, [&](std::uint32_t i) { changes |= fates[i] != fate::keep ? 1u : 0u; });
    team.for_each(n, [=](std::uint32_t i) { end[i] = 0; });
    changes = team.reduce(changes, op_max{});
    if (changes == 0) {
      if (team.lane() == 0) {
        wave.state[t.item].spreads = 0;
        wave.state[t.item].unchanged = 1;
        wave.state[t.item].unlisted = 0;
      }
      return;
    }
    team.sync();
    for_each_chosen(team, n, joins, [&](std::uint32_t i) { team.fetch_add(&end[target[i]], 1); });
    team.sync();
    // A pivot belongs to its own set and comes first. Counts become cursors; filling turns cursors into ends.
    // One lane writes every i, because branches would cost more. A later pivot overwrites it; what stays
    // behind the last set is no member.
    bool const alone = team.lanes() == 1;
    std::uint32_t longest = 0;
    std::uint32_t const members = scan_values(
        team, n, [=](std::uint32_t i) { return end[i] + (end[i] != 0 ? 1u : 0u); },
        [&](std::uint32_t i, std::uint32_t begin) {
          std::uint32_t const others = end[i], pivots = others != 0 ? 1u : 0u;
          if ((pivots != 0) | (alone & (begin < n))) member[begin] = i;
          end[i] = begin + pivots;
          longest = max_of(longest, others + pivots);
        });
    for_each_chosen(team, n, joins, [&](std::uint32_t i) { member[team.fetch_add(&end[target[i]], 1)] = i; });
    team.sync();
    // Every list is sorted, so that the order of atomics does not change results.
    auto const set_of = [=](slot_t pivot) { return lane_range{pivot == 0 ? 0 : end[pivot - 1], end[pivot]}; };
    if (alone) {
      for_each_chosen(
          team, n, [=](std::uint32_t i) { return end[i] > (i == 0 ? 0 : end[i - 1]) + 1; },
          [=](std::uint32_t i) { place_pivot(member + set_of(i).begin, set_of(i).end - set_of(i).begin); });
    } else {
      sort_lists(
          team, member, wave.place + wave.at(t.item, 0), members, team.reduce(longest, op_max{}),
          [=](slot_t x) { return set_of(joins(x) ? target[x] : x); }, ascending{});
    }
    std::uint32_t const spreads = compact_indices(
        team, n, [=](std::uint32_t i) { return fates[i] == fate::spread; },
        [&](std::uint32_t rank, std::uint32_t i) { member[members + rank] = i; });
    if (team.lane() == 0) {
      wave.state[t.item].spreads = spreads;
      wave.state[t.item].unchanged = 0;
      wave.state[t.item].unlisted = spreads != 0 ? 1 : 0;
    }
  }
};

/// Gives the pivot of every set of the step the score of the set: the sum of the members' scores if they are
/// weights, otherwise the best of them. link_phase has listed the sets. Later rounds weigh by this score, and
/// the fallback ranks by it. The phase runs after weighing, because merge functions need the members' own
/// scores.
struct fold_scores_phase : slot_phase {
  bool adds = true;      ///< the scores are weights
  float* own = nullptr;  ///< [tracks of the wave][capacity] gets the pivots' own scores; null: they are lost

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = wave.state[t.item].length;
    std::uint32_t const begin = t.index * block;
    if (begin >= n || wave.state[t.item].merged == 0) return;
    for_each_set(team, wave, t.item, begin, min_of(block, n - begin), [&](slot_t p, member_list const& m) {
      auto const score = [&](std::uint32_t j) { return wave.score[wave.at(t.item, m.slots[j])]; };
      float of_set = adds ? 0.0f : score(0);
      for (std::uint32_t j = 0; j < m.count; ++j) {
        if (adds) {
          of_set += score(j);
        } else if (order_key(score(j)) > order_key(of_set)) {
          of_set = score(j);
        }
      }
      if (own != nullptr) own[wave.at(t.item, p)] = wave.score[wave.at(t.item, p)];
      wave.score[wave.at(t.item, p)] = of_set;
    });
  }
};

/// Gives pivots the scores back that fold_scores_phase kept in `own`.
struct unfold_scores_phase : slot_phase {
  float const* own;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = wave.state[t.item].length;
    std::uint32_t const begin = t.index * block;
    if (begin >= n || wave.state[t.item].merged == 0) return;
    for_each_set(team, wave, t.item, begin, min_of(block, n - begin), [&](slot_t p, member_list const&) {
      wave.score[wave.at(t.item, p)] = own[wave.at(t.item, p)];
    });
  }
};

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
