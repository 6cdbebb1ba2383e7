// SPDX-License-Identifier: Apache-2.0
// Tracks that share one plan: they share flags and scores, one track leads, the others follow.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/joined.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Flags a row in all tracks if it holds NaN or infinity in one of them: none of them may merge it.
struct unite_flags_phase : scope_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t)) return;
    ledger_ref const& l = wave.ledger;
    team.for_each(l.length[t.where.index], [&](std::uint32_t s) {
      std::uint8_t bad = 0;
      for (std::uint32_t m = 0; m < wave.scope; ++m) {
        bad = static_cast<std::uint8_t>(bad |
                                        (l.flags[l.at(wave.where(t.item + m), s)] & entry_flag::nonfinite));
      }
      if (bad == 0) return;
      for (std::uint32_t m = 0; m < wave.scope; ++m) {
        std::uint8_t& flags = l.flags[l.at(wave.where(t.item + m), s)];
        flags = static_cast<std::uint8_t>(flags | bad);
      }
    });
  }
};

/// Gives every track the mean of the scores, summed in the order of tracks, and the longest shielded
/// beginning.
struct unite_scores_phase : scope_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t) || wave.state[t.item].over_budget == 0) return;
    average(team, wave.state[t.item].length,
            [&](std::uint32_t m, std::uint32_t s) -> float& { return wave.score[wave.at(t.item + m, s)]; });
    if (team.lane() != 0) return;
    std::uint32_t shielded = 0;
    for (std::uint32_t m = 0; m < wave.scope; ++m)
      shielded = max_of(shielded, wave.state[t.item + m].shielded);
    for (std::uint32_t m = 0; m < wave.scope; ++m) wave.state[t.item + m].shielded = shielded;
  }
};

/// Runs before the leaders propose: their followers take no part in this round's planning.
struct mute_followers_phase : scope_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t) && team.lane() == 0) wave.state[t.item].over_budget = 0;
  }
};

/// Runs after the leaders have admitted: every follower copies the step and state of its leader. Sets are
/// weighed later, from each track's own rows.
struct broadcast_phase : scope_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (leads(t)) return;
    plan_ref const& step = wave.step;
    std::uint32_t const leader = t.item - t.item % wave.scope;
    if (wave.state[leader].unchanged != 0 && wave.state[t.item].unchanged != 0) return;
    team.for_each(wave.state[leader].length, [&](std::uint32_t s) {
      std::size_t const from = step.at(leader, s), to = step.at(t.item, s);
      step.fates[to] = step.fates[from];
      step.target[to] = step.target[from];
      step.span[to] = step.span[from];
      step.key_weight[to] = step.key_weight[from];
      step.value_weight[to] = step.value_weight[from];
      step.degree_weight[to] = step.degree_weight[from];
    });
    if (team.lane() == 0) wave.state[t.item] = wave.state[leader];
  }
};

/// The wave for identifiers that propose from joined rows: its key_dim and value_dim are those of joined
/// rows.
KVMELD_HD inline wave_ref joined_wave(wave_ref wave) {
  wave.ledger.extent.key_dim *= wave.scope;
  wave.ledger.extent.value_dim *= wave.scope;
  return wave;
}

/// Rows of a layout, joined over the tracks that share a plan.
template <class Layout> KVMELD_HD joined_rows<Layout> join(Layout const& layout, wave_ref const& wave) {
  return {layout, wave.ledger.extent.kv_heads, wave.ledger.extent.sequences, wave.scope};
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
