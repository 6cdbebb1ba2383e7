// SPDX-License-Identifier: Apache-2.0
// Scores moved and scaled so that they can be compared with other scores.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/score/score_view.hpp>

#include <cmath>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score {

/// The shift and the scale that give scores mean 0 and standard deviation 1.
struct standard {
  float mean, scale;  ///< a score x becomes scale * (x - mean)

  /// The score `x`, moved and scaled.
  KVMELD_HD float at(float x) const { return scale * (x - mean); }
};

/// The standard of x[view.length()] over the entries. Numbers that are not finite, and entries whose rows are
/// not, do not count. The scale is 0 if the standard deviation is at most 1e-5 of the mean, as rounding makes
/// it. `partial` is scratch of team_partials floats. Collective; barrier at the end.
template <class Team>
KVMELD_HD standard standard_of(Team const& team, score_view const& view, float const* x, float* partial) {
  std::uint32_t const n = view.length();
  auto const counts = [&](std::uint32_t i) { return view.usable(i) && is_finite(x[i]); };
  std::uint32_t mine = 0;
  team.for_each(n, [&](std::uint32_t i) { mine += counts(i) ? 1u : 0u; });
  float const count = static_cast<float>(team.reduce(mine, op_sum{}));
  if (count == 0.0f) return {0.0f, 0.0f};
  float const mean = team_sum(
                         team, n, [&](std::uint32_t i) { return counts(i) ? x[i] : 0.0f; }, partial) /
                     count;
  float const square = team_sum(
      team, n, [&](std::uint32_t i) { return counts(i) ? (x[i] - mean) * (x[i] - mean) : 0.0f; }, partial);
  float const deviation = std::sqrt(square / count);
  bool const varies = deviation > 1e-5f * std::abs(mean) && is_finite(deviation);
  return {mean, varies ? 1.0f / deviation : 0.0f};
}

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
