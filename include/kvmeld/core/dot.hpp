// SPDX-License-Identifier: Apache-2.0
// Dot products and distances in one fixed order, so that host and device round alike.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>

#include <cmath>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Number of partial sums of every single-source reduction over channels. Channel c goes to partial c mod 16.
constexpr std::uint32_t partial_sums = 16;

/// Adds the partials in a fixed tree: halves of 8, 4, 2, 1. The tree is written out, so that compilers keep
/// the partials in registers.
KVMELD_HD inline float sum_partials(float const (&p)[partial_sums]) {
  float a[8];
  float b[4];
  for (std::uint32_t j = 0; j < 8; ++j) a[j] = p[j] + p[j + 8];
  for (std::uint32_t j = 0; j < 4; ++j) b[j] = a[j] + a[j + 4];
  return (b[0] + b[2]) + (b[1] + b[3]);
}

/// The sum over c < n of term(c), in 16 strided partials and a fixed tree. `term` is only called below n.
template <class Term> KVMELD_HD float ordered_sum(std::uint32_t n, Term term) {
  float p[partial_sums] = {};
  std::uint32_t const whole = n / partial_sums * partial_sums;
  for (std::uint32_t c = 0; c < whole; c += partial_sums) {
    for (std::uint32_t j = 0; j < partial_sums; ++j) p[j] += term(c + j);
  }
  for (std::uint32_t j = 0; j < partial_sums; ++j) {  // with a variable bound the partials would go to memory
    if (whole + j < n) p[j] += term(whole + j);
  }
  return sum_partials(p);
}

/// Sum of a[i] b[i] for i below n.
KVMELD_HD inline float dot(float const* a, float const* b, std::uint32_t n) {
  return ordered_sum(n, [&](std::uint32_t c) { return a[c] * b[c]; });
}

/// The sum of (a[i] - b[i])^2 for i below n.
KVMELD_HD inline float squared_distance(float const* a, float const* b, std::uint32_t n) {
  return ordered_sum(n, [&](std::uint32_t c) { return (a[c] - b[c]) * (a[c] - b[c]); });
}

/// The norm of a row of n elements at(c), from its `square`; finite for every finite row. If squares
/// overflow, the norm is computed from a scaled row, and a norm of 2^127 or more counts as 2^127. 0 if all
/// squares vanish.
template <class At> KVMELD_HD float finite_norm(float square, std::uint32_t n, At at) {
  if (is_finite(square)) return std::sqrt(square);
  constexpr float down = 0x1p-80f;
  constexpr float up = 0x1p80f;
  constexpr float most = 0x1p127f;
  float const scaled = std::sqrt(ordered_sum(n, [&](std::uint32_t c) {
    float const x = at(c) * down;
    return x * x;
  }));
  return scaled < most * down ? scaled * up : most;
}

/// The Euclidean norm of a row of n floats; finite if the row is (see finite_norm).
KVMELD_HD inline float row_norm(float const* row, std::uint32_t n) {
  return finite_norm(dot(row, row, n), n, [&](std::uint32_t c) { return row[c]; });
}

/// 1 / ||row|| from the square of the norm; 0 for a zero row.
KVMELD_HD inline float inverse_norm(float square) { return square > 0.0f ? 1.0f / std::sqrt(square) : 0.0f; }

/// Cosine from a dot product and the two inverse norms. All code multiplies in this order.
KVMELD_HD inline float cosine(float product, float inverse_a, float inverse_b) {
  return (product * inverse_a) * inverse_b;
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
