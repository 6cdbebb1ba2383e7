// What a host knows of a ledger that it may not look into.
#pragma once

#include <kvmeld/cache/shift.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The ledger's words of sequences and tracks in host memory, kept up by what each call does to them. Tokens seen and
/// pending, frozen beginnings and what is open follow from the calls alone. Lengths are bounds, often the numbers
/// themselves, and empty slots are at least so many; `compressed_at` is where a compression may have changed something;
/// findings and rounds are those of the last report.
class known_state {
public:
  known_state() = default;
  explicit known_state(shape const& s)
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
        since_(s.sequences, since::nothing) {}

  /// `l` with the arrays that the host may read; those per entry and per member are null. Valid until this moves.
  ledger_ref view(ledger_ref l) {
    l.length = length_.data();
    l.findings = findings_.data();
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
    return l;
  }

  /// Bound on the length of a track.
  std::uint32_t at(track t) const { return length_[t.index]; }
  /// Bound on the entries it holds, empty slots aside.
  std::uint32_t held(track t) const {
    return length_[t.index] - track_words_[std::size_t{t.index} * track_word::count + track_word::empty];
  }
  /// True where the bounds of a sequence are its lengths.
  bool known(std::uint32_t sequence) const { return known_[sequence] != 0; }
  /// A compression begins by taking empty slots out: bounds are then on the entries held, until `pad`.
  void drop_padding(std::uint32_t sequence) {
    each(sequence, [&](track t) {
      length_[t.index] -= words_of(t)[track_word::empty];
      words_of(t)[track_word::empty] = words_of(t)[track_word::padded_from] = 0;
    });
  }
  /// All tracks are filled up to the longest bound. `sure`: bounds are the entries held; else as few as the frozen ones
  /// may lie before the first empty slot.
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
  /// Bound on the length of the longest track.
  std::uint32_t longest(std::uint32_t sequence) const {
    std::uint32_t most = 0;
    each(sequence, [&](track t) { most = std::max(most, length_[t.index]); });
    return most;
  }
  void lower(track t, std::uint32_t n) { length_[t.index] = n; }
  /// Lengths of a sequence follow from data from now on.
  void lose(std::uint32_t sequence) {
    known_[sequence] = 0;
    note(sequence, since::shrunk);
  }
  /// A compression may change the entries of all tokens seen so far.
  void compressed(std::uint32_t sequence) {
    note(sequence, since::shrunk);
    words_of(sequence)[sequence_word::compressed_at] = seen_[sequence];
  }

  void open(std::uint32_t sequence, std::uint32_t n, std::uint32_t frozen, std::uint32_t id) {
    each(sequence, [&](track t) {
      length_[t.index] = n;
      findings_[t.index] = 0;
      std::fill_n(words_of(t), std::uint32_t{track_word::count}, 0u);
    });
    seen_[sequence] = n;
    pending_[sequence] = 0;
    frozen_[sequence] = frozen;
    id_[sequence] = id;
    is_open_[sequence] = known_[sequence] = 1;
    note(sequence, since::replaced);
    std::fill_n(words_of(sequence), std::uint32_t{sequence_word::count}, 0u);
  }
  /// As open, of pages with up to `n` entries; padded or not, the host has bounds.
  void adopt(std::uint32_t sequence, std::uint32_t n, std::uint32_t tokens, std::uint32_t id) {
    open(sequence, n, 0, id);
    seen_[sequence] = words_of(sequence)[sequence_word::compressed_at] = tokens;
    known_[sequence] = 0;
    pad(sequence, false);
  }
  void close(std::uint32_t sequence) { is_open_[sequence] = 0; }
  void freeze(std::uint32_t sequence, std::uint32_t n) { frozen_[sequence] = n; }
  void append(std::uint32_t sequence, std::uint32_t n) {
    each(sequence, [&](track t) { length_[t.index] += n; });
    pending_[sequence] += n;
    drift_[sequence] += n;
  }
  void commit(std::uint32_t sequence, std::uint32_t accepted) {
    shorten(sequence, pending_[sequence] - accepted);
    seen_[sequence] += accepted;
    pending_[sequence] = 0;
  }
  void truncate(std::uint32_t sequence, std::uint32_t tokens) {
    shorten(sequence, seen_[sequence] - tokens);
    seen_[sequence] = tokens;
  }
  void shift(std::uint32_t sequence, position_t offset, position_t first) {
    seen_[sequence] = shifted_tokens(seen_[sequence], offset, first);
    std::uint32_t& merged = words_of(sequence)[sequence_word::compressed_at];
    merged = shifted_tokens(merged, offset, first);
    note(sequence, since::shrunk);  // a report from before has other numbers
  }
  void observe(std::uint32_t sequence, std::uint32_t layer, std::uint32_t rows) {
    each(sequence, [&](track t) {
      if (t.layer == layer) words_of(t)[track_word::observed_rows] += rows;
    });
  }
  void fork(std::uint32_t from, std::uint32_t into, std::uint32_t frozen, std::uint32_t id) {
    each(into, [&](track t) {
      track const other = make_track(extent_, t.layer, from, t.kv_head);
      length_[t.index] = length_[other.index];
      findings_[t.index] = findings_[other.index];
      std::copy_n(words_of(other), std::uint32_t{track_word::count}, words_of(t));
    });
    seen_[into] = seen_[from];
    pending_[into] = pending_[from];
    std::copy_n(words_of(from), std::uint32_t{sequence_word::count}, words_of(into));
    frozen_[into] = frozen;
    frozen_[from] = std::max(frozen_[from], frozen);
    id_[into] = id;
    is_open_[into] = 1;
    known_[into] = known_[from];
    note(into, since::replaced);
  }
  void set_rounds(std::uint32_t sequence, std::uint32_t n) {
    words_of(sequence)[sequence_word::rounds] = n;
    note(sequence, since::shrunk);
  }

  /// Takes over what the ledger itself says about a sequence; `l` is readable.
  void read(ledger_ref const& l, std::uint32_t sequence) {
    each(sequence, [&](track t) {
      length_[t.index] = l.length[t.index];
      findings_[t.index] = l.findings[t.index];
      std::copy_n(&l.word(t, 0), std::uint32_t{track_word::count}, words_of(t));
    });
    seen_[sequence] = l.seen[sequence];
    pending_[sequence] = l.pending[sequence];
    frozen_[sequence] = l.frozen[sequence];
    id_[sequence] = l.id[sequence];
    is_open_[sequence] = l.is_open[sequence];
    std::copy_n(&l.sequence_state(sequence, 0), std::uint32_t{sequence_word::count}, words_of(sequence));
    known_[sequence] = 1;
    note(sequence, since::replaced);
  }

  /// A report of this moment is on its way: what happens from here on is taken into account when it arrives.
  void expect_report() {
    std::fill(drift_.begin(), drift_.end(), 0);
    std::fill(since_.begin(), since_.end(), since::nothing);
  }
  /// The words of the moment of expect_report, and what was appended and dropped since, bound the lengths. Of sequences
  /// that nothing compressed since, they tell lengths, findings and rounds; of those opened or read since, nothing.
  void take_report(ledger_ref const& then) {
    for (std::uint32_t q = 0; q < extent_.sequences; ++q) {
      if (since_[q] == since::replaced || is_open_[q] == 0) continue;
      each(q, [&](track t) {
        auto const bound = static_cast<std::uint32_t>(then.length[t.index] + drift_[q]);
        auto const held = static_cast<std::uint32_t>(then.held(t) + drift_[q]);
        std::uint32_t& empty = words_of(t)[track_word::empty];
        std::uint32_t const least = std::min(length_[t.index] - empty, held);
        length_[t.index] = std::min(length_[t.index], bound);
        empty = length_[t.index] - least;
        if (since_[q] != since::nothing) return;
        findings_[t.index] = then.findings[t.index];
        for (std::uint32_t w : {track_word::padded_from, track_word::guarded_error})
          words_of(t)[w] = then.word(t, w);
      });
      if (since_[q] != since::nothing) continue;
      for (std::uint32_t w : {sequence_word::rounds, sequence_word::compressed_at})
        words_of(q)[w] = then.sequence_state(q, w);
      known_[q] = 1;
    }
  }

private:
  /// What became of a sequence since a report was asked for, but for entries appended and dropped.
  enum class since : std::uint8_t { nothing, shrunk, replaced };

  std::uint32_t* words_of(track t) { return track_words_.data() + std::size_t{t.index} * track_word::count; }
  std::uint32_t* words_of(std::uint32_t sequence) {
    return sequence_words_.data() + std::size_t{sequence} * sequence_word::count;
  }
  void note(std::uint32_t sequence, since what) { since_[sequence] = std::max(since_[sequence], what); }
  void shorten(std::uint32_t sequence, std::uint32_t n) {
    drift_[sequence] -= n;
    each(sequence, [&](track t) { length_[t.index] -= n; });
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
  /// Entries appended to every track since a report was asked for, less those dropped.
  std::vector<std::int64_t> drift_;
  std::vector<since> since_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
