// SPDX-License-Identifier: Apache-2.0
// Selection by brackets. A sample tells roughly where the k-th key lies. One pass collects the keys in that
// bracket. The same is done with the collected keys. The result is exact: counts show when a bracket misses.
#pragma once

#include <kvmeld/backend/host/tuned/host_kernels.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The k-th highest key; how many keys equal to it are among the k highest; how many keys equal it in all.
struct key_threshold {
  std::uint32_t key, ties, equal;
  bool found;
};

/// Selections with the working memory of one worker.
class key_selection {
public:
  static constexpr std::uint32_t room = 16384;
  static constexpr std::uint32_t max_samples = 2048;
  static constexpr std::size_t bytes = (2 * room + room / 2 + max_samples) * sizeof(std::uint32_t);

  key_selection(host_kernels const& kernels, void* memory)
      : kernels_(kernels),
        keys_(static_cast<std::uint32_t*>(memory)),
        at_(keys_ + room),
        few_(at_ + room),
        samples_(few_ + room / 2) {}

  std::uint32_t* list() const { return keys_; }

  /// Finds the k-th highest of n keys; the result has key 0 where fewer than k keys are above 0. `key(i)`
  /// gives key i. `collect(low, high, out, room)` passes over all keys and writes those in [low, high] to
  /// `out`, as far as `room` allows. Not found: the sample misled twice.
  template <class Key, class Collect>
  key_threshold find(std::uint32_t n, std::uint32_t k, Key key, Collect collect) const {
    if (n <= enough) {
      key_counts const c = collect(1u, 0xffffffffu, keys_, room);
      return c.inside < k ? key_threshold{0, 0, 0, true} : find_kept(c.inside, k);
    }
    bracket b = sampled(n < 16 * room ? 512 : max_samples, n, k, key);
    for (int attempt = 0; attempt < 2; ++attempt) {
      key_counts const c = collect(b.low, b.high, keys_, room);
      if (!encloses(c, k)) return {};
      std::uint32_t const wanted = k - c.above;
      if (b.low == b.high) return {b.low, wanted, c.inside, true};
      if (c.inside <= enough) return find_kept(c.inside, wanted);
      std::uint64_t const share =
          std::uint64_t{wanted} * enough / c.inside;  // the kept keys serve as a sample
      b = sampled(512, enough, max_of(1u, static_cast<std::uint32_t>(share)),
                  [&](std::uint32_t i) { return keys_[i]; });
    }
    return {};
  }

  /// out[i] = best for the k highest of n scores, and rest for the others. 1 <= k <= n; ties go to the lower
  /// index. Makes one pass over the scores. Beyond some 180,000 scores, or where they are unevenly spread, it
  /// makes two more passes each time that it narrows the bracket. Returns false and leaves `out` undefined
  /// where NaN is among the best or the sample misled.
  bool partition(float const* scores, std::uint32_t n, std::uint32_t k, std::uint8_t best, std::uint8_t rest,
                 std::uint8_t* out) const {
    auto const key = [&](std::uint32_t i) { return order_key(scores[i]); };
    auto const pass = [&](bracket b) {
      return kernels_.partition_scores(scores, n, b.low, b.high, best, rest, out, keys_, at_, room);
    };
    bracket b{1u, 0xffffffffu};
    if (n > enough) b = sampled(n < 2 * room ? 512 : n < 6 * room ? 1024 : max_samples, n, k, key);
    key_counts c = pass(b);
    if (!encloses(c, k)) return false;
    while (c.inside > enough && b.low != b.high) {
      b = narrowed(scores, n, k - c.above, b, out);
      c = pass(b);
      if (!encloses(c, k)) return false;
    }
    std::uint32_t ties = k - c.above;  // still to be taken
    if (b.low == b.high) {
      for (std::uint32_t i = 0; ties != 0 && i < n; ++i) {
        if (key(i) != b.low) continue;
        out[i] = best;
        --ties;
      }
      return true;
    }
    key_threshold const t = find_kept(c.inside, ties);
    ties = t.ties;
    for (std::uint32_t j = 0; j < c.inside; ++j) {
      bool const tied = keys_[j] == t.key && ties != 0;
      if (tied) --ties;
      out[at_[j]] = keys_[j] > t.key || tied ? best : rest;
    }
    return true;
  }

private:
  static constexpr std::uint32_t enough = room - 64;  ///< vectors may write beyond what they keep
  struct bracket {
    std::uint32_t low, high;
  };
  static bool encloses(key_counts c, std::uint32_t k) { return c.above < k && k <= c.above + c.inside; }

  /// Two keys that the k-th of n most likely lies between. In the sample they are eight standard deviations
  /// of the k-th's rank apart.
  template <class Key> bracket sampled(std::uint32_t count, std::uint32_t n, std::uint32_t k, Key key) const {
    std::uint64_t const step = (std::uint64_t{n} << 32) / count;
    for (std::uint32_t i = 0; i < count; ++i) samples_[i] = key(static_cast<std::uint32_t>(i * step >> 32));
    std::uint32_t const rank = static_cast<std::uint32_t>(std::uint64_t{k} * count / n);  // from the highest
    double const variance = static_cast<double>(rank) * (count - rank) / count;
    std::uint32_t const margin = 4 + static_cast<std::uint32_t>(4.0 * std::sqrt(variance));
    std::uint32_t const high = rank > margin ? kernels_.kth_key(samples_, count, rank - margin) : 0xffffffffu;
    std::uint32_t const low = rank + margin <= count ? kernels_.kth_key(samples_, count, rank + margin) : 1u;
    return {max_of(low, 1u), max_of(high, 1u)};
  }

  /// The part of the bracket, a 128th of it or less, in which the k-th highest of its scores lies.
  bracket narrowed(float const* scores, std::uint32_t n, std::uint32_t k, bracket b,
                   std::uint8_t* out) const {
    std::uint32_t* const count = samples_;
    for (std::uint32_t part = 0; part < 256; ++part) count[part] = 0;
    int shift = 0;
    while (((b.high - b.low) >> shift) > 255) ++shift;
    for (std::uint32_t i = 0; i < n; i += enough) {
      key_counts const c = kernels_.partition_scores(scores + i, min_of(enough, n - i), b.low, b.high, 0, 0,
                                                     out + i, keys_, at_, room);
      for (std::uint32_t j = 0; j < c.inside; ++j) ++count[(keys_[j] - b.low) >> shift];
    }
    std::uint32_t part = 255;
    for (; part > 0 && count[part] < k; --part) k -= count[part];
    std::uint32_t const low = b.low + (part << shift);
    return {low, low + min_of(b.high - low, (1u << shift) - 1)};
  }

  /// Finds the k-th of the first n kept keys, and leaves them as they are.
  key_threshold find_kept(std::uint32_t n, std::uint32_t k) const {
    std::uint32_t const* keys = keys_;
    while (n > max_samples) {
      bracket const b = sampled(512, n, k, [&](std::uint32_t i) { return keys[i]; });
      key_counts const c = kernels_.collect_keys(keys, n, b.low, b.high, samples_, 0);
      if (!encloses(c, k) || 2 * c.inside > n) break;
      k -= c.above;
      n = kernels_.collect_keys(keys, n, b.low, b.high, few_, room / 2).inside;
      keys = few_;
    }
    std::uint32_t const key = kernels_.kth_key(keys, n, k);
    key_counts const c = kernels_.collect_keys(keys, n, key, key, samples_, 0);
    return {key, k - c.above, c.inside, true};
  }

  host_kernels const& kernels_;
  std::uint32_t *keys_, *at_;  ///< keys inside a bracket; their indices
  std::uint32_t* few_;         ///< fewer keys, of a narrower bracket
  std::uint32_t* samples_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
