// One threshold for the consecutive sets of several tracks (KVMerger, budgets over layers or groups).
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/select_k.hpp>
#include <kvmeld/core/split.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/identify/admit/pool.hpp>
#include <kvmeld/identify/consecutive_scan.hpp>
#include <kvmeld/identify/scan_heap.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Identifiers that can share a threshold, split_measure::theta: `least_sets`, `count_sets`, `mark_sets` and
/// `bisections()` as consecutive_threshold has them.
template <class Identify, class = void> struct shares_threshold : std::false_type {};
template <class Identify>
struct shares_threshold<Identify, std::void_t<decltype(std::declval<Identify const&>().bisections())>>
    : std::true_type {};

/// What a track's sets can be: one per entry at most, and as few as its floor, gaps and rows that are no numbers allow.
/// The search begins with every entry its own set.
template <class Identify> struct sets_phase : split_phase {
  Identify identify;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state& s = wave.state[t.item];
    share_state& h = wave.share[t.item];
    bool const active = s.active != 0;
    std::uint32_t const fewest = active ? identify.least_sets(team, wave, t.item) : 0;
    team.sync();
    if (team.lane() != 0) return;
    std::uint32_t const others = active ? s.alive - s.field : s.alive;
    h.floor = active ? max_of(h.reserve, others + fewest) : h.floor;
    h.due = max_of(h.own, h.floor);
    h.fixed = others;
    h.most = h.above = active ? s.field : 0;
    h.least = active ? h.floor - others : 0;
    s.low = identify::scan_lowest;
    s.high = identify::scan_highest;
  }
};

template <class Identify, class Rows> struct count_sets_phase {
  Identify identify;
  Rows rows;
  wave_ref wave;
  std::uint32_t steps;
  bool first_pass;

  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int lanes) const { return identify.scratch_bytes(wave.ledger.extent, lanes); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (wave.state[t.item].active == 0 || wave.state[t.item].field == 0) return;
    identify.count_sets(team, wave, rows, t, steps, first_pass);
  }
};

/// Some bisections of the threshold: the upper end comes down while enough sets are left in all tracks together, of which
/// each keeps its floor.
struct narrow_threshold_phase : split_phase {
  std::uint32_t steps;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t)) return;
    share_state* const share = wave.share + t.item;
    auto const counted = [&](std::uint32_t item) {
      return wave.state[item].active != 0 && wave.state[item].field != 0;
    };
    float low = wave.state[t.item].low, high = wave.state[t.item].high;
    std::uint32_t const wanted = share[0].wanted;
    identify::scan_heap const heap(steps, low, high);
    std::uint32_t const node = heap.descend(
        [&](std::uint32_t k) {
          return sum(team, t.item, [&](std::uint32_t item) {
                   return counted(item) ? wave.share[item].clamped(wave.counts_of(item)[k - 1]) : 0;
                 }) >= wanted;
        },
        low, high);
    team.for_each(wave.split, [&](std::uint32_t m) {
      wave.state[t.item + m].low = low;
      wave.state[t.item + m].high = high;
      if (node != 0 && counted(t.item + m)) share[m].above = wave.counts_of(t.item + m)[node - 1];
    });
  }
};

/// A track with `sets` sets, 0 where it takes no part, lets go of boundaries down to the fewest it may have. One lane.
KVMELD_HD inline void offer_boundaries(share_state& h, std::uint32_t sets) {
  h.fixed += sets;
  h.keys = sets != 0 ? sets - 1 : 0;
  h.most = sets > h.least ? sets - h.least : 0;
  h.least = 0;
}

/// Marks the sets, and asks for their boundaries: what is left over goes from the most similar neighbours of all tracks.
template <class Identify, class Rows> struct mark_sets_phase {
  Identify identify;
  Rows rows;
  wave_ref wave;

  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int lanes) const { return identify.scratch_bytes(wave.ledger.extent, lanes); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    bool const there = wave.state[t.item].active != 0 && wave.state[t.item].field != 0;
    std::uint32_t const sets = there ? identify.mark_sets(team, wave, rows, t) : 0;
    team.sync();
    if (team.lane() == 0) offer_boundaries(wave.share[t.item], sets);
  }
};

/// How many boundaries have to go in all tracks.
struct boundary_quota_phase : split_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t)) return;
    std::uint32_t const left = sum(team, t.item, [&](std::uint32_t item) { return wave.share[item].fixed; });
    share_state& leader = wave.share[t.item];
    if (team.lane() == 0) ask_pool(leader, left > leader.total ? left - leader.total : 0);
  }
};

/// Every track joins its quota of neighbouring sets: the most similar, ties to the older pair.
struct join_sets_phase : split_phase {
  static constexpr bool wide = true;
  std::size_t scratch_bytes(int) const { return select_k_scratch(); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    share_state const h = wave.share[t.item];
    track_state& s = wave.state[t.item];
    if (s.active == 0 || s.field == 0) return;
    if (h.quota != 0) {
      candidate* const marks = wave.candidates + wave.at(t.item, 0);
      slot_t* const newest = wave.set_member + wave.at(t.item, 0);
      identify::list_sets(team, marks, s.field, newest);
      identify::join_closest(team, marks, newest, h.keys + 1, h.quota);
    }
    if (team.lane() == 0) s.limit = h.fixed - h.quota;
  }
};

/// In place of a proposal: candidates hold the marks of sets that add up to the splits' budgets.
template <class Launch, class Identify, class Rows>
void propose_with_common_threshold(Launch const& launch, Identify const& identify, Rows const& rows,
                                   wave_ref const& wave) {
  std::uint32_t const bisections = identify.bisections();
  for (std::uint32_t done = 0; done < bisections; done += identify::scan_bisections) {
    std::uint32_t const steps = min_of(identify::scan_bisections, bisections - done);
    launch(count_sets_phase<Identify, Rows>{identify, rows, wave, steps, done == 0});
    launch(narrow_threshold_phase{{wave}, steps});
  }
  launch(mark_sets_phase<Identify, Rows>{identify, rows, wave});
  launch(boundary_quota_phase{{wave}});
  share_out(launch, wave, pool::candidates);
  launch(join_sets_phase{{wave}});
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
