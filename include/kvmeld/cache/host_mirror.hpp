// What the host knows about a ledger that it cannot read.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/sequences/operation.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// A copy, in host memory, of the ledger's arrays per sequence and per track. Every operation on a sequence
/// is repeated on it. Tokens seen and pending, numbers of frozen entries and open sequences are exact.
/// Lengths are upper bounds, often exact. Numbers of empty slots are lower bounds. `compressed_at` is the
/// number of tokens seen when a compression last may have changed something. Warnings and rounds are those of
/// the last report.
class host_mirror {
public:
  host_mirror() = default;
  explicit host_mirror(shape const& s)
      : extent_(s),
        length_(s.tracks(), 0),
        findings_(s.tracks(), 0),
        track_words_(std::size_t{s.tracks()} * track_word::count, 0),
        seen_(s.sequences, 0),
        pending_(s.sequences, 0),
        frozen_(s.sequences, 0),
        id_(s.sequences, 0),
        is_open_(s.sequences, 0),
        sequence_words_(std::size_t{s.sequences} * sequence_word::count, 0),
        known_(s.sequences, 1),
        drift_(s.sequences, 0),
        since_(s.sequences, sequences::effect::counted) {}

  /// Returns `l` with the arrays of this mirror in place of its own; arrays per entry and per member, and
  /// the score's table, are null. Valid until the mirror is moved.
  ledger_ref view(ledger_ref l) {
    l.length = length_.data();
    l.warnings = findings_.data();
    l.track_words = track_words_.data();
    l.seen = seen_.data();
    l.pending = pending_.data();
    l.frozen = frozen_.data();
    l.id = id_.data();
    l.is_open = is_open_.data();
    l.sequence_words = sequence_words_.data();
    l.degree = nullptr;
    l.position = nullptr;
    l.flags = nullptr;
    for (float*& channel : l.channel_data) channel = nullptr;
    std::uint32_t const members = l.members.capacity;
    l.members = {};
    l.members.capacity = members;
    l.table = nullptr;
    return l;
  }

  /// Upper bound on the length of a track.
  std::uint32_t at(track t) const { return length_[t.index]; }
  /// Upper bound on the entries of a track; empty slots do not count.
  std::uint32_t held(track t) const {
    return length_[t.index] - track_words_[std::size_t{t.index} * track_word::count + track_word::empty];
  }
  /// True if the bounds of a sequence are its lengths.
  bool known(std::uint32_t sequence) const { return known_[sequence] != 0; }
  /// Repeats the first step of a compression, which takes empty slots out. Until `pad`, lengths bound the
  /// entries held.
  void drop_padding(std::uint32_t sequence) {
    each(sequence, [&](track t) {
      length_[t.index] -= words_of(t)[track_word::empty];
      words_of(t)[track_word::empty] = words_of(t)[track_word::padded_from] = 0;
    });
  }
  /// Fills all tracks with empty slots up to the longest bound. `sure`: the bounds are exact, so the first
  /// empty slot lies behind them. Otherwise it may lie as early as right behind the frozen entries.
  void pad(std::uint32_t sequence, bool sure) {
    std::uint32_t const most = longest(sequence);
    each(sequence, [&](track t) {
      std::uint32_t const bound = length_[t.index];
      words_of(t)[track_word::empty] = most - bound;
      words_of(t)[track_word::padded_from] = !sure           ? 1 + std::min(bound, frozen_[sequence])
                                             : bound == most ? 0
                                                             : 1 + bound;
      length_[t.index] = most;
    });
  }
  /// Upper bound on the length of the longest track.
  std::uint32_t longest(std::uint32_t sequence) const {
    std::uint32_t most = 0;
    each(sequence, [&](track t) { most = std::max(most, length_[t.index]); });
    return most;
  }
  void lower(track t, std::uint32_t n) { length_[t.index] = n; }
  /// From now on the lengths of a sequence depend on data: the bounds may be above them.
  void mark_inexact(std::uint32_t sequence) {
    known_[sequence] = 0;
    note(sequence, sequences::effect::changed);
  }
  /// Notes that a compression may have changed the entries of all tokens seen so far.
  void compressed(std::uint32_t sequence) {
    note(sequence, sequences::effect::changed);
    words_of(sequence)[sequence_word::compressed_at] = seen_[sequence];
  }

  /// Repeats what a launch of the operation does to the numbers of a sequence and its tracks.
  template <class Operation> void apply(Operation const& operation, std::uint32_t sequence, std::uint32_t n) {
    ledger_ref l;
    l.extent = extent_;
    ledger_ref const words = view(l);
    std::uint32_t const& length = length_[make_track(extent_, 0, sequence, 0).index];
    std::uint32_t const before = length;
    each(sequence, [&](track t) { operation.on_track(words, t, n); });
    operation.on_sequence(words, sequence, n);
    // Every track has gained or lost as many entries as this one.
    drift_[sequence] += std::int64_t{length} - std::int64_t{before};
    note(sequence, Operation::leaves);
  }
  /// For a new sequence: notes whether the bounds of its lengths are exact.
  void set_known(std::uint32_t sequence, bool known) { known_[sequence] = known ? 1 : 0; }
  void observe(std::uint32_t sequence, std::uint32_t layer, std::uint32_t rows) {
    each(sequence, [&](track t) {
      if (t.layer == layer) count_rows(words_of(t)[track_word::observed_rows], rows);
    });
  }
  /// Copies what the ledger `l` says about a sequence. The host can read `l`.
  void read(ledger_ref const& l, std::uint32_t sequence) {
    each(sequence, [&](track t) {
      length_[t.index] = l.length[t.index];
      findings_[t.index] = l.warnings[t.index];
      std::copy_n(&l.word(t, 0), std::uint32_t{track_word::count}, words_of(t));
    });
    seen_[sequence] = l.seen[sequence];
    pending_[sequence] = l.pending[sequence];
    frozen_[sequence] = l.frozen[sequence];
    id_[sequence] = l.id[sequence];
    is_open_[sequence] = l.is_open[sequence];
    std::copy_n(&l.sequence_state(sequence, 0), std::uint32_t{sequence_word::count}, words_of(sequence));
    known_[sequence] = 1;
    note(sequence, sequences::effect::begun);
  }

  /// Notes that a report was requested. From here on the mirror counts what take_report has to add to it.
  void expect_report() {
    std::fill(drift_.begin(), drift_.end(), 0);
    std::fill(since_.begin(), since_.end(), sequences::effect::counted);
  }
  /// Takes a report with the numbers of the moment of expect_report. Together with the entries appended and
  /// dropped since, they bound the lengths of every sequence. If a sequence was not compressed since, its
  /// lengths, warnings and rounds are then exact. For a sequence opened or read since, the report is ignored.
  void take_report(ledger_ref const& then) {
    for (std::uint32_t q = 0; q < extent_.sequences; ++q) {
      if (since_[q] == sequences::effect::begun || is_open_[q] == 0) continue;
      each(q, [&](track t) {
        auto const bound = static_cast<std::uint32_t>(then.length[t.index] + drift_[q]);
        auto const held = static_cast<std::uint32_t>(then.held(t) + drift_[q]);
        std::uint32_t& empty = words_of(t)[track_word::empty];
        std::uint32_t const least = std::min(length_[t.index] - empty, held);
        length_[t.index] = std::min(length_[t.index], bound);
        empty = length_[t.index] - least;
        if (since_[q] != sequences::effect::counted) return;
        findings_[t.index] = then.warnings[t.index];
        for (std::uint32_t w : {track_word::padded_from, track_word::guard_report})
          words_of(t)[w] = then.word(t, w);
      });
      if (since_[q] != sequences::effect::counted) continue;
      for (std::uint32_t w : {sequence_word::rounds, sequence_word::compressed_at})
        words_of(q)[w] = then.sequence_state(q, w);
      known_[q] = 1;
    }
  }

private:
  std::uint32_t* words_of(track t) { return track_words_.data() + std::size_t{t.index} * track_word::count; }
  std::uint32_t* words_of(std::uint32_t sequence) {
    return sequence_words_.data() + std::size_t{sequence} * sequence_word::count;
  }
  void note(std::uint32_t sequence, sequences::effect what) {
    since_[sequence] = std::max(since_[sequence], what);
  }
  template <class F> void each(std::uint32_t sequence, F f) const {
    for (std::uint32_t layer = 0; layer < extent_.layers; ++layer) {
      for (std::uint32_t head = 0; head < extent_.kv_heads; ++head) {
        f(make_track(extent_, layer, sequence, head));
      }
    }
  }

  shape extent_{};
  std::vector<std::uint32_t> length_, findings_, track_words_;
  std::vector<std::uint32_t> seen_, pending_, frozen_, id_, is_open_, sequence_words_;
  std::vector<std::uint8_t> known_;
  /// Entries appended to every track since a report was requested, minus the entries dropped.
  std::vector<std::int64_t> drift_;
  std::vector<sequences::effect> since_;  ///< what happened to a sequence since a report was requested
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
