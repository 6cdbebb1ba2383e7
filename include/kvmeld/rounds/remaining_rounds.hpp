// SPDX-License-Identifier: Apache-2.0
// The rounds that hardly any track needs: one launch for all of them. A team goes through the rounds of one
// track and stops when the track is done.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/rounds/round.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// launch.run(phase), or launch.run(form) with the form that an executor of warps would launch in place of
/// the phase, if `launch.tuned_forms`.
KVMELD_CALLS_ARGUMENTS
template <bool Warps, class Launch, class Phase>
KVMELD_HD void run_in_its_form(Launch const& launch, Phase const& phase) {
  if constexpr (Warps && has_tuned_form<Phase>) {
    if (launch.tuned_forms && tuned<warps, Phase>::takes(phase))
      return launch.run(typename tuned<warps, Phase>::form{phase});
  }
  launch.run(phase);
}

/// Runs phases on one track, on the team that has the track. Where `tuned_forms`, phases run in the forms
/// that an executor of warps would launch.
template <class Team> struct team_launcher {
  static constexpr bool joins = false;
  Team const& team;
  wave_ref const& wave;
  tile const& here;  ///< the track
  bool tuned_forms;

  template <class Phase> KVMELD_HD void operator()(Phase const& phase) const {
    if constexpr (has_warps<Team>::value) {
      static_assert(!tuned<warps, Phase>::value || has_tuned_form<Phase>,
                    "kvmeld: a phase of a round that repeats has a tuned form of several launches");
    }
    run_in_its_form<has_warps<Team>::value>(*this, phase);
  }
  template <class Phase> KVMELD_HD void run(Phase const& phase) const {
    std::uint32_t const tiles = phase.tiles(wave.ledger.extent);
    for (std::uint32_t i = 0; i < tiles; ++i) {
      team.reuse_scratch();
      phase(team, tile{here.where, here.item, i});
      team.sync();
    }
  }
};

/// Finds the most scratch that one of the phases of a round needs from a team of `lanes` lanes. `Warps`:
/// whether the team is made of warps.
template <bool Warps> struct scratch_finder {
  static constexpr bool joins = false;
  wave_ref const& wave;
  int lanes;
  bool tuned_forms;
  std::size_t& most;

  template <class Phase> void operator()(Phase const& phase) const { run_in_its_form<Warps>(*this, phase); }
  template <class Phase> void run(Phase const& phase) const {
    most = max_of(most, phase.scratch_bytes(lanes));
  }
};

/// The rounds of a track after those that were launched phase by phase, `rounds` of them at most. Phases see
/// the same arrays as in launches of their own, so results are the same to the bit.
template <class Policy, class Keys, class Values, bool Warps> struct remaining_rounds_phase {
  Policy policy;
  kv<Keys, Values> x;
  wave_ref wave;
  round_facts facts;
  std::uint32_t rounds;
  bool tuned_forms;  ///< whether phases run in the forms tuned for warps

  static constexpr bool near_scratch = Warps;  // run_remaining_rounds makes sure
  KVMELD_HD std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int lanes) const {
    std::size_t most = 0;
    run_round(scratch_finder<Warps>{wave, lanes, tuned_forms, most}, policy, x, facts);
    return most;
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    team_launcher<Team> const launch{team, wave, t, tuned_forms};
    for (std::uint32_t i = 0; i < rounds; ++i) {
      if (wave.state[t.item].over_budget == 0) return;
      run_round(launch, policy, x, facts);
    }
  }
};

/// Whether an executor's teams are made of warps (exec/warps.hpp).
template <class Executor, class = void> struct runs_on_warps : std::false_type {};
template <class Executor>
struct runs_on_warps<Executor, std::void_t<decltype(std::declval<Executor const&>().max_scratch()),
                                           decltype(std::declval<Executor const&>().tuning_mode())>>
    : std::true_type {};

/// Launches the remaining rounds of a wave at once. Returns false and launches nothing where this cannot be:
/// tracks that share plans or budgets wait for each other, or the executor's nearest scratch is too small.
template <class Executor, class Policy, class Keys, class Values>
bool run_remaining_rounds([[maybe_unused]] launcher<Executor> const& launch, [[maybe_unused]] Policy const& p,
                          [[maybe_unused]] kv<Keys, Values> const& x,
                          [[maybe_unused]] round_facts const& facts, [[maybe_unused]] std::uint32_t rounds) {
  if constexpr (!is_immediate<Executor>::value &&
                stated_facts<identify_facts, typename Policy::identify_type>.repeats) {
    wave_ref const& wave = launch.wave;
    if (wave.per_budget != 1 || wave.scope != 1) return false;
    remaining_rounds_phase<Policy, Keys, Values, runs_on_warps<Executor>::value> phase{p,     x,      wave,
                                                                                       facts, rounds, false};
    if constexpr (runs_on_warps<Executor>::value) {
      phase.tuned_forms = launch.executor.tuning_mode() == tuning::on;
      if (phase.scratch_bytes(launch.executor.lanes()) > launch.executor.max_scratch()) return false;
    }
    launch(phase);
    return true;
  } else {
    return false;
  }
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
