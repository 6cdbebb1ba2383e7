// Identifiers that make no sets: nothing merges. `none` keeps entries apart, `evict_rest` drops them.
#pragma once

#include <cstdint>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/identify/round_view.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// Proposes and admits nothing.
struct none : defaults {
  static constexpr char const* name = "none";
  static constexpr bool light = true;
  static constexpr bool makes_sets = false;

  template <class Round> KVMELD_HD void admit(Round&) const {}
};

/// Drops every mergeable entry that has no other fate yet. The selector decides how many these are, so the
/// budget is met exactly if the selector's quantities fill it. Rows with NaN or infinity may drop like any
/// other row, because nothing is computed from them.
struct evict_rest : defaults {
  static constexpr char const* name = "evict_rest";
  static constexpr bool light = true;
  static constexpr bool meets_budget = true;
  static constexpr bool makes_sets = false;
  static constexpr bool drops_unmerged = true;

  template <class Team>
  KVMELD_HD void admit(Team const& team, wave_ref const& wave, std::uint32_t item, std::uint32_t) const {
    role const* const roles = wave.roles + wave.at(item, 0);
    std::uint32_t dropped = 0;
    team.for_each(wave.state[item].length, [&](std::uint32_t s) {
      fate& now = wave.step.fates[wave.step.at(item, s)];
      if (roles[s] != role::mergeable || now != fate::keep) return;
      if (wave.plan.fates[wave.plan.at(item, s)] != fate::keep) return;
      now = fate::drop;
      ++dropped;
    });
    dropped = team.reduce(dropped, op_sum{});
    if (team.lane() == 0) wave.state[item].merged += dropped;
    team.sync();
  }
};

}  // namespace identify

}  // namespace KVMELD_ABI
}  // namespace kvmeld
