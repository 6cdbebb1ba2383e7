// SPDX-License-Identifier: Apache-2.0
// Cholesky factors of small matrices.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/exec/team.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Factors a[n][n] + r I = L L^T, for a symmetric matrix of at least 0, given by its lower triangle, and r
/// above 0. Leaves L below the diagonal and 1 / L_ii on it. The upper triangle is not used. Rounding never
/// makes a pivot less than half of r. Collective; barrier at the end.
template <class Team> KVMELD_HD void factor_cholesky(Team const& team, float* a, std::uint32_t n, float r) {
  auto const row = [&](std::uint32_t i) { return a + std::size_t{i} * n; };
  for (std::uint32_t k = 0; k < n; ++k) {
    if (team.lane() == 0)
      row(k)[k] = 1.0f / std::sqrt(max_of(row(k)[k] + r - dot(row(k), row(k), k), 0.5f * r));
    team.sync();
    team.for_each(n - k - 1, [&](std::uint32_t m) {
      float* const below = row(k + 1 + m);
      below[k] = (below[k] - dot(below, row(k), k)) * row(k)[k];
    });
    team.sync();
  }
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
