// SPDX-License-Identifier: Apache-2.0
// Copies what a ledger knows of a sequence to another sequence or another ledger: to fork it, to save it.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/fields.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace sequences {

/// Copies entries, members and the score's table of track `t` of ledger `l` to track `to` of ledger `out`,
/// whose tracks have the same sizes. Collective.
template <class Team>
KVMELD_HD void copy_entries(Team const& team, ledger_ref const& l, track t, ledger_ref const& out, track to) {
  detail::for_each_field(
      [&](detail::field_of what, std::uint32_t, auto* from, auto* into) {
        if (what == detail::field_of::sequence || what == detail::field_of::track) return;
        entry_indices const source = detail::indices_of_part(l, what, t);
        entry_indices const target = detail::indices_of_part(out, what, to);
        team.for_each(detail::size_of_part(l, what, t), [&](std::uint32_t i) {
          if (into + target(i) != from + source(i)) into[target(i)] = from[source(i)];
        });
      },
      l, out);
  detail::copy_rest(team, l, t, out, to);
}

/// Copies the numbers of a track. By one lane.
KVMELD_HD inline void copy_track(ledger_ref const& l, track t, ledger_ref const& out, track to) {
  out.length[to.index] = l.length[t.index];
  out.warnings[to.index] = l.warnings[t.index];
  for (std::uint32_t w = 0; w < track_word::count; ++w) out.word(to, w) = l.word(t, w);
}

/// Copies the numbers of a sequence, but for its id, its frozen entries, and whether it is open. By one lane.
KVMELD_HD inline void copy_state(ledger_ref const& l, std::uint32_t from, ledger_ref const& out,
                                 std::uint32_t into) {
  out.seen[into] = l.seen[from];
  out.pending[into] = l.pending[from];
  for (std::uint32_t w = 0; w < sequence_word::count; ++w)
    out.sequence_state(into, w) = l.sequence_state(from, w);
}

/// Copies all that ledger `l` knows of sequence `from` to sequence `into` of ledger `out`. The ledgers differ
/// in their number of sequences alone. A tile per track.
struct copy_sequence_phase {
  ledger_ref l;
  std::uint32_t from;
  ledger_ref out;
  std::uint32_t into;

  std::uint32_t items() const { return l.extent.layers * l.extent.kv_heads; }
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }
  KVMELD_HD track where(std::uint32_t item) const {
    return make_track(l.extent, item / l.extent.kv_heads, from, item % l.extent.kv_heads);
  }
  KVMELD_HD static bool idle(std::uint32_t) { return false; }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track const to = make_track(out.extent, t.where.layer, into, t.where.kv_head);
    copy_entries(team, l, t.where, out, to);
    if (team.lane() != 0) return;
    copy_track(l, t.where, out, to);
    if (t.item != 0) return;
    copy_state(l, from, out, into);
    out.frozen[into] = l.frozen[from];
    out.id[into] = l.id[from];
    out.is_open[into] = l.is_open[from];
  }
};

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
