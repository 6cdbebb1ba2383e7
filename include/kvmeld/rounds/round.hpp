// SPDX-License-Identifier: Apache-2.0
// One round: which phases run, and in which order. An executor launches them one by one for all tracks of a
// wave, or one team runs them for one track (rounds/remaining_rounds.hpp).
#pragma once

#include <kvmeld/apply/compose.hpp>
#include <kvmeld/apply/merge_ledger.hpp>
#include <kvmeld/apply/merge_rows.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/layout/joined.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/merge/merge_function.hpp>
#include <kvmeld/merge/sets.hpp>
#include <kvmeld/rounds/share_plans.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/shared/merge_members.hpp>
#include <kvmeld/shared/sharing.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Launches phases over the tracks of one wave.
template <class Executor> struct launcher {
  /// Whether two phases in one launch are cheaper than two launches.
  static constexpr bool joins = !is_immediate<Executor>::value;
  Executor& executor;
  wave_ref const& wave;

  template <class Phase> void operator()(Phase const& phase) const {
    executor.run(phase, wave.extent(), wave.tracks, wave);
  }
};

/// Whether the merge function turns sources of sets and spans into evictions, as merge::drop does.
template <class Policy> bool dissolves_sets(Policy const& p) { return facts_of<merge_facts>(p.merge).drops; }

/// Whether the policy merges rows; otherwise it only evicts.
template <class Policy> bool merges_rows(Policy const& p) {
  identify_facts const i = facts_of<identify_facts>(p.identify);
  return (i.makes_sets || i.makes_spans) && !dissolves_sets(p);
}

/// What a round has to know of a policy as it is configured. The host fills this in, so a policy's functions
/// that answer it may be for the host alone.
struct round_facts {
  identify_facts identify;       ///< of the identifier
  score_kind gives;              ///< what the score gives
  bool merges_rows;              ///< see merges_rows
  bool folds;                    ///< a set's entry gets the score of the set, by which later rounds go
  bool adds_degrees;             ///< see adds_up
  std::uint32_t proposal_tiles;  ///< tiles per track of the identifier's `propose`

  /// Whether the score of a set is the sum of its members'; else it is the largest.
  KVMELD_HD bool folds_sums() const { return gives == score_kind::weights || gives == score_kind::none; }
};

/// The facts about a policy in a cache of this shape.
template <class Policy> round_facts facts_of_round(Policy const& p, shape const& extent) {
  identify_facts const made = facts_of<identify_facts>(p.identify);
  return {made,
          facts_of<score_facts>(p.score).gives,
          merges_rows(p),
          made.makes_sets && !dissolves_sets(p),
          adds_up(p.merge),
          proposal_tiles(p.identify, extent)};
}

/// Admits, and lists the sets of the step. One tile per track does both, because the lists need all that was
/// admitted.
template <class Identify> struct admit_and_link_phase : admit_phase<Identify> {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    admit_phase<Identify>::operator()(team, t);
    team.sync();
    link_phase{{this->wave}, this->wave.step}(team, t);
  }
};

/// Takes note of the step, slot by slot: scores fold, the plan composes, the ledger merges. None of the three
/// reads what another one writes. `map` is the step. (A member would be a copy, and a device would keep it in
/// local memory.)
struct note_step_phase : merge_ledger_phase {
  bool folds, folds_sums;  ///< scores fold, as sums or as maxima
  bool composes;           ///< the step is not the plan itself
  bool merges_ledger;

  KVMELD_HD bool has_work() const { return folds || composes || merges_ledger; }
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (folds) fold_scores_phase{{wave}, folds_sums}(team, t);
    if (composes) compose_phase{{wave}}(team, t);
    if (merges_ledger) merge_ledger_phase::operator()(team, t);
  }
};

/// Plans one round: makes the step, and composes it into the plan unless the step is the plan itself.
/// `launch(phase)` runs a phase on `launch.wave`. `merges_ledger`: the ledger merges too.
KVMELD_CALLS_ARGUMENTS
template <class Launch, class Policy, class Keys, class Values>
KVMELD_HD void plan_round(Launch const& launch, Policy const& p, kv<Keys, Values> const& x,
                          round_facts const& facts, bool merges_ledger = false) {
  using identify_type = typename Policy::identify_type;
  constexpr identify_facts may = stated_facts<identify_facts, identify_type>;
  identify_type const& identify = p.identify;
  wave_ref const& wave = launch.wave;
  launch(round_phase{{wave}, facts.identify.needs_centers, facts.identify.reads_live});
  if (wave.scope > 1) launch(mute_followers_phase{{wave}});
  if constexpr (may.needs_keys && may.needs_values) {
    using rows = kv<joined_rows<Keys>, joined_rows<Values>>;
    launch(propose_phase<identify_type, rows>{
        identify, {join(x.keys, wave), join(x.values, wave)}, joined_wave(wave), facts.proposal_tiles});
  } else if constexpr (may.needs_keys) {
    launch(propose_phase<identify_type, joined_rows<Keys>>{identify, join(x.keys, wave), joined_wave(wave),
                                                           facts.proposal_tiles});
  }
  admit_phase<identify_type> const admit{identify, wave, facts.identify.repeats};
  constexpr bool may_link = may.makes_sets || may.makes_spans;
  bool const links = facts.identify.makes_sets || facts.identify.makes_spans;
  bool const joins = links && Launch::joins && wave.scope == 1;
  if constexpr (may_link && Launch::joins) {
    if (joins) launch(admit_and_link_phase<identify_type>{admit});
  }
  if (!joins) {
    launch(admit);
    if (wave.scope > 1) launch(broadcast_phase{{wave}});
    if constexpr (may_link) {
      if (links) launch(link_phase{{wave}, wave.step});
    }
  }
  if constexpr (may.makes_spans) {
    if (facts.identify.makes_spans)
      launch(weigh_spans_phase<typename Policy::merge_type>{p.merge, wave, facts.adds_degrees});
  }
  if constexpr (may.makes_sets) {
    if (facts.identify.makes_sets) {
      wave_ref told = wave;
      told.scores = facts.gives;
      launch(weigh_phase<typename Policy::merge_type, Keys>{p.merge, x.keys, told, facts.adds_degrees});
    }
  }
  note_step_phase const note{
      {{wave}, wave.step}, facts.folds, facts.folds_sums(), !wave.plans_directly(), merges_ledger};
  if (note.has_work()) launch(note);
}

/// Merges the sets of `map` in the keys and in the ledger. link_phase has listed the sets.
KVMELD_CALLS_ARGUMENTS
template <class Launch, class Keys>
KVMELD_HD void merge_keys(Launch const& launch, Keys const& keys, plan_ref const& map) {
  wave_ref const& wave = launch.wave;
  merge_members(launch, keys, map);
  launch(merge_rows_phase<Keys>{keys, wave, map, side::key});
  launch(merge_ledger_phase{{wave}, map});
}

/// One round of a compression: plans it, and merges what the next round reads.
KVMELD_CALLS_ARGUMENTS
template <class Launch, class Policy, class Keys, class Values>
KVMELD_HD void run_round(Launch const& launch, Policy const& p, kv<Keys, Values> const& x,
                         round_facts const& facts) {
  using sharing = sharing_of<typename Policy::merge_type>;
  plan_round(launch, p, x, facts, facts.merges_rows && !sharing::changes_degrees);
  if (!facts.merges_rows) return;
  if constexpr (sharing::changes_degrees) {
    merge_keys(launch, x.keys, launch.wave.step);
  } else {
    launch(merge_rows_phase<Keys>{x.keys, launch.wave, launch.wave.step, side::key});
  }
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
