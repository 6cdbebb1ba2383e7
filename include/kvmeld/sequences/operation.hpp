// SPDX-License-Identifier: Apache-2.0
// The base of all operations on sequences. An operation states its effect once: a launch carries it out on
// the ledger, and the host's mirror repeats it if the host cannot read the ledger.
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
namespace detail {

/// Base of the phases that run over the tracks of a list of sequences, with one number per listed sequence.
struct sequence_phase {
  ledger_ref ledger;
  work_list work;
  std::uint32_t const* counts;  ///< [work.sequence_count]; null: the call has no numbers

  static constexpr bool light = true;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }
  KVMELD_HD std::uint32_t count_of(tile const& t) const {
    return counts == nullptr ? 0 : counts[t.item / ledger.extent.kv_heads % work.sequence_count];
  }
  /// True for the one tile that handles the numbers of its sequence.
  KVMELD_HD bool leads(tile const& t) const { return t.where.layer == 0 && t.where.kv_head == 0; }
};

/// The i-th track of a sequence, in the order (layer, head).
KVMELD_HD inline track track_of_sequence(shape const& s, std::uint32_t sequence, std::uint32_t i) {
  return make_track(s, i / s.kv_heads, sequence, i % s.kv_heads);
}

/// The highest value of a track_word over all tracks of a sequence, on every lane. Collective.
template <class Team>
KVMELD_HD std::uint32_t highest_word(Team const& team, ledger_ref const& l, std::uint32_t sequence,
                                     std::uint32_t which) {
  std::uint32_t highest = 0;
  team.for_each(l.extent.layers * l.extent.kv_heads, [&](std::uint32_t i) {
    highest = max_of(highest, l.word(track_of_sequence(l.extent, sequence, i), which));
  });
  return team.reduce(highest, op_max{});
}

/// Does all of an operation on one sequence; nothing for a number that is no sequence of the cache. Each of
/// `lanes` threads calls it with its own `lane`, and barrier() waits for all of them. Barrier at the end.
KVMELD_CALLS_ARGUMENTS
template <class Operation, class Barrier>
KVMELD_HD void operate_in_kernel(Operation const& operation, ledger_ref const& l, std::uint32_t sequence,
                                 std::uint32_t n, std::uint32_t lane, std::uint32_t lanes,
                                 Barrier const& barrier) {
  if (sequence >= l.extent.sequences) return;
  for (std::uint32_t i = lane; i < l.extent.layers * l.extent.kv_heads; i += lanes) {
    track const where = track_of_sequence(l.extent, sequence, i);
    operation.on_entries(serial_team(nullptr, 0), l, where, n);
    operation.on_track(l, where, n);
  }
  barrier();
  if (lane == 0) operation.on_sequence(l, sequence, n);
  barrier();
}

}  // namespace detail

/// The type of in_kernel. Braces never make one, so they stay lists.
class in_kernel_t {
public:
  enum class made { once };
  explicit constexpr in_kernel_t(made) {}  ///< in_kernel is the only one that is needed
};
/// Given to `append` or `commit`: kvmeld launches nothing, because a kernel of the engine calls
/// append_in_kernel or commit_in_kernel.
inline constexpr in_kernel_t in_kernel{in_kernel_t::made::once};

namespace sequences {

/// How an operation affects a report of lengths that was requested before it and has not arrived.
enum class effect : std::uint8_t {
  counted,  ///< every track gained or lost the same number of entries at its end: the report is valid with
            ///< this difference added
  changed,  ///< other numbers changed: the report only bounds the lengths
  begun,    ///< another sequence began: the report says nothing about it
};

/// Base of operations, with their defaults. An operation is trivially copyable. It has `name`, and
///   `problem(facts, sequences, counts)`    why the call is refused; empty if it is not
/// and defines anew those of the functions and constants below that it needs. Their last argument, `n`, is
/// the number that the call has for the sequence. For every track a launch calls `on_entries` with a team,
/// then `on_track` on one lane. Then it calls `on_sequence` once per sequence. The host's mirror calls only
/// `on_track` and `on_sequence`, on a ledger whose arrays per entry and per member are null.
struct operation {
  /// What the operation means for a report that is on its way.
  static constexpr effect leaves = effect::counted;
  /// False: tracks do not change, and there is no launch for them.
  static constexpr bool over_tracks = true;
  /// True: `on_entries` and `on_track` do not read what `on_sequence` writes, so one launch is enough.
  static constexpr bool at_once = false;
  /// Whether a call has one number for each of its sequences.
  static constexpr bool has_counts = true;
  /// Whether the operation makes an earlier plan of the sequence invalid.
  static constexpr bool outdates_plan = true;
  /// Whether calls can be recorded; their numbers then have to be lists.
  static constexpr bool recordable = true;

  /// True: calls mostly write few entries of a track, and whole_sequences_phase may do all of them. Such an
  /// operation has counts.
  static constexpr bool writes_few = false;
  /// The most entries that `on_entries` writes in a track, as far as the host can tell; for `writes_few`.
  std::uint32_t entries(ledger_ref const&, std::uint32_t, std::uint32_t) const { return 0; }

  /// Changes the arrays per entry and per member. Collective; no barrier at the end.
  template <class Team>
  KVMELD_HD void on_entries(Team const&, ledger_ref const&, track, std::uint32_t) const {}
  /// Changes length, warnings and words of a track.
  KVMELD_HD void on_track(ledger_ref const&, track, std::uint32_t) const {}
  /// Changes the numbers of a sequence.
  KVMELD_HD void on_sequence(ledger_ref const&, std::uint32_t, std::uint32_t) const {}
};

/// Runs an operation on all tracks of its sequences.
template <class Operation> struct tracks_phase : detail::sequence_phase {
  static constexpr bool spans_blocks = !Operation::writes_few;
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

/// Follows tracks_phase. Runs the operation on the sequences' own numbers.
template <class Operation> struct numbers_phase : detail::sequence_phase {
  Operation operation;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (leads(t) && team.lane() == 0) operation.on_sequence(ledger, t.where.sequence, count_of(t));
  }
};

/// Does all of an operation in one launch, where it writes few entries. A tile is a sequence, and each lane
/// takes tracks.
template <class Operation> struct whole_sequences_phase : detail::sequence_phase {
  static constexpr std::uint32_t few = 16;  ///< entries of a track
  Operation operation;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    detail::operate_in_kernel(operation, ledger, t.where.sequence, counts[t.item], team.lane(), team.lanes(),
                              [&] { team.sync(); });
  }
};

/// Numbers the sequences of a work list for launches with a tile per sequence.
struct sequence_source {
  shape extent;
  work_list work;
  /// The first track of the sequence.
  KVMELD_HD track where(std::uint32_t item) const { return make_track(extent, 0, work.sequences[item], 0); }
  /// Whether the item is only there to fill up a recorded list.
  KVMELD_HD bool idle(std::uint32_t item) const { return work.sequences[item] == idle_sequence; }
};

/// Makes the one or two launches of an operation.
template <class Launch, class Operation>
void launch_operation(Launch const& launch, Operation const& operation, detail::sequence_phase const& all) {
  if constexpr (Operation::over_tracks) launch(tracks_phase<Operation>{all, operation});
  if constexpr (!Operation::at_once) launch(numbers_phase<Operation>{all, operation});
}

}  // namespace sequences
}  // namespace KVMELD_ABI
}  // namespace kvmeld
