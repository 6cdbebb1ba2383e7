// SPDX-License-Identifier: Apache-2.0
// The phases around planning: a track enters a wave, evicts as a fallback, and leaves with its warnings.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/sequences/operation.hpp>
#include <kvmeld/shared/move_members.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Resolves the budget, and opens a plan that keeps all unless open_plan_phase will. Tracks within their
/// budget take no further part, unless the selector thins any track.
struct begin_phase : track_phase {
  budget allowed;
  bool any_track = false;  ///< of the selector: thins_any_track
  bool opens_plan = true;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = wave.ledger;
    std::uint32_t const n = l.length[t.where.index];
    if (opens_plan) {
      keep_entries(team, wave.plan, t.item, n);
      keep_members(team, wave, t);
    }
    if (team.lane() == 0) {
      track_state s{};
      s.length = s.alive = n;
      s.limit = allowed.resolve(t.where, l.seen[t.where.sequence]);
      s.over_budget = n > s.limit || (any_track && n != 0) ? 1 : 0;
      s.shielded = min_of(n, l.frozen[t.where.sequence]);
      s.unlisted = 1;
      wave.state[t.item] = s;
      l.warnings[t.where.index] = warning::none;
      l.word(t.where, track_word::next_carried) = 0;
    }
  }
};

/// Opens a plan that keeps all, for tracks whose scores are known.
struct open_plan_phase : track_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    keep_entries(team, wave.plan, t.item, wave.state[t.item].length);
    keep_members(team, wave, t);
  }
};

/// Extends the shielded beginning over every slot that a layout refuses to write (shared pages).
template <class Layout> struct shield_phase {
  Layout layout;
  scored_tracks wave;

  static constexpr bool wide = true, spans_blocks = true;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state& s = wave.state[t.item];
    if (s.over_budget == 0) return;
    std::uint32_t last = 0;
    team.for_each(s.length, [&](std::uint32_t i) {
      if (!layout.writable(t.where, i)) last = max_of(last, i + 1);
    });
    last = team.reduce(last, op_max{});
    if (team.lane() == 0) s.shielded = max_of(s.shielded, last);
  }
};

/// Evicts the lowest scores (ties to the lower slot) of a track that merging did not bring to its budget.
/// Changes the plan alone. Sets stay whole: what had merged into an evicted entry goes with it. Pinned
/// entries go last, and only if the selector may pin more than fits.
struct fallback_phase {
  wave_ref wave;
  bool last;          ///< no further rounds follow
  bool pins_exactly;  ///< of the selector

  static constexpr bool light = true, near_scratch = true, spans_blocks = true;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 2 * select_k_scratch(); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state& s = wave.state[t.item];
    std::uint32_t const excess = s.excess();
    if (excess == 0 || (s.over_budget != 0 && !last)) return;  // further rounds may still get there
    fate* const fates = wave.plan.fates + wave.plan.at(t.item, 0);
    team.sync();
    std::uint32_t* const keys = wave.place + wave.at(t.item, 0);  // free since the identifier has admitted
    auto const evict = [&](std::uint32_t most, bool pinned) {
      role const* const roles = wave.roles + wave.at(t.item, 0);
      float const* const score = wave.score + wave.at(t.item, 0);
      team.for_each(s.length, [&](std::uint32_t i) {
        bool const free = fates[i] == fate::keep && i >= s.shielded && (roles[i] == role::pinned) == pinned;
        keys[i] = free ? ~order_key(score[i]) : 0u;
      });
      team.sync();
      return select_k(
          team, s.length, most, [=](std::uint32_t i) { return keys[i]; },
          [=](std::uint32_t i) { fates[i] = fate::drop; });
    };
    std::uint32_t const passes = pins_exactly || s.shielded > s.limit ? 1 : 2;
    std::uint32_t dropped = 0;
    for (std::uint32_t pass = 0; pass < passes && dropped < excess; ++pass)
      dropped += evict(excess - dropped, pass != 0);
    slot_t* const target = wave.plan.target + wave.plan.at(t.item, 0);
    team.for_each(s.length, [&](std::uint32_t i) {
      if (fates[i] == fate::keep || fates[i] == fate::drop) return;
      if (fates[target[i]] != fate::drop) return;
      fates[i] = fate::drop;
      target[i] = i;
    });
    team.sync();
    if (team.lane() == 0) {
      s.alive -= dropped;
      if (dropped != 0) wave.ledger.warnings[t.where.index] |= warning::evicted_fallback;
    }
  }
};

/// Writes a track's warnings and how many rounds it took.
struct end_phase : phase_over<scored_tracks> {
  bool last;          ///< no further rounds follow
  bool alone = true;  ///< the track has a budget of its own; else close_budget_phase warns, and comes later

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = wave.ledger;
    track_state const& s = wave.state[t.item];
    std::uint32_t bad = 0;
    team.for_each(s.length, [&](std::uint32_t i) { bad |= l.usable(t.where, i) ? 0u : 1u; });
    bad = team.reduce(bad, op_max{});
    if (team.lane() != 0) return;
    if (bad != 0) l.warnings[t.where.index] |= warning::nonfinite_rows;
    if (alone && s.excess() != 0 && (s.over_budget == 0 || last))
      l.warnings[t.where.index] |= warning::budget_unreached;
    l.word(t.where, track_word::last_rounds) = s.rounds;
  }
};

/// Runs after kept entries have moved. In every track, the word that the identifier left for the next
/// compression (next_carried) becomes current (carried). One tile per sequence adds the most rounds that any
/// of its tracks took and, if any of them changed, notes the tokens seen. With `merges` unset entries went,
/// but none merged: the tokens that are left can still be told apart, and the end of the gaps is noted
/// instead.
struct settle_phase {
  ledger_ref ledger;
  bool merges = true;
  std::uint32_t gap_end = 0;

  static constexpr bool light = true;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const next = ledger.word(t.where, track_word::next_carried);
    if (team.lane() == 0 && next != 0) ledger.word(t.where, track_word::carried) = next;
    if (t.where.layer != 0 || t.where.kv_head != 0) return;
    std::uint32_t const sequence = t.where.sequence;
    std::uint32_t const most = highest_word(team, ledger, sequence, track_word::last_rounds),
                        changed = highest_word(team, ledger, sequence, track_word::changed);
    if (team.lane() != 0) return;
    ledger.sequence_state(sequence, sequence_word::rounds) += most;
    std::uint32_t const seen = ledger.seen[sequence];
    std::uint32_t& gap = ledger.sequence_state(sequence, sequence_word::gap_end);
    if (!merges) gap = max_of(gap, min_of(gap_end, seen));
    if (merges && changed != 0) ledger.sequence_state(sequence, sequence_word::compressed_at) = seen;
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
