// SPDX-License-Identifier: Apache-2.0
// The one way in which a call removes entries: it marks their fates, and what stays moves to the front.
#pragma once

#include <kvmeld/apply/compact.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/rounds/open_wave.hpp>
#include <kvmeld/rounds/round.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Where the fates of a call come from, and with them what apply_fates does around the marks.
enum class fates_of : std::uint8_t {
  call,         ///< a call of its own: every entry stays that is not marked; it takes no round
  plan,         ///< a plan made earlier, which has fates and rounds already
  compression,  ///< a step inside a compression, for tracks with empty slots; the compression goes on and
                ///< ends
};

/// How apply_fates goes about it.
struct fate_options {
  fates_of from = fates_of::call;  ///< where the fates come from
  bool zero_emptied = false;       ///< rows of V behind a shortened track become zeros
  /// fates_of::call: positions before it may lie empty afterwards; truncate then looks where entries are
  std::uint32_t gap_end = 0xffffffffu;
};

namespace detail {

/// Opens a track for fates that a call marks: every entry stays, and the beginning that is frozen is
/// shielded. Warnings stay those of the last compression.
struct open_fates_phase : track_phase {
  bool padding_alone;  ///< only tracks with empty slots take part, and the compression notes the rounds

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = wave.ledger;
    std::uint32_t const n = l.length[t.where.index];
    fate* const what = wave.plan.fates + wave.plan.at(t.item, 0);
    team.for_each(n, [=](std::uint32_t i) { what[i] = fate::keep; });
    if (team.lane() != 0) return;
    track_state s{};
    s.length = s.alive = n;
    s.shielded = min_of(n, l.frozen[t.where.sequence]);
    s.over_budget = padding_alone ? (l.word(t.where, track_word::empty) != 0 ? 1 : 0) : 1;
    wave.state[t.item] = s;
    if (padding_alone) return;
    l.word(t.where, track_word::last_rounds) = 0;  // otherwise settle_phase counts the last compression again
    l.word(t.where, track_word::next_carried) = 0;
  }
};

/// Takes up a plan that was made earlier: tracks get the lengths that the plan was made for.
struct resume_phase : track_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (team.lane() != 0) return;
    track_state s{};
    s.length = s.alive = wave.plan.old_length[t.item];
    wave.state[t.item] = s;
  }
};

/// Moves the entries that the plan keeps to the front of their tracks.
template <class Executor, class Keys, class Values>
void move_together(launcher<Executor> const& launch, kv<Keys, Values> const& x, bool zero_emptied) {
  wave_ref const& wave = launch.wave;
  launch(new_slots_phase{{wave}});
  launch(compact_rows_phase<Keys>{x.keys, wave, false});
  launch(compact_rows_phase<Values>{x.values, wave, zero_emptied});
  launch(compact_ledger_phase{{wave}});
}

/// Launches settle_phase over all tracks of a call. Tracks of a sequence may lie in different waves, so it
/// runs behind the last wave.
template <class Executor> void settle(Executor& executor, work_list const& work, settle_phase const& phase) {
  shape const& extent = phase.ledger.extent;
  executor.run(phase, extent, work.tracks(extent), track_source{extent, work});
}

}  // namespace detail

/// Removes entries from the tracks of one wave, in place, in this order:
/// 1. Begin: every entry stays (fate::keep), and no round is counted.
/// 2. Shield: `state.shielded` becomes the length of the beginning that is frozen or that a layout refuses to
///    write. `mark` must keep these entries.
/// 3. Mark: mark(launch) launches phases that write `wave.plan.fates`. They may also merge rows and the
/// ledger.
/// 4. Move: entries that stay move to the front of K, V and the ledger, and keep their order.
/// 5. Settle, in the last wave of the call: words of tracks and sequences that later calls read.
///
/// Call it for every wave of a call (for_each_wave). The host has to do the rest: refuse the call while
/// recording, keep the mirror before the first launch, forget the plan made last (its memory is used), and
/// lower the mirror's bounds or mark them as inexact. merged_cache::remove_entries does it for calls that
/// remove entries of one sequence.
template <class Executor, class Keys, class Values, class Mark>
void apply_fates(detail::launcher<Executor> const& launch, kv<Keys, Values> const& x, Mark const& mark,
                 fate_options const& how = {}) {
  wave_ref const& wave = launch.wave;
  if (how.from == fates_of::plan) {
    launch(detail::resume_phase{{wave}});
  } else {
    launch(detail::open_fates_phase{{wave}, how.from == fates_of::compression});
    if constexpr (!is_always_writable<Keys>::value) launch(detail::shield_phase<Keys>{x.keys, wave});
    if constexpr (!is_always_writable<Values>::value) launch(detail::shield_phase<Values>{x.values, wave});
  }
  mark(launch);
  detail::move_together(launch, x, how.zero_emptied);
  if (how.from == fates_of::compression) return;
  if (wave.first + wave.tracks != wave.work.tracks(wave.ledger.extent)) return;
  detail::settle(launch.executor, wave.work, {wave.ledger, how.from == fates_of::plan, how.gap_end});
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
