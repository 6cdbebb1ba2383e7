// Sums over channels: 16 strided partials and a fixed tree, restated and compared bit by bit.
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/dot.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "support/random_cache.hpp"

namespace {

// Partial j takes channels j, j + 16, ...; then the upper half of the partials is added to the lower until
// one is left.
float restated(std::vector<float> const& terms) {
  std::vector<float> partial(16, 0.0f);
  for (std::size_t c = 0; c < terms.size(); ++c) partial[c % 16] += terms[c];
  while (partial.size() > 1) {
    std::vector<float> half(partial.size() / 2);
    for (std::size_t j = 0; j < half.size(); ++j) half[j] = partial[j] + partial[j + half.size()];
    partial = half;
  }
  return partial[0];
}

// Every single float operation is in place and contraction impossible, except that -ffast-math may reorder.
void check_equal(float got, float expected, double magnitude) {
#if defined(__FAST_MATH__)
  CHECK(std::fabs(static_cast<double>(got) - static_cast<double>(expected)) <= 1e-5 * magnitude);
#else
  (void)magnitude;
  CHECK(kvmeld::float_bits(got) == kvmeld::float_bits(expected));
#endif
}

}  // namespace

TEST_CASE("dot products and distances have one order of summation") {
  support::dice d(4);
  for (std::uint32_t n = 0; n <= 140; ++n) {
    std::vector<float> a(n), b(n), products(n), squares(n);
    double magnitude = 1e-30, exact = 0;
    for (std::uint32_t c = 0; c < n; ++c) {
      a[c] = static_cast<float>(d.normal() * std::exp2(d.between(0, 20)));
      b[c] = static_cast<float>(d.normal());
      float const volatile product = a[c] * b[c];
      float const volatile difference = a[c] - b[c];
      float const volatile square = difference * difference;
      products[c] = product;
      squares[c] = square;
      exact += static_cast<double>(a[c]) * static_cast<double>(b[c]);
      magnitude += std::fabs(static_cast<double>(product)) + std::fabs(static_cast<double>(square));
    }
    check_equal(kvmeld::dot(a.data(), b.data(), n), restated(products), magnitude);
    check_equal(kvmeld::squared_distance(a.data(), b.data(), n), restated(squares), magnitude);
    check_equal(kvmeld::ordered_sum(n, [&](std::uint32_t c) { return a[c]; }), restated(a), magnitude);
    CHECK(std::fabs(static_cast<double>(kvmeld::dot(a.data(), b.data(), n)) - exact) <= 1e-5 * magnitude);
  }
}

TEST_CASE("the order shows: another one gives another sum") {
#if !defined(__FAST_MATH__)
  std::vector<float> x(17, 0.0f);
  x[0] = 16777216.0f;
  x[16] = 1.0f;  // joins partial 0 first, where it is lost
  x[1] = -16777216.0f;
  CHECK(kvmeld::ordered_sum(17, [&](std::uint32_t c) { return x[c]; }) == 0.0f);
  x[16] = 0.0f;
  x[8] = 1.0f;  // joins partial 0 before partial 1 does; channel by channel it would be the last and stay
  CHECK(kvmeld::ordered_sum(17, [&](std::uint32_t c) { return x[c]; }) == 0.0f);
#endif
}
