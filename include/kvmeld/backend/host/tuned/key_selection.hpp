// select_k by brackets: a sample says about where the k-th key lies, one pass collects what lies there, and the same is
// done with what was collected. Exact: a bracket that misses is noticed by its counts.
#pragma once

#include <kvmeld/backend/host/tuned/host_kernels.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The k-th highest key, how many of those equal to it are among the k highest, and how many there are in all.
struct key_threshold {
  std::uint32_t key, ties, equal;
  bool found;
};

/// Working memory of a selection, one per worker.
class key_selection {
public:
  static constexpr std::uint32_t room = 16384;
  static constexpr std::uint32_t most_samples = 2048;
  static constexpr std::size_t bytes = (room + most_samples) * sizeof(std::uint32_t);

  key_selection(host_kernels const& kernels, void* memory)
      : kernels_(kernels), keys_(static_cast<std::uint32_t*>(memory)), samples_(keys_ + room) {}

  std::uint32_t* list() const { return keys_; }

  /// Key 0 where fewer than k of the n keys are above it. `key(i)` gives one; `collect(low, high)` passes over all of them and
  /// leaves the first `room` in [low, high] in the array that it is given. Not found: the sample misled twice.
  template <class Key, class Collect>
  key_threshold find(std::uint32_t n, std::uint32_t k, Key key, Collect collect) const {
    if (n <= enough) {
      key_counts const c = collect(1u, 0xffffffffu, keys_, room);
      return c.inside < k ? key_threshold{0, 0, 0, true} : find_kept(c.inside, k);
    }
    bracket b = sampled(n < 16 * room ? 512 : most_samples, n, k, [&](std::uint32_t i) { return key(i); });
    for (int attempt = 0; attempt < 2; ++attempt) {
      key_counts const c = collect(b.low, b.high, keys_, room);
      if (c.above >= k || c.above + c.inside < k) return {};
      std::uint32_t const wanted = k - c.above;
      if (b.low == b.high) return {b.low, wanted, c.inside, true};
      if (c.inside <= enough) return find_kept(c.inside, wanted);
      std::uint64_t const share =
          std::uint64_t{wanted} * enough / c.inside;  // those kept are a sample themselves
      b = sampled(512, enough, max_of(1u, static_cast<std::uint32_t>(share)),
                  [&](std::uint32_t i) { return keys_[i]; });
    }
    return {};
  }

private:
  static constexpr std::uint32_t enough = room - 64;  ///< vectors may write beyond what they keep
  struct bracket {
    std::uint32_t low, high;
  };

  /// Two keys that the k-th of n most likely lies between: four standard deviations of its rank in a sample apart.
  template <class Key> bracket sampled(std::uint32_t count, std::uint32_t n, std::uint32_t k, Key key) const {
    for (std::uint32_t i = 0; i < count; ++i) {
      samples_[i] = key(static_cast<std::uint32_t>(std::uint64_t{i} * n / count));
    }
    std::uint32_t const margin = count == 512 ? 45 : 90;
    std::uint32_t const rank = static_cast<std::uint32_t>(std::uint64_t{k} * count / n);  // from the highest
    std::uint32_t const high = rank > margin ? kernels_.kth_key(samples_, count, rank - margin) : 0xffffffffu;
    std::uint32_t const low = rank + margin <= count ? kernels_.kth_key(samples_, count, rank + margin) : 1u;
    return {max_of(low, 1u), max_of(high, 1u)};
  }

  /// The k-th of the first n keys kept.
  key_threshold find_kept(std::uint32_t n, std::uint32_t k) const {
    while (n > most_samples) {
      bracket const b = sampled(512, n, k, [&](std::uint32_t i) { return keys_[i]; });
      key_counts const c = kernels_.collect_keys(keys_, n, b.low, b.high, samples_, 0);
      if (c.above >= k || c.above + c.inside < k || 2 * c.inside > n) break;
      k -= c.above;
      n = kernels_.collect_keys(keys_, n, b.low, b.high, keys_, room).inside;
    }
    std::uint32_t const key = kernels_.kth_key(keys_, n, k);
    key_counts const c = kernels_.collect_keys(keys_, n, key, key, samples_, 0);
    return {key, k - c.above, c.inside, true};
  }

  host_kernels const& kernels_;
  std::uint32_t* keys_;
  std::uint32_t* samples_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
