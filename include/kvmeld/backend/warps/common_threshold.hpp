// One threshold for the sets of several tracks on warps: the counts of all thresholds of a pass, a tile for each.
#pragma once

#include <kvmeld/backend/warps/consecutive.hpp>
#include <kvmeld/backend/warps/reach.hpp>
#include <kvmeld/backend/warps/row_store.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/split.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/warps.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/identify/common_threshold.hpp>
#include <kvmeld/identify/consecutive_threshold.hpp>
#include <kvmeld/identify/scan_heap.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

KVMELD_HD constexpr std::size_t ends_scratch(int lanes) {
  return scratch_size((static_cast<std::size_t>(lanes) + 1) * sizeof(std::uint32_t));
}

/// After reach_phase: counts[k] = sets of a track for threshold k of the pass.
template <class Admit, class Layout> struct count_reached_phase {
  using identify_type = identify::consecutive_threshold<Admit>;
  count_sets_phase<identify_type, Layout> untuned;

  static constexpr bool near_scratch = true;
  std::uint32_t tiles(shape const&) const { return (1u << untuned.steps) - 1; }
  std::size_t scratch_bytes(int lanes) const { return ends_scratch(lanes); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    wave_ref const& wave = untuned.wave;
    track_state const s = wave.state[t.item];
    if (s.active == 0 || s.field == 0) return;
    reach_table const table(wave, t.item);
    reaching_sets<Layout> const sets(untuned.rows, wave, t, table, untuned.identify.break_at_gap);
    std::uint32_t* const ends = team.template scratch<std::uint32_t>(team.lanes() + 1);
    float const theta = pass_threshold({s.low, s.high}, t.index);
    std::uint32_t const found = sets.count(team, {table, t.index, order_key(theta)}, ends);
    if (team.lane() == 0) wave.counts_of(t.item)[t.index] = found;
  }
};

/// Tracks for which the common threshold leaves too few sets look between it and the highest.
struct own_bracket_phase : split_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    share_state const& h = wave.share[t.item];
    track_state& s = wave.state[t.item];
    if (team.lane() != 0 || s.active == 0) return;
    s.low = s.high;
    if (h.above < h.least) s.high = bracket::widest().high;
  }
};

/// Some bisections of theirs; in the last turn, which has none, the sets of every track are marked and compared.
template <class Admit, class Layout> struct mark_reached_phase {
  using identify_type = identify::consecutive_threshold<Admit>;
  mark_sets_phase<identify_type, Layout> untuned;
  std::uint32_t bisections;

  static constexpr bool near_scratch = true;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int lanes) const { return ends_scratch(lanes); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    wave_ref const& wave = untuned.wave;
    track_state const s = wave.state[t.item];
    share_state const h = wave.share[t.item];
    bool const there = s.active != 0 && s.field != 0;
    bool const last = bisections == 0;
    if (!last && (!there || h.above >= h.least)) return;
    std::uint32_t* const ends = team.template scratch<std::uint32_t>(team.lanes() + 1);
    reach_table const table(wave, t.item);
    reaching_sets<Layout> const sets(untuned.rows, wave, t, table, untuned.identify.break_at_gap);
    using cut = typename reaching_sets<Layout>::cut;
    if (!last) {
      bracket now{s.low, s.high};
      for (std::uint32_t node = 1, i = 0; i < bisections; ++i) {
        bool const few = !sets.enough(team, cut{table, node - 1, order_key(now.middle())}, h.least, ends);
        now = now.half(few);
        node = 2 * node + (few ? 1 : 0);
      }
      team.sync();
      if (team.lane() != 0) return;
      wave.state[t.item].low = now.low;
      wave.state[t.item].high = now.high;
      return;
    }
    std::uint32_t found = 0;
    if (there) {
      found = mark_reached(team, wave, t.item, sets, cut{table, upper_end, order_key(s.high)}, ends);
      compare_reached(team, wave, t.item, sets, found);
    }
    team.sync();
    if (team.lane() == 0) offer_boundaries(wave.share[t.item], found);
  }
};

}  // namespace tuned_form

/// As the tuned form of consecutive_threshold's proposal.
template <class Admit, class Layout>
struct tuned<warps, count_sets_phase<identify::consecutive_threshold<Admit>, Layout>,
             std::enable_if_t<tuned_form::has_matrix_rows<Layout>::value>> {
  using phase = count_sets_phase<identify::consecutive_threshold<Admit>, Layout>;
  using reach = tuned_form::reach_phase<Layout>;
  static constexpr bool value = true;

  template <class Executor> static bool accepts(phase const& p, Executor const& executor) {
    return p.identify.anchor == identify::anchor_rule::fixed &&
           reach_of(p).scratch_bytes(executor.lanes()) <= executor.most_scratch();
  }
  template <class Executor, class Source>
  static void enqueue(Executor& executor, phase const& p, shape const& extent, std::uint32_t items,
                      Source const& source) {
    executor.launch(reach_of(p), extent, items, source);
    executor.launch(tuned_form::count_reached_phase<Admit, Layout>{p}, extent, items, source);
  }

private:
  static_assert(tuned_form::bracket::widest().low == identify::scan_lowest &&
                tuned_form::bracket::widest().high == identify::scan_highest &&
                tuned_form::pass_bisections == identify::scan_bisections);

  static reach reach_of(phase const& p) {
    return {p.rows, p.wave, {}, true, p.first_pass, p.identify.break_at_gap, false};
  }
};

template <class Admit, class Layout>
struct tuned<warps, mark_sets_phase<identify::consecutive_threshold<Admit>, Layout>,
             std::enable_if_t<tuned_form::has_matrix_rows<Layout>::value>> {
  using phase = mark_sets_phase<identify::consecutive_threshold<Admit>, Layout>;
  using reach = tuned_form::reach_phase<Layout>;
  using mark = tuned_form::mark_reached_phase<Admit, Layout>;
  static constexpr bool value = true;

  template <class Executor> static bool accepts(phase const& p, Executor const& executor) {
    return p.identify.anchor == identify::anchor_rule::fixed &&
           reach_of(p, true).scratch_bytes(executor.lanes()) <= executor.most_scratch();
  }
  template <class Executor, class Source>
  static void enqueue(Executor& executor, phase const& p, shape const& extent, std::uint32_t items,
                      Source const& source) {
    executor.launch(tuned_form::own_bracket_phase{{p.wave}}, extent, items, source);
    std::uint32_t const bisections = p.identify.bisections();
    for (std::uint32_t done = 0; done < bisections; done += tuned_form::pass_bisections) {
      executor.launch(reach_of(p, true), extent, items, source);
      executor.launch(mark{p, min_of(tuned_form::pass_bisections, bisections - done)}, extent, items, source);
    }
    executor.launch(reach_of(p, false), extent, items, source);
    executor.launch(mark{p, 0}, extent, items, source);
  }

private:
  static reach reach_of(phase const& p, bool below_floor) {
    return {p.rows, p.wave, {}, true, false, p.identify.break_at_gap, below_floor};
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
