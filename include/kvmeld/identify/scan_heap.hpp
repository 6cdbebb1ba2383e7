// The thresholds that several bisections, one after the other, may ask for.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// One pass over the rows counts the sets for up to this many thresholds: all that four bisections may ask
/// for.
constexpr std::uint32_t scan_thresholds = 15;
constexpr std::uint32_t scan_bisections = 4;

/// scan_lowest is below every cosine: all entries are one set, except at gaps. scan_highest is above every
/// cosine, rounding included: every entry is a set of its own.
constexpr float scan_lowest = -1.0625f, scan_highest = 1.0625f;

/// A heap of intervals. Node k splits its interval into those of nodes 2k (lower half) and 2k + 1.
struct scan_heap {
  float lows[scan_thresholds + 1], highs[scan_thresholds + 1], middle[scan_thresholds + 1];
  std::uint32_t steps;

  KVMELD_HD scan_heap(std::uint32_t bisections, float low, float high) : steps(bisections) {
    lows[1] = low;
    highs[1] = high;
    for (std::uint32_t k = 1; k <= nodes(); ++k) {
      middle[k] = 0.5f * (lows[k] + highs[k]);
      for (std::uint32_t child = 2 * k; child <= 2 * k + 1 && child <= nodes(); ++child) {
        lows[child] = child % 2 == 0 ? lows[k] : middle[k];
        highs[child] = child % 2 == 0 ? middle[k] : highs[k];
      }
    }
  }
  KVMELD_HD std::uint32_t nodes() const { return (1u << steps) - 1; }

  /// Sets low and high to the interval that bisection ends with. enough(k) says whether the upper end may
  /// come down to the middle of node k.
  template <class Enough> KVMELD_HD void descend(Enough enough, float& low, float& high) const {
    for (std::uint32_t k = 1; k <= nodes();) {
      bool const yes = enough(k);
      (yes ? high : low) = middle[k];
      k = 2 * k + (yes ? 0 : 1);
    }
  }
};

}  // namespace identify
}  // namespace KVMELD_ABI
}  // namespace kvmeld
