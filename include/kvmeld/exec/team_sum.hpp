// Sums of floats over a whole track, in one order for any number of lanes.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Number of partial sums. It does not depend on the number of lanes.
constexpr std::uint32_t team_partials = 256;

/// Bytes of scratch that team_sum needs.
KVMELD_HD constexpr std::size_t team_sum_scratch() { return scratch_size(team_partials * sizeof(float)); }

/// The sum over i < n of term(i). Index i goes to partial i mod 256, and the partials add up in a fixed tree.
/// `partial` is scratch of team_partials floats. Collective; barrier at the end.
template <class Team, class Term>
KVMELD_HD float team_sum(Team const& team, std::uint32_t n, Term term, float* partial) {
  team.for_each(team_partials, [&](std::uint32_t j) {
    float sum = 0.0f;
    for (std::uint32_t i = j; i < n; i += team_partials) sum += term(i);
    partial[j] = sum;
  });
  team.sync();
  for (std::uint32_t half = team_partials / 2; half > 0; half /= 2) {
    team.for_each(half, [&](std::uint32_t j) { partial[j] += partial[j + half]; });
    team.sync();
  }
  float const sum = partial[0];
  team.sync();
  return sum;
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
