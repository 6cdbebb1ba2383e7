// SPDX-License-Identifier: Apache-2.0
// Cosines of two tiles of rows. Only the maximum of each row is kept: no similarity matrix is stored.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

KVMELD_HD constexpr std::size_t row_match_scratch(std::uint32_t rows) {
  return 2 * scratch_size(rows * sizeof(std::uint32_t)) + 2 * scratch_size(rows * sizeof(float));
}

/// Best column of each row of a tile so far: higher key wins, then the lower column. The arrays lie in
/// scratch that the team shares.
struct row_match {
  std::uint32_t* best_key;
  std::uint32_t* best_column;
  float* inverse_row;
  float* inverse_column;

  template <class Team>
  KVMELD_HD row_match(Team const& team, std::uint32_t rows)
      : best_key(team.template scratch<std::uint32_t>(rows)),
        best_column(team.template scratch<std::uint32_t>(rows)),
        inverse_row(team.template scratch<float>(rows)),
        inverse_column(team.template scratch<float>(rows)) {}

  /// Forgets earlier matches and computes the inverse norms of the rows a[rows][d].
  template <class Team>
  KVMELD_HD void begin(Team const& team, float const* a, std::uint32_t rows, std::uint32_t d) const {
    team.for_each(rows, [&](std::uint32_t i) { best_key[i] = best_column[i] = 0; });
    inverse_norms(team, a, rows, d, inverse_row);
  }
};

}  // namespace detail

/// Matches rows a[rows][d] with columns b[columns][d], numbered from `first_column`. `columns` is at most the
/// number of rows that `match` reserved. Keys are order_key(cosine); a cosine that overflowed to NaN never
/// matches. Collective; barrier at the end. Generic form: fixed summation order, one lane per row. The
/// host's tuned form sums in the same order and may fuse multiply and add. It gives the same bits for 16-bit
/// rows and on SSE2. Otherwise the cosines of a row differ from the generic ones by at most
/// 2^-23 * (d / 16 + 8), so that the chosen column's cosine is within twice that of the best one's.
template <class Team>
KVMELD_HD void tile_similarity(Team const& team, float const* a, std::uint32_t rows, float const* b,
                               std::uint32_t columns, std::uint32_t d, std::uint32_t first_column,
                               detail::row_match const& match) {
  inverse_norms(team, b, columns, d, match.inverse_column);
  if (with_kernels(team, [&](auto const& kernels) {
        kernels.match_rows(a, rows, match.inverse_row, b, columns, match.inverse_column, d, first_column,
                           match.best_key, match.best_column);
      })) {
    return;
  }
  team.for_each(rows, [&](std::uint32_t i) {
    std::uint32_t key = match.best_key[i];
    std::uint32_t column = match.best_column[i];
    for (std::uint32_t j = 0; j < columns; ++j) {
      float const product = dot(a + std::size_t{i} * d, b + std::size_t{j} * d, d);
      std::uint32_t const k = order_key(cosine(product, match.inverse_row[i], match.inverse_column[j]));
      if (k > key) {
        key = k;
        column = first_column + j;
      }
    }
    match.best_key[i] = key;
    match.best_column[i] = column;
  });
  team.sync();
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
