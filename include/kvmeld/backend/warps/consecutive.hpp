// SPDX-License-Identifier: Apache-2.0
// The bisection of KVMerger's thresholds in parallel: matrix units find how far every entry reaches
// (reach.hpp), and reaching_sets.hpp counts the sets of a threshold.
#pragma once

#include <kvmeld/backend/warps/reach.hpp>
#include <kvmeld/backend/warps/reaching_sets.hpp>
#include <kvmeld/backend/warps/row_store.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/identify/consecutive_scan.hpp>
#include <kvmeld/identify/consecutive_threshold.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/identify/rows.hpp>
#include <kvmeld/identify/scan_path.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

/// Writes marks[i].target = newest entry of the set of i; returns the number of sets. Collective; barrier at
/// the end.
template <class Team, class Layout>
KVMELD_HD std::uint32_t mark_reached(Team const& team, wave_ref const& wave, std::uint32_t item,
                                     reaching_sets<Layout> const& sets,
                                     typename reaching_sets<Layout>::cut const& c) {
  constexpr std::uint32_t last_byte = reach_thresholds - 1;  // it lies in the spare words
  candidate* const marks = wave.candidates + wave.at(item, 0);
  // Marks overwrite where reach lies, so the reach for this threshold moves to the last byte first.
  team.for_each(wave.state[item].live_count, [&](std::uint32_t i) {
    std::uint32_t const reach = c.table.get(i, c.threshold);
    wave.spare_words(item)[i] = 0;
    c.table.put(i, last_byte, reach);
  });
  team.sync();
  typename reaching_sets<Layout>::cut const moved{c.table, last_byte, c.bar, c.scratch};
  return sets.each(team, moved, [&](std::uint32_t oldest, std::uint32_t newest) {
    for (std::uint32_t i = oldest; i <= newest; ++i) marks[i].target = newest;
  });
}

/// marks[b].key = similarity of the newest entries of sets b and b + 1, 0 where they are apart; sources
/// become 0. Returns the newest entries, in the spare words, because what lies in place of centres is still
/// needed. Collective; barrier at the end.
template <class Team, class Layout>
KVMELD_HD slot_t* compare_reached(Team const& team, wave_ref const& wave, std::uint32_t item,
                                  reaching_sets<Layout> const& sets, std::uint32_t found) {
  candidate* const marks = wave.candidates + wave.at(item, 0);
  slot_t* const newest = wave.spare_words(item);
  identify::list_sets(team, marks, wave.state[item].live_count, newest);
  team.for_each(found - 1, [&](std::uint32_t b) {
    marks[b].key = sets.apart(newest[b]) ? 0u : order_key(sets.similarity(newest[b], newest[b + 1]));
    marks[b].source = 0;
  });
  team.sync();
  return newest;
}

/// Up to four bisections of every track's threshold. In the last pass, or the only one, sets are marked as in
/// `propose`.
template <class Admit, class Layout> struct settle_sets_phase {
  using identify_type = identify::consecutive_threshold<Admit>;
  detail::propose_phase<identify_type, Layout> untuned;
  std::uint32_t bisections;  ///< of this pass
  bool first_pass, last_pass;
  std::uint32_t near_size;  ///< entries whose reach is copied to scratch

  static constexpr bool near_scratch = true, spans_blocks = true;
  static constexpr bool to_budget = std::is_same_v<Admit, kvmeld::admit::exact_budget>;

  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int lanes) const {
    return reaching_sets<Layout>::buffers::bytes(static_cast<std::uint32_t>(lanes), near_size) +
           select_k_scratch();
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    wave_ref const& wave = untuned.wave;
    track_state const s = wave.state[t.item];
    if (s.over_budget == 0 || s.live_count == 0) return;
    reach_table const table(wave, t.item);
    reaching_sets<Layout> const sets(untuned.rows, wave, t, table, untuned.identify.break_at_gap);
    using cut = typename reaching_sets<Layout>::cut;
    typename reaching_sets<Layout>::buffers const scratch(team, s.live_count, near_size);
    if constexpr (to_budget) {
      std::uint32_t const others = s.alive - s.live_count;
      std::uint32_t const wanted = s.limit > others ? s.limit - others : 1;
      identify::scan_bracket now = first_pass ? identify::scan_bracket{} : pass_notes::of(s).bracket;
      std::uint32_t low_node = 0, high = upper_end;
      for (std::uint32_t node = 1, i = 0; i < bisections; ++i) {
        bool const few = !sets.enough(team, cut{table, node - 1, order_key(now.middle()), scratch}, wanted);
        if (few)
          low_node = node;
        else
          high = node - 1;
        now.halve(!few);
        node = 2 * node + (few ? 1 : 0);
      }
      team.sync();
      if (last_pass) {
        mark(team, t, sets, cut{table, high, order_key(now.high), scratch}, wanted);
      } else if (team.lane() == 0) {
        pass_notes{now, low_node, high + 1}.leave(wave.state[t.item]);
      }
    } else {
      mark(team, t, sets,
           cut{table, 0, order_key(untuned.identify.admission.theta_in(t.where.layer)), scratch}, ~0u);
    }
  }

private:
  template <class Team>
  KVMELD_HD void mark(Team const& team, tile const& t, reaching_sets<Layout> const& sets,
                      typename reaching_sets<Layout>::cut const& c, std::uint32_t wanted) const {
    wave_ref const& wave = untuned.wave;
    std::uint32_t const found = mark_reached(team, wave, t.item, sets, c);
    if (found <= wanted) return;
    slot_t* const newest = compare_reached(team, wave, t.item, sets, found);
    identify::join_closest(team, wave.candidates + wave.at(t.item, 0), newest, found, found - wanted);
  }
};

}  // namespace tuned_form

/// Sets around fixed anchors, for 16-bit rows. Thresholds and sets equal those of the generic form up to
/// rounding: an entry may join or not where its cosine with its anchor is within 2^-22 * (d + 8) of a
/// threshold.
template <class Admit, class Layout>
struct tuned<warps, detail::propose_phase<identify::consecutive_threshold<Admit>, Layout>,
             std::enable_if_t<tuned_form::has_matrix_rows<Layout>::value>> {
  using phase = detail::propose_phase<identify::consecutive_threshold<Admit>, Layout>;
  using reach = tuned_form::reach_phase<Layout>;
  using settle = tuned_form::settle_sets_phase<Admit, Layout>;
  static constexpr bool value = true;

  template <class Executor> static bool accepts(phase const& p, Executor const& executor) {
    return p.identify.anchor == identify::anchor_rule::fixed &&
           reach_of(p, true).scratch_bytes(executor.lanes()) <= executor.max_scratch();
  }
  template <class Executor, class Source>
  static void enqueue(Executor& executor, phase const& p, shape const& extent, std::uint32_t items,
                      Source const& source) {
    if constexpr (settle::to_budget) {
      std::uint32_t const bisections = p.identify.admission.bisections;
      for (std::uint32_t done = 0; done < bisections; done += tuned_form::pass_bisections) {
        std::uint32_t const now = min_of(tuned_form::pass_bisections, bisections - done);
        executor.launch(reach_of(p, done == 0), extent, items, source);
        executor.launch(settle_of(p, executor, now, done == 0, done + now == bisections), extent, items,
                        source);
      }
    } else {
      executor.launch(reach_of(p, true), extent, items, source);
      executor.launch(settle_of(p, executor, 0, true, true), extent, items, source);
    }
  }

private:
  static reach reach_of(phase const& p, bool first) {
    admit::threshold given{};
    if constexpr (!settle::to_budget) given = p.identify.admission;
    return {p.rows, p.wave, given, settle::to_budget, first, p.identify.break_at_gap};
  }
  /// With as much scratch as there is for the reach of entries.
  template <class Executor>
  static settle settle_of(phase const& p, Executor const& executor, std::uint32_t bisections, bool first,
                          bool last) {
    settle made{p, bisections, first, last, 0};
    std::size_t const others = made.scratch_bytes(executor.lanes()) + scratch_size(1);
    std::size_t const left = executor.max_scratch() - min_of(executor.max_scratch(), others);
    made.near_size = static_cast<std::uint32_t>(min_of<std::size_t>(p.wave.ledger.extent.capacity, left));
    return made;
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
