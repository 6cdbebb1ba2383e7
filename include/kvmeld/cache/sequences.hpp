// The life of a sequence as phases over its tracks: open, append, commit, truncate.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A new, unmerged entry: degree 1, every channel at its initial value, not yet looked at.
KVMELD_HD inline void new_entry(ledger_ref const& l, track where, slot_t s, position_t position) {
  std::size_t const i = l.at(where, s);
  l.degree[i] = 1.0f;
  l.position[i] = position;
  l.flags[i] = 0;
  if (l.members.capacity != 0) l.members.own_norm[i] = 0.0f;
  for (std::uint32_t c = 0; c < l.channels.count; ++c) l.channel_data[c][i] = l.channels.at[c].initial;
}

/// Base of the phases that run over the tracks of a list of sequences, with one number per listed sequence.
struct sequence_phase {
  ledger_ref ledger;
  work_list work;
  std::uint32_t const* counts;  ///< [work.sequence_count]

  static constexpr bool light = true;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }
  KVMELD_HD std::uint32_t count_of(tile const& t) const {
    return counts[t.item / ledger.extent.kv_heads % work.sequence_count];
  }
  /// True for the one tile that speaks for its sequence.
  KVMELD_HD bool leads(tile const& t) const { return t.where.layer == 0 && t.where.kv_head == 0; }
};

/// `count` entries that the engine has cached already, at positions 0 .. count - 1; the track starts afresh.
struct open_phase : sequence_phase {
  std::uint32_t frozen, id;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = count_of(t);
    team.for_each(ledger.extent.capacity, [&](std::uint32_t s) {
      new_entry(ledger, t.where, s, static_cast<position_t>(s));
      if (s >= n) ledger.degree[ledger.at(t.where, s)] = 0.0f;
    });
    if (team.lane() != 0) return;
    ledger.length[t.where.index] = n;
    ledger.findings[t.where.index] = 0;
    for (std::uint32_t w = 0; w < track_word::count; ++w) ledger.word(t.where, w) = 0;
    if (ledger.members.capacity != 0) ledger.members.count[t.where.index] = 0;
    if (!leads(t)) return;
    std::uint32_t const sequence = t.where.sequence;
    ledger.seen[sequence] = n;
    ledger.pending[sequence] = 0;
    ledger.frozen[sequence] = frozen;
    ledger.id[sequence] = id;
    ledger.is_open[sequence] = 1;
    for (std::uint32_t w = 0; w < sequence_word::count; ++w) ledger.sequence_state(sequence, w) = 0;
  }
};

/// `count` entries behind the last one, pending. Positions go on from the tokens seen and pending.
struct append_phase : sequence_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = ledger.length[t.where.index];
    std::uint32_t const next = ledger.seen[t.where.sequence] + ledger.pending[t.where.sequence];
    std::uint32_t const room = ledger.extent.capacity - n;
    std::uint32_t const count =
        min_of(count_of(t), room);  // hosts that cannot look may be wrong, memory may not
    team.sync();
    team.for_each(count, [&](std::uint32_t i) {
      new_entry(ledger, t.where, n + i, static_cast<position_t>(next + i));
    });
    if (team.lane() != 0) return;
    ledger.length[t.where.index] = n + count;
    if (count_of(t) > room) ledger.findings[t.where.index] |= finding::overfull;
  }
};

/// Follows append_phase: the sequence's own counter.
struct append_settle_phase : sequence_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (leads(t) && team.lane() == 0) ledger.pending[t.where.sequence] += count_of(t);
  }
};

/// Keeps the first `count` pending entries and forgets the rest.
struct commit_phase : sequence_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = ledger.length[t.where.index];
    std::uint32_t const kept = min_of(n, n - min_of(n, ledger.pending[t.where.sequence]) + count_of(t));
    team.sync();
    team.for_each(n - kept, [&](std::uint32_t i) { ledger.degree[ledger.at(t.where, kept + i)] = 0.0f; });
    if (team.lane() == 0) ledger.length[t.where.index] = kept;
  }
};

/// Follows commit_phase.
struct commit_settle_phase : sequence_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t) || team.lane() != 0) return;
    ledger.seen[t.where.sequence] += count_of(t);
    ledger.pending[t.where.sequence] = 0;
  }
};

/// Forgets all but the first `count` tokens seen, of which those to forget are unmerged.
struct truncate_phase : sequence_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = ledger.length[t.where.index];
    std::uint32_t const kept = n - (ledger.seen[t.where.sequence] - count_of(t));
    team.sync();
    team.for_each(n - kept, [&](std::uint32_t i) { ledger.degree[ledger.at(t.where, kept + i)] = 0.0f; });
    if (team.lane() == 0) ledger.length[t.where.index] = kept;
  }
};

/// Follows truncate_phase.
struct truncate_settle_phase : sequence_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (leads(t) && team.lane() == 0) ledger.seen[t.where.sequence] = count_of(t);
  }
};

/// The first `count` entries of every track are frozen from now on.
struct freeze_phase : sequence_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (leads(t) && team.lane() == 0) ledger.frozen[t.where.sequence] = count_of(t);
  }
};

struct close_phase : sequence_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (leads(t) && team.lane() == 0) ledger.is_open[t.where.sequence] = 0;
  }
};

struct set_rounds_phase : sequence_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (leads(t) && team.lane() == 0)
      ledger.sequence_state(t.where.sequence, sequence_word::rounds) = count_of(t);
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
