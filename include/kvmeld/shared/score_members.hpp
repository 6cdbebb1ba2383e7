// SPDX-License-Identifier: Apache-2.0
// How important a member of a shared entry is: the score of the policy, asked about members.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/score/score_view.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score_uses {

template <class S>
using evaluate_members = decltype(contract::some<S>().evaluate_members(
    contract::some<serial_team>(), contract::some<score_view>(), std::declval<float*>()));

}  // namespace score_uses

namespace detail {

/// Whether a score also answers for members, as a policy that shares entries needs: its `importance` takes
/// views of members, or it has `evaluate_members(team, view, out)`, which writes out[member] for the members
/// of a view of entries.
template <class Score>
constexpr bool scores_members =
    !reads_rows<Score> && stated_facts<score_facts, Score>.gives != score_kind::none &&
    (contract::allows<score_uses::importance, Score> ||
     contract::allows<score_uses::evaluate_members, Score>);

/// Evaluates the score of every member of a track.
template <class Score> struct score_members_phase {
  Score score;
  wave_ref wave;

  static constexpr bool light = stated_facts<score_facts, Score>.light, spans_blocks = light;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int lanes) const { return scratch_of_score(score, wave.ledger.extent, lanes); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state const& s = wave.state[t.item];
    if (s.over_budget == 0) return;
    score_view const view(wave.ledger, t.where, s.length, s.limit);
    float* const out = wave.members.score_of(t.item);
    if constexpr (contract::allows<score_uses::evaluate_members, Score>) {
      score.evaluate_members(team, view, out);
    } else {
      evaluate_score(score, team, view.members(), 0, out);
    }
  }
};

/// Gives the members of every track of a plan scope the mean of their scores, as unite_scores_phase does for
/// entries.
struct unite_member_scores_phase : scope_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t) || wave.state[t.item].over_budget == 0) return;
    average(team, wave.ledger.members.held(t.where),
            [&](std::uint32_t m, std::uint32_t i) -> float& { return wave.members.score_of(t.item + m)[i]; });
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
