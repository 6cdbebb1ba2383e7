// The thresholds that several bisections in turn may ask for.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// Thresholds that one pass over the rows can count the sets of: what four bisections may ask for.
constexpr std::uint32_t scan_thresholds = 15;
constexpr std::uint32_t scan_bisections = 4;

/// Below every cosine, so that all entries are one set, gaps aside; above every one, rounding included, so
/// that every entry is its own.
constexpr float scan_lowest = -1.0625f, scan_highest = 1.0625f;

/// A heap whose node k splits an interval into those of 2k (lower) and 2k + 1.
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

  /// The interval that bisection ends with, where enough(k) says whether its upper end may come down to the
  /// middle of node k. Returns the node that the upper end came down to last; 0: none.
  template <class Enough> KVMELD_HD std::uint32_t descend(Enough enough, float& low, float& high) const {
    std::uint32_t at = 0;
    for (std::uint32_t k = 1; k <= nodes();) {
      bool const yes = enough(k);
      (yes ? high : low) = middle[k];
      if (yes) at = k;
      k = 2 * k + (yes ? 0 : 1);
    }
    return at;
  }
};

}  // namespace identify
}  // namespace KVMELD_ABI
}  // namespace kvmeld
