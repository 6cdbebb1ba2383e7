// What a cache says about its sequences: lengths, tokens, warnings, rounds.
#pragma once

#include <kvmeld/core/bits.hpp>
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
/// head out of range is refused by kvmeld::invalid_argument, or where exceptions are off answered with 0. A
/// closed sequence tells what it held last. On executors whose launches are immediate (the host) these are
/// the ledger's own numbers. On others they are what the host knows without waiting (host_mirror): lengths
/// are bounds, warnings and rounds those of the last sync_lengths or polled report.
class ledger_readings {
public:
  /// Outcome of construction; needed where exceptions are off.
  status const& valid() const {
    static status const moved(refusal("merged_cache", "cache", "moved from", "the one that it was moved to"));
    return moved_from_ ? moved : construction_;
  }

  /// Entries of one track, pending ones and empty slots (options.padded) included.
  std::uint32_t length(std::uint32_t layer, std::uint32_t sequence, std::uint32_t kv_head) const {
    if (!within("length", sequence, layer, kv_head)) return 0;
    return facts_.length[make_track(ledger_.extent, layer, sequence, kv_head).index];
  }
  /// Length of the longest track of a sequence.
  std::uint32_t longest(std::uint32_t sequence) const {
    return within("longest", sequence) ? most(sequence) : 0;
  }
  /// Bound on the length of the longest track, known to the host without looking at device data: exact as
  /// long as nothing but exact calls came since the sequence was opened or its lengths were reported. For
  /// schedulers.
  std::uint32_t length_bound(std::uint32_t sequence) const {
    return within("length_bound", sequence) ? most(sequence) : 0;
  }
  /// Tokens the sequence has been given, pending ones included: the position of the next one.
  std::uint32_t tokens(std::uint32_t sequence) const {
    return within("tokens", sequence) ? facts_.seen[sequence] + facts_.pending[sequence] : 0;
  }
  /// Entries held by all tracks of a sequence; empty slots do not count.
  std::size_t entries(std::uint32_t sequence) const {
    std::size_t sum = 0;
    if (within("entries", sequence)) for_tracks(sequence, [&](track t) { sum += facts_.held(t); });
    return sum;
  }
  /// Bits of `warning` that the last compression left for a sequence.
  std::uint32_t warnings(std::uint32_t sequence) const {
    std::uint32_t bits = 0;
    if (within("warnings", sequence))
      for_tracks(sequence, [&](track t) { bits |= facts_.warnings[t.index]; });
    return bits;
  }
  /// Guarded policies: by how much the last compression changed the output of the probe that changed most
  /// (Euclidean norm of one head's output, in the unit of the values). At most epsilon. 0 if nothing merged.
  float guarded_error(std::uint32_t layer, std::uint32_t sequence, std::uint32_t kv_head) const {
    if (!within("guarded_error", sequence, layer, kv_head)) return 0.0f;
    return bits_float(
        facts_.word(make_track(ledger_.extent, layer, sequence, kv_head), track_word::guarded_error));
  }
  /// True when the bound on the sequence's longest track has reached the trigger.
  bool due(std::uint32_t sequence, trigger t) const { return t.due(length_bound(sequence)); }
  /// Chelsea's step counter (Chelsea section 4: i in r_i); `set_rounds` sets it.
  std::uint32_t rounds(std::uint32_t sequence) const {
    return within("rounds", sequence) ? facts_.sequence_state(sequence, sequence_word::rounds) : 0;
  }
  /// Fewest tokens that `truncate` can go back to, frozen beginnings aside: earlier ones have been
  /// compressed.
  std::uint32_t compressed_at(std::uint32_t sequence) const {
    return within("compressed_at", sequence) ? facts_.sequence_state(sequence, sequence_word::compressed_at)
                                             : 0;
  }

  /// As phases see it: in memory of the executor. Null arrays if the cache was refused or moved from.
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

  /// Looks for the problem only where construction succeeded: without it there is no ledger to look at.
  template <class Problem> status refuse(Problem problem) const {
    return raise(valid().ok() ? problem() : valid().text());
  }

  status construction_;
  bool moved_from_ = false;
  ledger_ref ledger_;  ///< for phases
  ledger_ref facts_;   ///< for the host: the same if it may look, else the words of a host_mirror

private:
  std::uint32_t most(std::uint32_t sequence) const {
    std::uint32_t n = 0;
    for_tracks(sequence, [&](track t) { n = max_of(n, facts_.length[t.index]); });
    return n;
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
