// SPDX-License-Identifier: Apache-2.0
// Products of rows with rows, and norms of rows.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Floats from one row in scratch to the next, for rows of b below. Rows are aligned to 16 bytes, and
/// neighbouring lanes read different banks.
KVMELD_HD constexpr std::uint32_t row_stride(std::uint32_t channels) { return (channels + 3) / 4 * 4 + 4; }

namespace detail {

/// The sums that `dot` makes of 16 partial sums, four of them in each of four neighbouring lanes: lane k of
/// the four has those of channels k, k + 4, k + 8 and k + 12 modulo 16. Of four such sums, p[0] to p[3], lane
/// k gets that of p[k]. Collective in a warp.
template <class Team> KVMELD_HD float sums_over_four(Team const& team, float const (&p)[4][4]) {
  std::uint32_t const lane = team.lane() % warp_size;
  float own[4];
  for (std::uint32_t i = 0; i < 4; ++i) own[i] = (p[i][0] + p[i][2]) + (p[i][1] + p[i][3]);
  // Lanes 0 and 1 go on with the first two sums, lanes 2 and 3 with the others; then each has one.
  bool const late = (lane & 2) != 0, odd = (lane & 1) != 0;
  float pair[2];
  for (std::uint32_t i = 0; i < 2; ++i) {
    float const given = late ? own[i] : own[i + 2];
    pair[i] = (late ? own[i + 2] : own[i]) + bits_float(team.shuffle(float_bits(given), lane ^ 2));
  }
  float const given = odd ? pair[0] : pair[1];
  return (odd ? pair[1] : pair[0]) + bits_float(team.shuffle(float_bits(given), lane ^ 1));
}

/// Calls add(c, m) for the channels c + k of the m-th of these partial sums of lane k, in order.
template <class Add> KVMELD_HD void for_channels_of_lane(std::uint32_t k, std::uint32_t d, Add add) {
  std::uint32_t const whole = d / partial_sums * partial_sums;
  for (std::uint32_t c = 0; c < whole; c += partial_sums) {
    for (std::uint32_t m = 0; m < 4; ++m) add(c + 4 * m, m);
  }
  for (std::uint32_t m = 0; m < 4; ++m) {  // with a variable bound the partials would go to memory
    if (whole + 4 * m + k < d) add(whole + 4 * m, m);
  }
}

/// Calls store(i, j, sum) for all pairs of rows, with the sum of term(x, y) over the channels, as `dot` sums.
/// For teams made of warps. Four lanes share 2 x 2 pairs, so that a lane uses each number that it loads
/// twice; neighbouring fours have neighbouring rows of b. Collective; no barrier.
template <class Team, class T, class Term, class Store>
KVMELD_HD void pairs_on_warps(Team const& team, float const* a, std::uint32_t rows, std::size_t a_ld,
                              T const* b, std::uint32_t columns, std::size_t b_ld, std::uint32_t d, Term term,
                              Store store) {
  constexpr std::uint32_t fours = warp_size / 4;
  std::uint32_t const warps = team.lanes() / warp_size, across = ceil_div(columns, 2 * fours);
  std::uint32_t const tiles = rows == 0 ? 0 : ceil_div(rows, 2) * across;
  std::uint32_t const k = team.lane() % 4, four = team.lane() % warp_size / 4;
  for (std::uint32_t tile = team.lane() / warp_size; tile < tiles; tile += warps) {
    std::uint32_t const i = tile / across * 2, j = tile % across * (2 * fours) + four;
    float const* const x[2] = {a + i * a_ld + k, a + min_of(i + 1, rows - 1) * a_ld + k};
    T const* const y[2] = {b + min_of(j, columns - 1) * b_ld + k,
                           b + min_of(j + fours, columns - 1) * b_ld + k};
    float p[4][4] = {};  // of pairs (0, 0), (0, 1), (1, 0), (1, 1)
    for_channels_of_lane(k, d, [&](std::uint32_t c, std::uint32_t m) {
      float const y0 = element_traits<T>::to_float(y[0][c]), y1 = element_traits<T>::to_float(y[1][c]);
      for (std::uint32_t r = 0; r < 2; ++r) {
        p[2 * r][m] += term(x[r][c], y0);
        p[2 * r + 1][m] += term(x[r][c], y1);
      }
    });
    float const sum = sums_over_four(team, p);
    std::uint32_t const row = i + k / 2, column = j + k % 2 * fours;
    if (row < rows && column < columns) store(row, column, sum);
  }
}

/// out[i * out_ld + j] = the sum of term(x, y) over the channels of rows i of a and j of b, as `dot` sums,
/// for the pairs with wanted(i, j). Collective; barrier at the end.
template <class Team, class T, class Term, class Wanted>
KVMELD_HD void pair_sums(Team const& team, float const* a, std::uint32_t rows, std::uint32_t a_ld, T const* b,
                         std::uint32_t columns, std::size_t b_ld, std::uint32_t d, float* out,
                         std::uint32_t out_ld, Term term, Wanted wanted) {
  if constexpr (has_warps<Team>::value) {
    pairs_on_warps(team, a, rows, a_ld, b, columns, b_ld, d, term,
                   [&](std::uint32_t i, std::uint32_t j, float sum) {
                     if (wanted(i, j)) out[std::size_t{i} * out_ld + j] = sum;
                   });
  } else {
    team.for_each(rows * columns, [&](std::uint32_t n) {
      std::uint32_t const i = n / columns, j = n % columns;
      if (!wanted(i, j)) return;
      float const* const x = a + std::size_t{i} * a_ld;
      T const* const y = b + std::size_t{j} * b_ld;
      out[std::size_t{i} * out_ld + j] =
          ordered_sum(d, [&](std::uint32_t c) { return term(x[c], element_traits<T>::to_float(y[c])); });
    });
  }
  team.sync();
}

}  // namespace detail

/// All pairs of rows, for row_products.
struct every_pair {
  /// True for every pair.
  KVMELD_HD bool operator()(std::uint32_t, std::uint32_t) const { return true; }
};

/// out[i * out_ld + j] = dot(a row i, b row j) of d channels, for the pairs with wanted(i, j). Rows of b are
/// in storage type; rows lie a_ld and b_ld elements apart. `out` overlaps neither. Collective; barrier at
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
  detail::pair_sums(
      team, a, rows, a_ld, b, columns, b_ld, d, out, out_ld, [](float x, float y) { return x * y; }, wanted);
}

/// out[i * out_ld + j] = the squared distance of row i of a and row j of b, of d channels. Rows of b are in
/// storage type. `out` overlaps neither. Collective; barrier at the end. All forms sum as `dot` does.
template <class Team, class T>
KVMELD_HD void row_distances(Team const& team, float const* a, std::uint32_t rows, std::uint32_t a_ld,
                             T const* b, std::uint32_t columns, std::size_t b_ld, std::uint32_t d, float* out,
                             std::uint32_t out_ld) {
  detail::pair_sums(
      team, a, rows, a_ld, b, columns, b_ld, d, out, out_ld,
      [](float x, float y) { return (x - y) * (x - y); }, every_pair{});
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
/// channels. Rows are in storage type, ld elements apart. Collective; barrier at the end. Order of summation
/// and fusing are those of row_products.
template <class Team, class T>
KVMELD_HD void row_measures(Team const& team, T const* rows, std::size_t ld, std::uint32_t count,
                            std::uint32_t d, float const* x, float* square, float* product) {
  if (with_kernels<T>(team,
                      [&](auto const& kernels) { kernels.measures(rows, ld, count, d, x, square, product); }))
    return;
  if constexpr (has_warps<Team>::value) {  // four lanes share a row
    constexpr std::uint32_t fours = warp_size / 4;
    std::uint32_t const k = team.lane() % 4;
    for (std::uint32_t first = team.lane() / warp_size * fours; first < count; first += team.lanes() / 4) {
      std::uint32_t const i = first + team.lane() % warp_size / 4;
      T const* const row = rows + min_of(i, count - 1) * ld + k;
      float p[4][4] = {};  // square, product
      detail::for_channels_of_lane(k, d, [&](std::uint32_t c, std::uint32_t m) {
        float const y = element_traits<T>::to_float(row[c]);
        p[0][m] += y * y;
        if (x != nullptr) p[1][m] += y * x[c + k];
      });
      float const sum = detail::sums_over_four(team, p);
      if (i >= count) continue;
      if (k == 0) square[i] = sum;
      if (k == 1 && x != nullptr) product[i] = sum;
    }
    team.sync();
    return;
  }
  team.for_each(count, [&](std::uint32_t i) {
    T const* const row = rows + std::size_t{i} * ld;
    auto const at = [&](std::uint32_t c) { return element_traits<T>::to_float(row[c]); };
    square[i] = ordered_sum(d, [&](std::uint32_t c) { return at(c) * at(c); });
    if (x != nullptr) product[i] = ordered_sum(d, [&](std::uint32_t c) { return at(c) * x[c]; });
  });
  team.sync();
}

/// out[i] = 1 / ||row i|| of rows[count][d]; 0 for a zero row. Collective; barrier at the end. Fixed order
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
