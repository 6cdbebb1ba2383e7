// Dot products and distances in one fixed order, so that host and device round alike.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Partial sums of every single-source reduction over channels: channel c goes to partial c mod 16.
constexpr std::uint32_t partial_sums = 16;

KVMELD_HD inline float sum_partials(float (&p)[partial_sums]) {
  for (std::uint32_t width = partial_sums / 2; width != 0; width /= 2) {
    for (std::uint32_t j = 0; j < width; ++j) p[j] += p[j + width];
  }
  return p[0];
}

/// sum over c < n of term(c), in 16 strided partials and a fixed tree.
template <class Term> KVMELD_HD float ordered_sum(std::uint32_t n, Term term) {
  float p[partial_sums] = {};
  std::uint32_t c = 0;
  for (; c + partial_sums <= n; c += partial_sums) {
    for (std::uint32_t j = 0; j < partial_sums; ++j) p[j] += term(c + j);
  }
  for (std::uint32_t j = 0; c + j < n; ++j) p[j] += term(c + j);
  return sum_partials(p);
}

KVMELD_HD inline float dot(float const* a, float const* b, std::uint32_t n) {
  return ordered_sum(n, [&](std::uint32_t c) { return a[c] * b[c]; });
}

KVMELD_HD inline float squared_distance(float const* a, float const* b, std::uint32_t n) {
  return ordered_sum(n, [&](std::uint32_t c) { return (a[c] - b[c]) * (a[c] - b[c]); });
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
