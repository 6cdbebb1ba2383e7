// SPDX-License-Identifier: Apache-2.0
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
/// is repeated on it. Numbers of pending and frozen entries and open sequences are exact. Tokens seen are
/// exact unless counts lay on the device. Lengths are upper bounds, often exact. Numbers of empty slots are
/// lower bounds. `compressed_at` is the number of tokens seen when a compression last may have changed
/// something, moved by shifts. Warnings and rounds are those of the last report.
class host_mirror {
public:
  host_mirror() = default;
  explicit host_mirror(shape const& s) : extent_(s), tracks_(s), sequences_(s) {}

  /// Returns `l` with the arrays of this mirror in place of its own; arrays per entry and per member, and
  /// the score's table, are null. Valid until the mirror is moved, or until take_back.
  ledger_ref view(ledger_ref l) {
    l.length = tracks_.length.data();
    l.warnings = tracks_.warnings.data();
    l.track_words = tracks_.words.data();
    l.seen = sequences_.seen.data();
    l.pending = sequences_.pending.data();
    l.frozen = sequences_.frozen.data();
    l.id = sequences_.id.data();
    l.is_open = sequences_.is_open.data();
    l.sequence_words = sequences_.words.data();
    forget_entries(l);
    return l;
  }

  // ---- taking calls back ------------------------------------------------------------------------

  /// Stores what take_back returns to, until keep_nothing. Numbers of sequences are copied now. Numbers of
  /// tracks, which are many, are copied when a call first does more than to lengthen or shorten all tracks of
  /// a sequence alike. Only this function allocates.
  void keep() {
    if (tracks_before_.length.size() != tracks_.length.size()) tracks_before_ = tracks_;
    sequences_before_ = sequences_;
    added_.assign(extent_.sequences, 0);
    added_before_ = added_;
    keeps_ = true;
    keeps_tracks_ = false;
  }
  void keep_nothing() { keeps_ = false; }
  /// Returns to the numbers of the last `keep`.
  void take_back() {
    if (keeps_tracks_) {
      tracks_ = tracks_before_;
    } else {
      added_before_ = added_;
    }
    for (std::uint32_t q = 0; q < extent_.sequences; ++q) lengthen(q, -added_before_[q]);
    sequences_ = sequences_before_;
    keeps_ = false;
  }

  // ---- lengths ----------------------------------------------------------------------------------

  /// True if the bounds of a sequence are its lengths.
  bool known(std::uint32_t sequence) const { return sequences_.known[sequence] != 0; }
  /// True if the number of tokens seen is exact, not an upper bound.
  bool tokens_known(std::uint32_t sequence) const { return sequences_.tokens_known[sequence] != 0; }
  /// Repeats the first step of a compression, which takes empty slots out. Until `pad`, lengths bound the
  /// entries held.
  void drop_padding(std::uint32_t sequence) {
    keep_tracks();
    each(sequence, [&](track t) {
      tracks_.length[t.index] -= words_of(t)[track_word::empty];
      words_of(t)[track_word::empty] = words_of(t)[track_word::padded_from] = 0;
    });
  }
  /// Fills all tracks with empty slots up to the longest bound. `sure`: the bounds are exact, so the first
  /// empty slot lies behind them. Otherwise it may lie as early as right behind the frozen entries.
  void pad(std::uint32_t sequence, bool sure) {
    keep_tracks();
    std::uint32_t const most = words().longest(sequence);
    each(sequence, [&](track t) {
      std::uint32_t const bound = tracks_.length[t.index];
      words_of(t)[track_word::empty] = most - bound;
      words_of(t)[track_word::padded_from] = !sure ? 1 + std::min(bound, sequences_.frozen[sequence])
                                             : bound == most ? 0
                                                             : 1 + bound;
      tracks_.length[t.index] = most;
    });
  }
  void lower(track t, std::uint32_t n) {
    if (tracks_.length[t.index] == n) return;
    keep_tracks();
    tracks_.length[t.index] = n;
  }
  /// From now on the lengths of a sequence depend on data: the bounds may be above them.
  void mark_inexact(std::uint32_t sequence) {
    sequences_.known[sequence] = 0;
    note(sequence, sequences::effect::changed);
  }
  /// From now on the tokens seen, and the lengths, are upper bounds: the host does not know what was
  /// accepted.
  void mark_tokens_unknown(std::uint32_t sequence) {
    sequences_.tokens_known[sequence] = 0;
    mark_inexact(sequence);
  }
  /// Notes that a compression may have changed the entries of all tokens seen so far.
  void compressed(std::uint32_t sequence) {
    note(sequence, sequences::effect::changed);
    words_of(sequence)[sequence_word::compressed_at] = sequences_.seen[sequence];
  }
  /// Notes that `sure` entries went from every track, from among positions below `gap_end`. `all`: no others
  /// went. Otherwise the lengths are bounds from now on. Empty slots are out.
  void dropped(std::uint32_t sequence, std::uint32_t sure, bool all, std::uint32_t gap_end) {
    keep_tracks();
    each(sequence, [&](track t) {
      std::uint32_t& length = tracks_.length[t.index];
      length -= std::min(length, sure);
    });
    std::uint32_t& gap = words_of(sequence)[sequence_word::gap_end];
    gap = std::max(gap, gap_end);
    note(sequence, sequences::effect::changed);
    if (!all) mark_inexact(sequence);
  }

  // ---- operations -------------------------------------------------------------------------------

  /// Repeats what a launch of the operation does to the numbers of a sequence and its tracks.
  template <class Operation> void apply(Operation const& operation, std::uint32_t sequence, std::uint32_t n) {
    ledger_ref const l = words();
    track const first = make_track(extent_, 0, sequence, 0);
    std::uint32_t& length = tracks_.length[first.index];
    std::uint32_t const before = length;
    if constexpr (!Operation::over_tracks) {
      // tracks stay as they are
    } else if constexpr (Operation::leaves == sequences::effect::counted) {
      operation.on_track(l, first, n);  // the other tracks gain or lose as many entries
      std::int64_t const change = std::int64_t{length} - std::int64_t{before};
      length = before;
      lengthen(sequence, change);
      if (keeps_) added_[sequence] += change;
    } else {
      keep_tracks();
      each(sequence, [&](track t) { operation.on_track(l, t, n); });
    }
    std::uint32_t const tokens = l.tokens(sequence);
    operation.on_sequence(l, sequence, n);
    sequences_.token_drift[sequence] += std::int64_t{l.tokens(sequence)} - std::int64_t{tokens};
    sequences_.drift[sequence] += std::int64_t{length} - std::int64_t{before};
    note(sequence, Operation::leaves);
    if (Operation::leaves == sequences::effect::begun) count_unlisted(sequence);
  }
  /// For a new sequence: notes whether the bounds of its lengths are exact.
  void set_known(std::uint32_t sequence, bool known) {
    sequences_.known[sequence] = known ? 1 : 0;
    sequences_.tokens_known[sequence] = 1;
  }
  /// For a new sequence `into` that is a copy of `from`.
  void know_alike(std::uint32_t into, std::uint32_t from) {
    sequences_.known[into] = sequences_.known[from];
    sequences_.tokens_known[into] = sequences_.tokens_known[from];
  }
  void observe(std::uint32_t sequence, std::uint32_t layer, std::uint32_t rows) {
    keep_tracks();
    for (std::uint32_t head = 0; head < extent_.kv_heads; ++head)
      count_rows(words_of(make_track(extent_, layer, sequence, head))[track_word::observed_rows], rows);
  }
  /// Notes an observation of sequences that only the device knows, which a graph may repeat at any time. Any
  /// sequence, also one that is opened later, counts as observed from now on.
  void observe_unlisted(std::uint32_t layer) {
    if (sequences_.unlisted[layer] != 0) return;  // all of them count already
    sequences_.unlisted[layer] = 1;
    for (std::uint32_t q = 0; q < extent_.sequences; ++q) observe(q, layer, 1);
  }

  // ---- what is read from the ledger -------------------------------------------------------------

  /// Copies what the ledger `l` says about its sequence `from`, for `sequence`. The host can read `l`.
  void read(ledger_ref const& l, std::uint32_t from, std::uint32_t sequence) {
    keep_tracks();
    each(sequence, [&](track t) {
      track const there = make_track(l.extent, t.layer, from, t.kv_head);
      tracks_.length[t.index] = l.length[there.index];
      tracks_.warnings[t.index] = l.warnings[there.index];
      std::copy_n(&l.word(there, 0), std::uint32_t{track_word::count}, words_of(t));
    });
    sequences_.seen[sequence] = l.seen[from];
    sequences_.pending[sequence] = l.pending[from];
    sequences_.frozen[sequence] = l.frozen[from];
    sequences_.id[sequence] = l.id[from];
    sequences_.is_open[sequence] = l.is_open[from];
    std::copy_n(&l.sequence_state(from, 0), std::uint32_t{sequence_word::count}, words_of(sequence));
    sequences_.known[sequence] = sequences_.tokens_known[sequence] = 1;
    note(sequence, sequences::effect::begun);
    count_unlisted(sequence);
  }

  /// Notes that a report was requested. From here on the mirror counts what take_report has to add to it.
  void expect_report() {
    std::fill(sequences_.drift.begin(), sequences_.drift.end(), 0);
    std::fill(sequences_.token_drift.begin(), sequences_.token_drift.end(), 0);
    std::fill(sequences_.since.begin(), sequences_.since.end(), sequences::effect::counted);
  }
  /// Takes a report with the numbers of the moment of expect_report. Together with the entries appended and
  /// dropped since, they bound the lengths of every sequence. If a sequence was not compressed since, its
  /// lengths, warnings and rounds are then exact. For a sequence opened or read since, the report is ignored.
  void take_report(ledger_ref const& then) {
    keep_tracks();
    for (std::uint32_t q = 0; q < extent_.sequences; ++q) {
      auto const since = sequences_.since[q];
      if (since == sequences::effect::begun || sequences_.is_open[q] == 0) continue;
      std::int64_t const drift = sequences_.drift[q];
      each(q, [&](track t) {
        auto const bound = static_cast<std::uint32_t>(then.length[t.index] + drift);
        auto const held = static_cast<std::uint32_t>(then.held(t) + drift);
        std::uint32_t& empty = words_of(t)[track_word::empty];
        std::uint32_t& length = tracks_.length[t.index];
        std::uint32_t const least = std::min(length - empty, held);
        length = std::min(length, bound);
        empty = length - least;
        if (since != sequences::effect::counted) return;
        tracks_.warnings[t.index] = then.warnings[t.index];
        words_of(t)[track_word::padded_from] = then.word(t, track_word::padded_from);
      });
      if (!tokens_known(q)) {
        auto const tokens = static_cast<std::uint32_t>(then.tokens(q) + sequences_.token_drift[q]);
        sequences_.seen[q] = std::min(sequences_.seen[q], tokens - sequences_.pending[q]);
      }
      if (since != sequences::effect::counted) continue;
      for (std::uint32_t w : {sequence_word::rounds, sequence_word::compressed_at, sequence_word::gap_end})
        words_of(q)[w] = then.sequence_state(q, w);
      sequences_.known[q] = sequences_.tokens_known[q] = 1;
    }
  }

private:
  struct track_numbers {
    std::vector<std::uint32_t> length, warnings, words;
    track_numbers() = default;
    explicit track_numbers(shape const& s)
        : length(s.tracks(), 0),
          warnings(s.tracks(), 0),
          words(std::size_t{s.tracks()} * track_word::count, 0) {}
  };
  struct sequence_numbers {
    std::vector<std::uint32_t> seen, pending, frozen, id, is_open, words;
    std::vector<std::uint8_t> known, tokens_known;
    std::vector<std::uint8_t> unlisted;  ///< [layers] whether observe_unlisted was told of the layer
    std::vector<std::int64_t> drift;  ///< entries appended to every track since a report was requested, minus
                                      ///< the entries dropped
    std::vector<std::int64_t> token_drift;  ///< likewise, tokens seen and pending
    std::vector<sequences::effect> since;   ///< what happened to a sequence since a report was requested
    sequence_numbers() = default;
    explicit sequence_numbers(shape const& s)
        : seen(s.sequences, 0),
          pending(s.sequences, 0),
          frozen(s.sequences, 0),
          id(s.sequences, 0),
          is_open(s.sequences, 0),
          words(std::size_t{s.sequences} * sequence_word::count, 0),
          known(s.sequences, 1),
          tokens_known(s.sequences, 1),
          unlisted(s.layers, 0),
          drift(s.sequences, 0),
          token_drift(s.sequences, 0),
          since(s.sequences, sequences::effect::counted) {}
  };

  std::uint32_t* words_of(track t) { return tracks_.words.data() + std::size_t{t.index} * track_word::count; }
  std::uint32_t* words_of(std::uint32_t sequence) {
    return sequences_.words.data() + std::size_t{sequence} * sequence_word::count;
  }
  void note(std::uint32_t sequence, sequences::effect what) {
    sequences_.since[sequence] = std::max(sequences_.since[sequence], what);
  }
  /// Counts a row of every layer of which observe_unlisted was told.
  void count_unlisted(std::uint32_t sequence) {
    for (std::uint32_t layer = 0; layer < extent_.layers; ++layer) {
      if (sequences_.unlisted[layer] != 0) observe(sequence, layer, 1);
    }
  }
  template <class F> void each(std::uint32_t sequence, F f) const {
    for (std::uint32_t layer = 0; layer < extent_.layers; ++layer) {
      for (std::uint32_t head = 0; head < extent_.kv_heads; ++head) {
        f(make_track(extent_, layer, sequence, head));
      }
    }
  }
  ledger_ref words() {
    ledger_ref l;
    l.extent = extent_;
    return view(l);
  }
  /// Adds to the lengths of all tracks of a sequence. The heads of a layer lie side by side.
  void lengthen(std::uint32_t sequence, std::int64_t by) {
    auto const change = static_cast<std::uint32_t>(by);
    for (std::uint32_t layer = 0; by != 0 && layer < extent_.layers; ++layer) {
      std::uint32_t* const row = tracks_.length.data() + make_track(extent_, layer, sequence, 0).index;
      for (std::uint32_t head = 0; head < extent_.kv_heads; ++head) row[head] += change;
    }
  }
  /// Called before numbers of tracks change otherwise than by `lengthen`.
  void keep_tracks() {
    if (!keeps_ || keeps_tracks_) return;
    tracks_before_ = tracks_;
    added_before_ = added_;
    keeps_tracks_ = true;
  }

  shape extent_{};
  track_numbers tracks_, tracks_before_;
  sequence_numbers sequences_, sequences_before_;
  /// What was added to the lengths of each sequence's tracks since `keep`, and what of that tracks_before_
  /// has.
  std::vector<std::int64_t> added_, added_before_;
  bool keeps_ = false, keeps_tracks_ = false;
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
