// SPDX-License-Identifier: Apache-2.0
// Weighted sums of rows: of floats in scratch, and from storage to storage.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

/// add_weighted_rows for teams made of warps: a warp takes `Rows` rows of total and 32 * `Columns` channels,
/// so that a lane uses each number that it loads several times.
template <std::uint32_t Rows, std::uint32_t Columns, class Team, class T>
KVMELD_HD void add_weighted_on_warps(Team const& team, float const* weight, std::uint32_t rows,
                                     std::uint32_t ld, float const* factor, T const* v, std::size_t v_ld,
                                     std::uint32_t tokens, std::uint32_t d, float* total,
                                     std::size_t total_ld) {
  std::uint32_t const warps = team.lanes() / warp_size, across = ceil_div(d, warp_size * Columns);
  std::uint32_t const tiles = ceil_div(rows, Rows) * across;
  for (std::uint32_t tile = team.lane() / warp_size; tile < tiles; tile += warps) {
    std::uint32_t const r = tile / across * Rows;
    std::uint32_t const c = tile % across * (warp_size * Columns) + team.lane() % warp_size;
    auto const there = [&](std::uint32_t i, std::uint32_t j) {
      return r + i < rows && c + j * warp_size < d;
    };
    float const* w[Rows];
    T const* x[Columns];
    float sum[Rows][Columns];
    for (std::uint32_t j = 0; j < Columns; ++j) x[j] = v + min_of(c + j * warp_size, d - 1);
    for (std::uint32_t i = 0; i < Rows; ++i) {
      w[i] = weight + std::size_t{min_of(r + i, rows - 1)} * ld;
      for (std::uint32_t j = 0; j < Columns; ++j) {
        sum[i][j] = 0.0f;
        if (there(i, j)) sum[i][j] = factor[r + i] * total[(r + i) * total_ld + c + j * warp_size];
      }
    }
    for (std::uint32_t t = 0; t < tokens; ++t) {
      float y[Columns];
      for (std::uint32_t j = 0; j < Columns; ++j) y[j] = element_traits<T>::to_float(x[j][t * v_ld]);
      for (std::uint32_t i = 0; i < Rows; ++i) {
        float const a = w[i][t];
        for (std::uint32_t j = 0; j < Columns; ++j) sum[i][j] += a * y[j];
      }
    }
    for (std::uint32_t i = 0; i < Rows; ++i) {
      for (std::uint32_t j = 0; j < Columns; ++j) {
        if (there(i, j)) total[(r + i) * total_ld + c + j * warp_size] = sum[i][j];
      }
    }
  }
}

}  // namespace detail

/// total[r][c] = factor[r] * total[r][c] + sum over t < tokens of weight[r * ld + t] * v[t][c], for `rows`
/// rows of d channels, in the order of t. Rows of v are in storage type, v_ld elements apart; rows of total
/// lie total_ld apart. `total` overlaps nothing else. Collective; no barrier, and one lane owns an element
/// of `total`. The host's tuned form may fuse multiply and add.
template <class Team, class T>
KVMELD_HD void add_weighted_rows(Team const& team, float const* weight, std::uint32_t rows, std::uint32_t ld,
                                 float const* factor, T const* v, std::size_t v_ld, std::uint32_t tokens,
                                 std::uint32_t d, float* total, std::size_t total_ld) {
  if (with_kernels<T>(team, [&](auto const& kernels) {
        kernels.add_weighted(weight, rows, ld, factor, v, v_ld, tokens, d, total, total_ld);
      })) {
    return;
  }
  if (team.lanes() == 1) {  // goes along rows, as compilers vectorise it
    for (std::uint32_t r = 0; r < rows; ++r) {
      float* const to = total + r * total_ld;
      for (std::uint32_t c = 0; c < d; ++c) to[c] *= factor[r];
      for (std::uint32_t t = 0; t < tokens; ++t) {
        float const w = weight[std::size_t{r} * ld + t];
        T const* const row = v + std::size_t{t} * v_ld;
        for (std::uint32_t c = 0; c < d; ++c) to[c] += w * element_traits<T>::to_float(row[c]);
      }
    }
    return;
  }
  if constexpr (has_warps<Team>::value) {
    if (rows > 1) {
      if (d > warp_size)
        detail::add_weighted_on_warps<4, 2>(team, weight, rows, ld, factor, v, v_ld, tokens, d, total,
                                            total_ld);
      else
        detail::add_weighted_on_warps<4, 1>(team, weight, rows, ld, factor, v, v_ld, tokens, d, total,
                                            total_ld);
      return;
    }
  }
  team.for_each(rows * d, [&](std::uint32_t i) {
    std::uint32_t const r = i / d, c = i % d;
    float& to = total[r * total_ld + c];
    float sum = factor[r] * to;
    for (std::uint32_t t = 0; t < tokens; ++t) {
      sum += weight[std::size_t{r} * ld + t] * element_traits<T>::to_float(v[std::size_t{t} * v_ld + c]);
    }
    to = sum;
  });
}

/// to[c] = sum over i < count of weight[i] * row[i][c], in the order of i, rounded to storage. `to` may be
/// one of the rows. Every lane may make a call of its own; no barrier. The host's tuned form gives the same
/// bits, except for NaN payloads of binary16.
template <class Team, class T>
KVMELD_HD void blend(Team const& team, T const* const* row, float const* weight, std::uint32_t count,
                     std::uint32_t channels, T* to) {
  if (with_kernels<T>(team, [&](auto const& kernels) { kernels.blend(row, weight, count, channels, to); }))
    return;
  constexpr std::uint32_t block = 64;  // channels at once, so that `to` may be one of the rows
  for (std::uint32_t first = 0; first < channels; first += block) {
    std::uint32_t const n = min_of(block, channels - first);
    float total[block] = {};
    for (std::uint32_t i = 0; i < count; ++i) {
      T const* const from = row[i] + first;
      for (std::uint32_t c = 0; c < n; ++c) total[c] += weight[i] * element_traits<T>::to_float(from[c]);
    }
    for (std::uint32_t c = 0; c < n; ++c) to[first + c] = element_traits<T>::from_float(total[c]);
  }
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
