// Products of rows with rows, and norms of rows.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// All pairs of rows, for row_products.
struct every_pair {
  /// True for every pair.
  KVMELD_HD bool operator()(std::uint32_t, std::uint32_t) const { return true; }
};

/// out[i * out_ld + j] = dot(a row i, b row j) of d channels, for the pairs with wanted(i, j). Rows of b are
/// in storage type; rows lie a_ld and b_ld elements apart. `out` overlaps neither. Cooperative; barrier at
/// the end. All forms sum as `dot` does. The host's tuned form may fuse multiply and add (see
/// tile_similarity), and also writes the products of other pairs.
template <class Team, class T, class Wanted = every_pair>
KVMELD_HD void row_products(Team const& team, float const* a, std::uint32_t rows, std::uint32_t a_ld,
                            T const* b, std::uint32_t columns, std::size_t b_ld, std::uint32_t d, float* out,
                            std::uint32_t out_ld, Wanted wanted = {}) {
  if (with_kernels<T>(team, [&](auto const& kernels) {
        kernels.products(a, rows, a_ld, b, columns, b_ld, d, out, out_ld);
      })) {
    return;
  }
  team.for_each(rows * columns, [&](std::uint32_t n) {
    std::uint32_t const i = n / columns, j = n % columns;
    if (!wanted(i, j)) return;
    float const* const x = a + std::size_t{i} * a_ld;
    T const* const y = b + std::size_t{j} * b_ld;
    out[std::size_t{i} * out_ld + j] =
        ordered_sum(d, [&](std::uint32_t c) { return x[c] * element_traits<T>::to_float(y[c]); });
  });
  team.sync();
}

/// out[i] = dot(row, row at[i] of pool) for i < count. Rows of the pool are in storage type, ld elements
/// apart. Each lane makes a call of its own; no barrier. Gives the bits of row_products.
template <class Team, class T>
KVMELD_HD void listed_products(Team const& team, float const* row, T const* pool, std::size_t ld,
                               std::uint32_t const* at, std::uint32_t count, std::uint32_t d, float* out) {
  if (with_kernels<T>(team, [&](auto const& kernels) { kernels.dots(row, pool, ld, at, count, d, out); }))
    return;
  for (std::uint32_t i = 0; i < count; ++i) {
    T const* const other = pool + at[i] * ld;
    out[i] = ordered_sum(d, [&](std::uint32_t c) { return row[c] * element_traits<T>::to_float(other[c]); });
  }
}

/// square[i] = dot(row i, row i) and, unless `x` is null, product[i] = dot(row i, x), of `count` rows of d
/// channels. Rows are in storage type, ld elements apart. Cooperative; barrier at the end. Order of summation
/// and fusing are those of row_products.
template <class Team, class T>
KVMELD_HD void row_measures(Team const& team, T const* rows, std::size_t ld, std::uint32_t count,
                            std::uint32_t d, float const* x, float* square, float* product) {
  if (with_kernels<T>(team,
                      [&](auto const& kernels) { kernels.measures(rows, ld, count, d, x, square, product); }))
    return;
  team.for_each(count, [&](std::uint32_t i) {
    T const* const row = rows + std::size_t{i} * ld;
    auto const at = [&](std::uint32_t c) { return element_traits<T>::to_float(row[c]); };
    square[i] = ordered_sum(d, [&](std::uint32_t c) { return at(c) * at(c); });
    if (x != nullptr) product[i] = ordered_sum(d, [&](std::uint32_t c) { return at(c) * x[c]; });
  });
  team.sync();
}

/// out[i] = 1 / ||row i|| of rows[count][d]; 0 for a zero row. Cooperative; barrier at the end. Fixed order
/// of summation, see row_products.
template <class Team>
KVMELD_HD void inverse_norms(Team const& team, float const* rows, std::uint32_t count, std::uint32_t d,
                             float* out) {
  row_measures(team, rows, d, count, d, nullptr, out, nullptr);
  team.for_each(count, [&](std::uint32_t i) { out[i] = inverse_norm(out[i]); });
  team.sync();
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
