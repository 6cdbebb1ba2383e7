// SPDX-License-Identifier: Apache-2.0
// The order of launches: plan one round, apply a plan, or compress with as many rounds as the policy needs.
#pragma once

#include <kvmeld/apply/compose.hpp>
#include <kvmeld/apply/fit_rows.hpp>
#include <kvmeld/apply/merge_ledger.hpp>
#include <kvmeld/apply/merge_rows.hpp>
#include <kvmeld/apply/spread_rows.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/budget_scope.hpp>
#include <kvmeld/core/cache_stats.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/core/workspace.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/merge/drop.hpp>
#include <kvmeld/merge/fitted.hpp>
#include <kvmeld/merge/merge_function.hpp>
#include <kvmeld/merge/sets.hpp>
#include <kvmeld/policy/check_policy.hpp>
#include <kvmeld/rounds/apply_fates.hpp>
#include <kvmeld/rounds/count_stats.hpp>
#include <kvmeld/rounds/inspect.hpp>
#include <kvmeld/rounds/open_wave.hpp>
#include <kvmeld/rounds/padding.hpp>
#include <kvmeld/rounds/remaining_rounds.hpp>
#include <kvmeld/rounds/round.hpp>
#include <kvmeld/rounds/share_plans.hpp>
#include <kvmeld/rounds/shared_budget.hpp>
#include <kvmeld/score/reference_queries.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/score/score_phase.hpp>
#include <kvmeld/select/selector.hpp>
#include <kvmeld/shared/sharing.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Workspace of the free functions below: metadata of one wave, and a plan of `plan_tracks` tracks.
struct workspace_ref {
  wave_ref wave;                  ///< `wave.tracks` tells how many tracks are planned at a time
  plan_ref plan;                  ///< of plan_tracks tracks
  std::uint32_t plan_tracks;      ///< all tracks of a call, or as many as a wave
  stat_counts* stats;             ///< [tracks of the cache] null: nothing is counted
  bool zero_emptied = false;      ///< rows of V behind a shortened track become zeros
  std::uint32_t most_tracks = 0;  ///< tracks that fitting_tracks may plan at a time
};

/// Carves the workspace, or only sizes it if the arena has no memory. `members`: members per track, for
/// policies that share entries. `max_per_budget`: tracks of the largest budget scope that calls ask for
/// (core/budget_scope.hpp). `wave_tracks` may be fewer, unless there are members. `most_tracks`: how many
/// tracks go into a wave if they are short (fitting_tracks).
inline workspace_ref carve_workspace(arena& a, shape const& extent, std::uint32_t wave_tracks,
                                     std::uint32_t plan_tracks, std::uint32_t members = 0,
                                     std::uint32_t max_per_budget = 1, std::uint32_t most_tracks = 0) {
  workspace_ref w{};
  w.wave = carve_wave(a, extent, wave_tracks, members, max_per_budget, most_tracks);
  w.wave.tracks = wave_tracks;
  w.plan = carve_plan(a, plan_tracks, extent.capacity, members, most_tracks);
  w.plan_tracks = plan_tracks;
  w.most_tracks = most_tracks;
  return w;
}

/// The workspace for a call on tracks of at most `length` slots. The shorter they are, the more of them are
/// planned at a time, up to most_tracks.
inline workspace_ref fitting_tracks(workspace_ref ws, std::uint32_t length) {
  std::uint32_t const capacity = ws.wave.stride, tracks = ws.wave.tracks, stride = max_of(length, 1u);
  if (ws.most_tracks <= tracks || stride >= capacity) return ws;
  std::uint64_t const fit = std::uint64_t{tracks} * capacity / stride;
  std::uint32_t const wanted = static_cast<std::uint32_t>(min_of<std::uint64_t>(fit, ws.most_tracks));
  ws.wave.tracks = wanted / ws.wave.scope * ws.wave.scope;
  ws.wave.stride = ws.wave.step.stride = ws.plan.stride = stride;
  ws.plan_tracks = ws.wave.tracks;
  return ws;
}

/// Bytes of workspace for waves of `wave_tracks` tracks. The plan has room for one wave.
inline std::size_t workspace_bytes(shape const& extent, std::uint32_t wave_tracks, std::uint32_t members = 0,
                                   std::uint32_t max_per_budget = 1) {
  arena a;
  carve_workspace(a, extent, wave_tracks, wave_tracks, members, max_per_budget);
  return a.bytes();
}

namespace detail {

/// The plan arrays from track `first` of the stored plan on.
inline plan_ref plan_from(plan_ref p, std::uint32_t first) {
  std::size_t const n = std::size_t{first} * p.stride;
  return {p.fates + n,      p.target + n,         p.span + n,
          p.key_weight + n, p.value_weight + n,   p.degree_weight + n,
          p.new_slot + n,   p.old_length + first, p.new_length + first,
          p.stride,         p.members.from(first)};
}

/// The plan of so many tracks of the work list from `first` on.
inline plan_ref plan_of(workspace_ref const& ws, shape const& extent, work_list const& work,
                        std::uint32_t first) {
  return plan_from(ws.plan, ws.plan_tracks >= work.tracks(extent) ? first : 0);
}

/// Calls body(wave) for the waves that cover the work list. A wave holds whole budget scopes of `per_budget`
/// tracks: as many as are planned at a time, or one that has to be planned in parts.
template <class Body>
void for_each_wave(workspace_ref const& ws, ledger_ref const& ledger, work_list work,
                   std::uint32_t per_budget, Body body) {
  std::uint32_t const total = work.tracks(ledger.extent);
  std::uint32_t const most = max_of(per_budget, ws.wave.tracks / per_budget * per_budget);
  for (std::uint32_t first = 0; first < total; first += most) {
    wave_ref wave = ws.wave;
    wave.per_budget = per_budget;
    wave.ledger = ledger;
    wave.work = work;
    wave.first = first;
    wave.tracks = min_of(most, total - first);
    wave.plan = plan_of(ws, ledger.extent, work, first);
    body(wave);
  }
}

/// Whether a wave has more tracks than are planned at a time.
inline bool has_parts(workspace_ref const& ws, wave_ref const& wave) { return wave.tracks > ws.wave.tracks; }

/// Calls body(part) for the parts of a wave that are planned at a time: the wave itself, or several. State,
/// scores and shares of a part are those of the wave; all other arrays are its own as long as body runs.
template <class Body> void for_each_part(workspace_ref const& ws, wave_ref const& wave, Body body) {
  if (!has_parts(ws, wave)) return body(wave);
  for (std::uint32_t first = 0; first < wave.tracks; first += ws.wave.tracks) {
    wave_ref part = wave;
    part.first = wave.first + first;
    part.tracks = min_of(ws.wave.tracks, wave.tracks - first);
    part.state += first;
    part.score += wave.at(first, 0);
    part.share += first;
    part.counts += std::size_t{first} * budget_counts;
    part.plan = plan_of(ws, wave.ledger.extent, wave.work, part.first);
    body(part);
  }
}

/// The phase that selects, told what the policy's other parts need of it.
template <class Policy>
select_phase<typename Policy::select_type> select_phase_of(Policy const& p, wave_ref const& wave) {
  return {p.select, wave, facts_of<select_facts>(p.select),
          facts_of<identify_facts>(p.identify).drops_unmerged};
}

/// Scores the tracks of a wave or of a part, which begin_phase has opened.
template <class Executor, class Policy, class Keys, class Values>
void score_tracks(launcher<Executor> const& launch, Policy const& p, kv<Keys, Values> const& x) {
  wave_ref const& wave = launch.wave;
  if constexpr (!is_always_writable<Keys>::value) launch(shield_phase<Keys>{x.keys, wave});
  if constexpr (!is_always_writable<Values>::value) launch(shield_phase<Values>{x.values, wave});
  using score_type = typename Policy::score_type;
  if constexpr (reads_rows<score_type>) {
    score_facts const made = facts_of<score_facts>(p.score);
    if (made.reads_rows) {
      launch(inspect_phase<Keys>{x.keys, wave, entry_flag::key_checked, looked_at::any_role});
      launch(inspect_phase<Values>{x.values, wave, entry_flag::value_checked, looked_at::any_role});
    }
    launch(score_phase<score_type, kv<Keys, Values>>{p.score, wave, x, made.reads_rows,
                                                     made.reads_rows && made.rows_alone});
  } else {
    launch(score_phase<score_type>{p.score, wave});
  }
  sharing_of<typename Policy::merge_type>::score(launch, p.score);
  if (wave.scope > 1) launch(unite_scores_phase{{wave}});
}

/// Opens a wave: budgets, then scores, and from these the limits of tracks that share their budgets.
template <class Executor, class Policy, class Keys, class Values>
void open_wave(Executor& executor, Policy const& p, kv<Keys, Values> const& x, budget allowed,
               workspace_ref const& ws, wave_ref const& wave) {
  launcher<Executor> const launch{executor, wave};
  launch(
      begin_phase{{wave}, allowed, facts_of<select_facts>(p.select).thins_any_track, !has_parts(ws, wave)});
  if (wave.per_budget > 1) launch(open_budget_phase{{wave}, allowed.floor()});
  for_each_part(ws, wave, [&](wave_ref const& part) {
    score_tracks(launcher<Executor>{executor, part}, p, x);
  });
  if (wave.per_budget > 1) limit_by_score(launch, p);
}

/// Gives the entries of a part their roles, and looks at the rows that will be read.
template <class Executor, class Policy, class Keys, class Values>
void select_entries(launcher<Executor> const& launch, Policy const& p, kv<Keys, Values> const& x,
                    looked_at rows, bool opens_plan) {
  wave_ref const& wave = launch.wave;
  if (opens_plan) launch(open_plan_phase{{wave}});
  launch(select_phase_of(p, wave));
  if (rows != looked_at::everything) {
    identify_facts const made = facts_of<identify_facts>(p.identify);
    bool const spreads = made.makes_spans && !dissolves_sets(p);
    if (!made.makes_sets && !made.needs_keys && !spreads)
      return;  // no row is read, so none is checked for NaN or infinity
    rows = spreads ? looked_at::any_role : looked_at::mergeable;
  }
  launch(inspect_phase<Keys>{x.keys, wave, entry_flag::key_checked, rows});
  launch(inspect_phase<Values>{x.values, wave, entry_flag::value_checked, rows});
  if (wave.scope > 1) launch(unite_flags_phase{{wave}});
}

/// Whether the step of the only round may be the plan itself. Then nothing has to be composed, and the sets
/// that were listed for keys also hold for values.
inline bool may_plan_directly(wave_ref const& wave, std::uint32_t rounds) {
  return rounds == 1 && wave.scope == 1 && wave.per_budget == 1;
}

/// Whether the policy fits what it keeps to attention's outputs before the call.
template <class Policy> bool fits_rows(Policy const& p) { return fit_of(p.merge).any(); }

/// Fits the values and degrees of the entries that the plan keeps. Nothing has moved yet.
template <class Executor, class Policy, class Keys, class Values>
void fit_rows(launcher<Executor> const& launch, Policy const& p, kv<Keys, Values> const& x) {
  if constexpr (stated_facts<merge_facts, typename Policy::merge_type>.fits &&
                stated_facts<score_facts, typename Policy::score_type>.keeps_queries) {
    if (fits_rows(p))
      launch(fit_rows_phase<Keys, Values>{fit_of(p.merge), references_of(p.score).count, x, launch.wave});
  }
}

/// Merges and spreads values by the whole plan at once. `MaySpread`, `spreads`: entries may be spread over
/// spans. `listed`: the sets of the plan are listed already.
template <bool MaySpread, class Executor, class Values>
void merge_values(launcher<Executor> const& launch, Values const& values, bool merges,
                  [[maybe_unused]] bool spreads, bool listed = false) {
  wave_ref const& wave = launch.wave;
  if (merges) {
    if (!listed) launch(link_phase{{wave}, wave.plan});
    launch(merge_rows_phase<Values>{values, wave, wave.plan, side::value});
  }
  if constexpr (MaySpread) {
    if (spreads) launch(spread_rows_phase<Values>{values, wave, wave.plan});
  }
}

/// Removes empty slots, so that policies never see any. Only rows behind the first empty slot move.
template <class Executor, class Keys, class Values>
void drop_padding(launcher<Executor> const& launch, kv<Keys, Values> const& x) {
  auto const mark = [](launcher<Executor> const& to) { to(drop_padding_phase{{to.wave}}); };
  apply_fates(launch, x, mark, {fates_of::compression, true});
}

/// Whether another round may find something to do. If launches are not immediate, the host cannot know: true.
template <class Executor> bool any_active(wave_ref const& wave) {
  if constexpr (is_immediate<Executor>::value) {
    for (std::uint32_t item = 0; item < wave.tracks; ++item) {
      if (wave.state[item].over_budget != 0) return true;
    }
    return false;
  } else {
    return true;
  }
}

}  // namespace detail

/// Plans one round for the tracks of `work`. Writes the plan and the ledger's warnings. The plan is whole if
/// `ws.plan_tracks` covers the work list. K, V, lengths, degrees and scores are not touched. Enqueues a fixed
/// number of launches per wave on `executor`; does not wait. Allocates nothing but scratch. Checks no
/// argument: merged_cache does. `work`, `ledger`, `ws` and the table of `allowed` lie in memory that phases
/// can read. Deterministic.
template <class Executor, class Policy, class Keys, class Values>
void plan(Executor& executor, Policy const& p, kv<Keys, Values> const& x, ledger_ref const& ledger,
          work_list work, budget allowed, shortfall fallback, workspace_ref const& ws) {
  detail::round_facts facts = detail::facts_of_round(p, ledger.extent);
  bool const folds = facts.folds && fallback == shortfall::evict_lowest;  // for the fallback alone
  facts.folds = false;
  std::uint32_t const per_budget = tracks_per_budget(allowed.among(), ledger.extent);
  detail::for_each_wave(ws, ledger, work, per_budget, [&](wave_ref const& wave) {
    bool const parts = detail::has_parts(ws, wave);
    detail::open_wave(executor, p, x, allowed, ws, wave);
    detail::for_each_part(ws, wave, [&](wave_ref part) {
      float* const own = part.step.key_weight;  // free once the plan is composed
      if (detail::may_plan_directly(part, 1)) part.step = part.plan;
      detail::launcher<Executor> const launch{executor, part};
      detail::select_entries(launch, p, x, detail::looked_at::everything, parts);
      detail::plan_round(launch, p, x, facts);
      if (folds) launch(detail::fold_scores_phase{{part}, facts.folds_sums(), own});
      if (fallback == shortfall::evict_lowest)
        launch(detail::fallback_phase{part, false, facts_of<select_facts>(p.select).pins_exactly});
      if (folds) launch(detail::unfold_scores_phase{{part}, own});
      launch(detail::end_phase{{part}, false, per_budget == 1});
      launch(detail::new_slots_phase{{part}});
    });
    if (per_budget > 1) detail::launcher<Executor>{executor, wave}(detail::close_budget_phase{{wave}, false});
  });
}

/// Applies a plan made by `plan` (or written by hand and validated): merges keys, values and the ledger, then
/// compacts. Enqueues and allocates as `plan` does; does not wait.
template <class Executor, class Policy, class Keys, class Values>
void apply(Executor& executor, Policy const& p, kv<Keys, Values> const& x, ledger_ref const& ledger,
           work_list work, workspace_ref const& ws) {
  detail::for_each_wave(ws, ledger, work, 1, [&](wave_ref const& wave) {
    auto const merge = [&](detail::launcher<Executor> const& launch) {
      if (ws.stats != nullptr) launch(detail::weigh_mass_phase{wave, ws.stats});
      launch(detail::link_phase{{wave}, wave.plan});
      detail::merge_keys(launch, x.keys, wave.plan);
      if (ws.stats != nullptr) launch(detail::count_fates_phase{wave, ws.stats});
      detail::fit_rows(launch, p, x);
      detail::merge_values<true>(launch, x.values, true, true);
    };
    detail::launcher<Executor> const launch{executor, wave};
    apply_fates(launch, x, merge, {fates_of::plan, ws.zero_emptied});
  });
}

/// Shrinks the tracks of `work` to their budgets, in place. Keys merge in every round, values once through
/// the composed plan. Compaction runs once. Enqueues all launches on `executor`, and does not wait. Takes no
/// scratch of the size of K or V. Checks no argument. Tracks within their budget are not touched, unless the
/// selector says so (thins_any_track).
///
/// For policies of one round, compress equals plan + apply. For several rounds it equals repeated plan +
/// apply in keys, degrees, positions and lengths if the selector pins fixed numbers of first and last entries
/// (Chelsea); values are rounded once instead of once per round. Other selectors choose roles anew in every
/// plan.
///
/// At most `max_rounds` rounds run. Where launches are not immediate, the first `likely_rounds` of them are
/// enqueued phase by phase. The rest is one launch, in which a team per track goes on until the track is
/// done; only shared plans and shared budgets enqueue all rounds phase by phase. Tracks
/// that share their budgets (budget::over) are scored together, then planned in parts if they are more than
/// `ws.wave.tracks`: `ws` is carved for such budget scopes, and the work list is ordered by sequence if the
/// scopes span layers. Empty slots of a padded ledger are removed
/// first; the caller fills tracks up again.
template <class Executor, class Policy, class Keys, class Values>
void compress(Executor& executor, Policy const& p, kv<Keys, Values> const& x, ledger_ref const& ledger,
              work_list work, budget allowed, shortfall fallback, workspace_ref const& ws,
              std::uint32_t max_rounds = 0xffffffffu, std::uint32_t likely_rounds = 0xffffffffu) {
  detail::round_facts const facts = detail::facts_of_round(p, ledger.extent);
  bool const rehearses = executor.rehearses();
  if (rehearses) {  // one likely round, and one other if there are others
    if (likely_rounds < max_rounds) likely_rounds = min_of(likely_rounds, 1u);
    max_rounds = min_of(max_rounds, 2u);
  }
  std::uint32_t const rounds = facts.identify.repeats ? max_rounds : min_of(max_rounds, 1u);
  std::uint32_t const per_budget = tracks_per_budget(allowed.among(), ledger.extent);
  detail::for_each_wave(ws, ledger, work, per_budget, [&](wave_ref const& wave) {
    bool const parts = detail::has_parts(ws, wave);
    if (ledger.padded) {
      detail::for_each_part(ws, wave, [&](wave_ref const& part) {
        detail::drop_padding(detail::launcher<Executor>{executor, part}, x);
      });
    }
    detail::open_wave(executor, p, x, allowed, ws, wave);
    detail::for_each_part(ws, wave, [&](wave_ref part) {
      if (detail::may_plan_directly(part, rounds)) part.step = part.plan;
      detail::launcher<Executor> const launch{executor, part};
      detail::select_entries(
          launch, p, x, detail::fits_rows(p) ? detail::looked_at::everything : detail::looked_at::mergeable,
          parts);
      if (ws.stats != nullptr) launch(detail::weigh_mass_phase{part, ws.stats});
      std::uint32_t round = 0;
      for (; round < rounds && (rehearses || detail::any_active<Executor>(part)); ++round) {
        if (round >= likely_rounds && detail::run_remaining_rounds(launch, p, x, facts, rounds - round))
          break;
        detail::run_round(launch, p, x, facts);
      }
      if (fallback == shortfall::evict_lowest)
        launch(detail::fallback_phase{part, true, facts_of<select_facts>(p.select).pins_exactly});
      launch(detail::end_phase{{part}, true, per_budget == 1});
      if (ws.stats != nullptr) launch(detail::count_fates_phase{part, ws.stats});
      detail::fit_rows(launch, p, x);
      // The fallback evicts whole sets, so their list still holds. It may end a span that others share.
      bool const listed =
          part.plans_directly() && round != 0 && (fallback == shortfall::keep || !facts.identify.makes_spans);
      detail::merge_values<stated_facts<identify_facts, typename Policy::identify_type>.makes_spans>(
          launch, x.values, facts.merges_rows, facts.identify.makes_spans && facts.merges_rows, listed);
      detail::move_together(launch, x, ws.zero_emptied);
    });
    if (per_budget > 1) detail::launcher<Executor>{executor, wave}(detail::close_budget_phase{{wave}, true});
  });
  detail::settle(executor, work, {ledger});
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
