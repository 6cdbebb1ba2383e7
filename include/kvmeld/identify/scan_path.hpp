// SPDX-License-Identifier: Apache-2.0
// Bisection of a scan's threshold, and the thresholds that it probably asks for.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// scan_lowest is below every cosine: all entries are one set, except at gaps. scan_highest is above every
/// cosine, rounding included: every entry is a set of its own.
constexpr float scan_lowest = -1.0625f, scan_highest = 1.0625f;

/// Where a threshold lies. `high` leaves as many sets as are wanted.
struct scan_bracket {
  float low = scan_lowest, high = scan_highest;

  KVMELD_HD float middle() const { return 0.5f * (low + high); }
  /// One step of bisection. `enough` says whether the upper end may come down to the middle.
  KVMELD_HD void halve(bool enough) { (enough ? high : low) = middle(); }
};

/// The middles that bisection comes to if the threshold lies where it is expected.
struct scan_path {
  static constexpr std::uint32_t max_steps = 9;

  float expected, middle[max_steps];
  std::uint32_t steps;

  /// `step_count` is at most max_steps.
  KVMELD_HD scan_path(scan_bracket now, float threshold, std::uint32_t step_count)
      : expected(threshold), steps(step_count) {
    for (std::uint32_t i = 0; i < steps; ++i) {
      middle[i] = now.middle();
      now.halve(expected < middle[i]);
    }
  }

  /// Bisects as far as the answers for the middles reach: to the first that is not the expected one. Returns
  /// the number of steps.
  KVMELD_HD std::uint32_t follow(bool const* enough, scan_bracket& now) const {
    for (std::uint32_t i = 0; i < steps; ++i) {
      now.halve(enough[i]);
      if (enough[i] != (expected < middle[i])) return i + 1;
    }
    return steps;
  }
};

}  // namespace identify
}  // namespace KVMELD_ABI
}  // namespace kvmeld
