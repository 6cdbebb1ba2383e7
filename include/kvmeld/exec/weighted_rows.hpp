// Weighted sums of rows: of floats in scratch, and from storage to storage.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// total[r][c] = factor[r] * total[r][c] + sum over t < tokens of weight[r * ld + t] * v[t][c], for `rows`
/// rows of d channels, in the order of t. Rows of v are in storage type, v_ld elements apart; rows of total
/// lie total_ld apart. `total` overlaps nothing else. Cooperative; no barrier, and one lane owns an element
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
