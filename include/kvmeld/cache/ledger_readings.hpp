// SPDX-License-Identifier: Apache-2.0
// What a cache says about its sequences: lengths, tokens, warnings, rounds.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The part of merged_cache that does not depend on types. Every argument is checked: a layer, sequence or
/// head out of range throws kvmeld::invalid_argument, or returns 0 if exceptions are off. For a closed
/// sequence the functions return what it held last. They enqueue and allocate nothing. If launches are
/// immediate (the host), the numbers are the ledger's own. Otherwise they are what the host knows without
/// waiting (host_mirror): lengths are bounds, and warnings and rounds are those of the last sync_lengths or
/// polled report.
class ledger_readings {
public:
  /// Whether construction succeeded; needed if exceptions are off. Not ok if the cache was moved from. Does
  /// not wait.
  status const& valid() const {
    static status const moved(refusal("merged_cache", "cache", "moved from", "the one that it was moved to"));
    return moved_from_ ? moved : construction_;
  }

  /// Whether a sequence is open. Does not wait.
  bool is_open(std::uint32_t sequence) const {
    return within("is_open", sequence) && facts_.is_open[sequence] != 0;
  }
  /// Slots in use of one track: entries, pending ones included, and empty slots (options.padded). Does not
  /// wait.
  std::uint32_t length(std::uint32_t layer, std::uint32_t sequence, std::uint32_t kv_head) const {
    if (!within("length", sequence, layer, kv_head)) return 0;
    return facts_.length[make_track(ledger_.extent, layer, sequence, kv_head).index];
  }
  /// Length of the longest track of a sequence. Does not wait. Takes O(tracks of the sequence) work.
  std::uint32_t longest(std::uint32_t sequence) const {
    return within("longest", sequence) ? facts_.longest(sequence) : 0;
  }
  /// Upper bound on the length of the longest track, for schedulers. The host knows it without reading device
  /// data: the call does not wait. It is the length itself if every compression since the sequence was
  /// opened, or since its lengths were reported, was exact (merged_cache::exact). After adopt it is a bound
  /// until a report.
  std::uint32_t length_bound(std::uint32_t sequence) const {
    return within("length_bound", sequence) ? facts_.longest(sequence) : 0;
  }
  /// Tokens seen and pending of a sequence: the position of the next token. After commit with a device_list
  /// an upper bound, until sync_lengths or a report. Does not wait.
  std::uint32_t tokens(std::uint32_t sequence) const {
    return within("tokens", sequence) ? facts_.seen[sequence] + facts_.pending[sequence] : 0;
  }
  /// Number of entries in all tracks of a sequence; empty slots do not count. Does not wait.
  std::size_t entries(std::uint32_t sequence) const {
    std::size_t sum = 0;
    if (within("entries", sequence)) for_tracks(sequence, [&](track t) { sum += facts_.held(t); });
    return sum;
  }
  /// Bits of `warning` that the last compression left for a sequence. Does not wait.
  std::uint32_t warnings(std::uint32_t sequence) const {
    std::uint32_t bits = 0;
    if (within("warnings", sequence))
      for_tracks(sequence, [&](track t) { bits |= facts_.warnings[t.index]; });
    return bits;
  }
  /// True if length_bound(sequence) has reached the trigger. Does not wait.
  bool due(std::uint32_t sequence, trigger t) const { return t.due(length_bound(sequence)); }
  /// Rounds of all compressions of a sequence, whatever its policy. A compression adds as many as the track
  /// with the most of them took: rounds in which the identifier merged or dropped entries. A policy of one
  /// round adds 1; a compression that finds every track within its budget adds 0. Chelsea's schedule reads
  /// the sum as its step (Chelsea section 4: i in r_i). `set_rounds` sets it. Does not wait.
  std::uint32_t rounds(std::uint32_t sequence) const {
    return within("rounds", sequence) ? facts_.sequence_state(sequence, sequence_word::rounds) : 0;
  }
  /// Fewest tokens that `truncate` can go back to, apart from frozen entries: earlier tokens have been
  /// compressed. It is the number of tokens seen at the last compression that changed a track, counted by the
  /// positions of now: `shift` and `renumber` move it, `adopt` sets it to its tokens. 0: nothing was
  /// compressed. Does not wait.
  std::uint32_t compressed_at(std::uint32_t sequence) const {
    return within("compressed_at", sequence) ? facts_.sequence_state(sequence, sequence_word::compressed_at)
                                             : 0;
  }

  /// The ledger in executor memory, for phases. Its arrays are null if construction was refused or the cache
  /// was moved from. Does not wait: on devices launches may still write it.
  ledger_ref const& ledger() const { return ledger_; }

protected:
  template <class F> void for_tracks(std::uint32_t sequence, F f) const {
    for (std::uint32_t layer = 0; layer < ledger_.extent.layers; ++layer) {
      for (std::uint32_t head = 0; head < ledger_.extent.kv_heads; ++head) {
        f(make_track(ledger_.extent, layer, sequence, head));
      }
    }
  }
  bool within(char const* call, std::uint32_t sequence, std::uint32_t layer = 0,
              std::uint32_t head = 0) const {
    shape const& s = ledger_.extent;
    if (!valid().ok()) return raise(valid().text()).ok();
    struct {
      char const* name;
      std::uint32_t value, count;
    } const arguments[] = {
        {"layer", layer, s.layers}, {"sequence", sequence, s.sequences}, {"head", head, s.kv_heads}};
    for (auto const& a : arguments) {
      if (a.value >= a.count) {
        return raise(refusal(call, a.name, a.value, "0 to ", a.count - 1)).ok();
      }
    }
    return true;
  }

  /// Calls `problem` only if the cache is valid: otherwise there is no ledger to read.
  template <class Problem> status refuse(Problem problem) const {
    return raise(valid().ok() ? problem() : valid().text());
  }

  status construction_;
  bool moved_from_ = false;
  ledger_ref ledger_;  ///< for phases
  ledger_ref facts_;   ///< for the host: the same if the host can read it, else the words of a host_mirror
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
