// 8-bit floats against the formats' own definition, code by code.
#include <kvmeld/core/fp8.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "support/random_cache.hpp"

namespace {

// What a code means, from its three fields.
double meaning(std::uint32_t code, int mantissa, int bias) {
  int const exponent = static_cast<int>(code & 0x7fu) >> mantissa;
  double const fraction = (code & ((1u << mantissa) - 1u)) * std::ldexp(1.0, -mantissa);
  double const x = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return (code & 0x80u) != 0 ? -x : x;
}

template <class T> void check(int mantissa, int bias, std::uint32_t most) {
  using traits = kvmeld::element_traits<T>;
  std::vector<double> numbers;  // of the codes 0 .. most
  for (std::uint32_t code = 0; code < 256; ++code) {
    float const x = traits::to_float({static_cast<std::uint8_t>(code)});
    if ((code & 0x7fu) > most) {
      CHECK_FALSE(kvmeld::is_finite(x));
      continue;
    }
    CHECK(static_cast<double>(x) == meaning(code, mantissa, bias));
    CHECK(traits::from_float(x).bits == code);
    if (code <= most) numbers.push_back(static_cast<double>(x));
  }
  CHECK(static_cast<double>(traits::lowest) == -numbers.back());
  support::dice d(3);
  for (int i = 0; i < 20000; ++i) {
    double const size = std::ldexp(1 + d.uniform(), static_cast<int>(d.below(40)) - 24);
    auto const x = static_cast<float>(
        d.chance(0.1) ? 0.5 * (numbers[d.below(most)] + numbers[1 + d.below(most)]) : size);
    // The nearest number, the even code of two.
    std::size_t best = 0;
    for (std::size_t n = 1; n < numbers.size(); ++n) {
      double const now = std::abs(static_cast<double>(x) - numbers[n]),
                   then = std::abs(static_cast<double>(x) - numbers[best]);
      if (now < then || (now == then && n % 2 == 0)) best = n;
    }
    CHECK(traits::from_float(x).bits == best);
    CHECK(traits::from_float(-x).bits == best + 128);
  }
  float const nan = kvmeld::bits_float(0x7fc00000u), infinity = kvmeld::bits_float(0x7f800000u);
  CHECK(traits::from_float(infinity).bits == most);
  CHECK(traits::from_float(-infinity).bits == most + 128);
  CHECK(traits::from_float(1e30f).bits == most);
  float const back = traits::to_float(traits::from_float(nan));
  CHECK((kvmeld::float_bits(back) & 0x7fffffffu) > 0x7f800000u);
}

}  // namespace

TEST_CASE("E4M3 is OCP's") { check<kvmeld::fp8_e4m3>(3, 7, 0x7e); }

TEST_CASE("E5M2 is OCP's") {
  check<kvmeld::fp8_e5m2>(2, 15, 0x7b);
  CHECK(kvmeld::float_bits(kvmeld::element_traits<kvmeld::fp8_e5m2>::to_float({0x7c})) == 0x7f800000u);
  CHECK(kvmeld::float_bits(kvmeld::element_traits<kvmeld::fp8_e5m2>::to_float({0xfc})) == 0xff800000u);
}
