// What all operations on sequences have in common. An operation states its effect once: a launch carries it
// out on the ledger, and the host's mirror repeats it where the host cannot look at the ledger.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>

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
  std::uint32_t const* counts;  ///< [work.sequence_count] null: the call has no numbers

  static constexpr bool light = true;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }
  KVMELD_HD std::uint32_t count_of(tile const& t) const {
    return counts == nullptr ? 0 : counts[t.item / ledger.extent.kv_heads % work.sequence_count];
  }
  /// True for the one tile that speaks for its sequence.
  KVMELD_HD bool leads(tile const& t) const { return t.where.layer == 0 && t.where.kv_head == 0; }
};

/// The highest of a track_word over all tracks of a sequence, on every lane. Cooperative.
template <class Team>
KVMELD_HD std::uint32_t highest_word(Team const& team, ledger_ref const& l, std::uint32_t sequence,
                                     std::uint32_t which) {
  std::uint32_t const heads = l.extent.kv_heads;
  std::uint32_t highest = 0;
  team.for_each(l.extent.layers * heads, [&](std::uint32_t i) {
    highest = max_of(highest, l.word(make_track(l.extent, i / heads, sequence, i % heads), which));
  });
  return team.reduce(highest, op_max{});
}

namespace sequences {

/// What an operation leaves of a report of lengths that was asked for before it.
enum class effect : std::uint8_t {
  counted,  ///< entries were added or removed at the end, as many in every track: the report holds with this
            ///< difference
  changed,  ///< other numbers changed: the report bounds the lengths
  begun,    ///< another sequence: the report says nothing about it
};

/// Base of operations, with their defaults. An operation is trivially copyable. It has `name`, and
///   `problem(facts, sequences, counts)`    why the call is refused; empty if it is not
/// and hides what it needs of the functions below. `n` is the number that the call has for the sequence. A
/// launch calls `on_entries` with a team, then `on_track` on one lane, for every track, and then
/// `on_sequence` once per sequence. The host's mirror calls `on_track` and `on_sequence` alone, on a ledger
/// whose arrays per entry and per member are null.
struct operation {
  /// What becomes of a report that is on its way.
  static constexpr effect leaves = effect::counted;
  /// False: nothing happens to tracks, and there is no launch for them.
  static constexpr bool over_tracks = true;
  /// True: tracks do not read what `on_sequence` writes, so that one launch does all.
  static constexpr bool at_once = false;
  /// Whether a call has a number for each of its sequences.
  static constexpr bool has_counts = true;
  /// Whether a plan made before is of no use after it.
  static constexpr bool outdates_plan = true;
  /// Whether calls can be recorded: those whose numbers are lists.
  static constexpr bool recordable = true;

  /// Arrays per entry and per member. Cooperative; no barrier at the end.
  template <class Team>
  KVMELD_HD void on_entries(Team const&, ledger_ref const&, track, std::uint32_t) const {}
  /// Length, warnings and words of a track.
  KVMELD_HD void on_track(ledger_ref const&, track, std::uint32_t) const {}
  /// Numbers of a sequence.
  KVMELD_HD void on_sequence(ledger_ref const&, std::uint32_t, std::uint32_t) const {}
};

/// An operation on all tracks of its sequences.
template <class Operation> struct tracks_phase : sequence_phase {
  Operation operation;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = count_of(t);
    operation.on_entries(team, ledger, t.where, n);
    team.sync();
    if (team.lane() != 0) return;
    operation.on_track(ledger, t.where, n);
    if (Operation::at_once && leads(t)) operation.on_sequence(ledger, t.where.sequence, n);
  }
};

/// Follows tracks_phase: the sequences' own numbers.
template <class Operation> struct numbers_phase : sequence_phase {
  Operation operation;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (leads(t) && team.lane() == 0) operation.on_sequence(ledger, t.where.sequence, count_of(t));
  }
};

/// The launches of an operation, one or two.
template <class Launch, class Operation>
void launch_operation(Launch const& launch, Operation const& operation, sequence_phase const& all) {
  if constexpr (Operation::over_tracks) launch(tracks_phase<Operation>{all, operation});
  if constexpr (!Operation::at_once) launch(numbers_phase<Operation>{all, operation});
}

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
