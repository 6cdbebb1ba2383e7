// SPDX-License-Identifier: Apache-2.0
// What the operations share that remove entries which a track finds by itself, by position or by score: which
// entries may go, and their marks.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/sequences/checks.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace sequences {

/// What the host can tell of the entries that a removal takes from every track. A removal is trivially
/// copyable, and has
///   `name`                       of the call
///   `problem(facts, sequence)`   why its arguments or the sequence's own numbers refuse the call; empty if
///                                they do not
///   `removed(facts, sequence)`   a removed_entries
///   `each(team, ledger, track, drop)`
///                                calls drop(s) on one lane for every entry s of the track that goes.
///                                Collective; takes no scratch. Empty slots (degree 0) are no entries. Tracks
///                                that share a plan hold equal positions, and have to lose the same ones
/// `facts` is what the host knows: numbers of tracks and sequences, no entries. merged_cache::remove_entries
/// does the rest: it refuses the call while recording and where rows may not be written, makes the launches,
/// and repeats on the mirror what they do.
struct removed_entries {
  std::uint32_t sure;     ///< so many go from every track, or more
  bool all;               ///< no more than these go; if there are none, the call does nothing
  std::uint32_t gap_end;  ///< they lie at positions below
};

/// Notes the lowest slot that it is called for. (A lambda of a host function could not be called on a
/// device.)
struct lowest_slot {
  slot_t* lowest;
  KVMELD_HD void operator()(slot_t s) const { *lowest = min_of(*lowest, s); }
};

/// Why the entries refuse a removal; empty if they do not. The host can read `l`. `shielded(track)`: length
/// of the beginning that is frozen or that a layout refuses to write.
template <class Removal, class Shielded>
std::string entries_problem(Removal const& removal, ledger_ref const& l, std::uint32_t sequence,
                            Shielded shielded) {
  return check_calls::first_track_problem(l, sequence, [&](track t) -> std::string {
    std::uint32_t const n = shielded(t);
    slot_t s = n;  // the first that goes
    removal.each(serial_team(nullptr, 0), l, t, lowest_slot{&s});
    if (s == n) return {};
    bool const frozen = s < l.frozen[sequence];
    return refusal(Removal::name, message("slot ", frozen ? s : n - 1, " of ", check_calls::track_name(t)),
                   frozen ? "frozen" : "not writable", "writable, because ",
                   frozen || s == n - 1 ? "it" : "an entry before it", " holds position ",
                   l.position[l.at(t, s)], ", which goes");
  });
}

/// Marks the entries of a removal, and the empty slots of padded tracks. What may not be written stays:
/// entries of the removal then leave warning::undropped. Tracks that share a plan keep the same entries.
template <class Removal> struct mark_removed_phase : detail::track_phase {
  Removal removal;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = wave.ledger;
    std::uint32_t const n = wave.state[t.item].length;
    fate* const what = wave.plan.fates + wave.plan.at(t.item, 0);
    std::uint32_t const leader = t.item - t.item % wave.scope;
    std::uint32_t shielded = 0, undropped = 0;
    for (std::uint32_t m = 0; m < wave.scope; ++m)
      shielded = max_of(shielded, wave.state[leader + m].shielded);
    removal.each(team, l, t.where, [&](slot_t s) {
      if (s >= shielded) {
        what[s] = fate::drop;
      } else {
        ++undropped;
      }
    });
    undropped = team.reduce(undropped, op_sum{});
    if (team.lane() == 0 && undropped != 0) l.warnings[t.where.index] |= warning::undropped;
    if (l.word(t.where, track_word::empty) == 0) return;
    std::uint32_t empty = 0;  // slots that stay empty
    entry_array<float const> const degree{l.degree, l.from(t.where)};
    team.for_each(n, [&](slot_t s) {
      if (degree[s] > 0.0f) return;
      if (s >= shielded) {
        what[s] = fate::drop;
      } else {
        ++empty;
      }
    });
    empty = team.reduce(empty, op_sum{});
    if (team.lane() != 0) return;
    l.word(t.where, track_word::empty) = empty;
    if (empty == 0) l.word(t.where, track_word::padded_from) = 0;
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
