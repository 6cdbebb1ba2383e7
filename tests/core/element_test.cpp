// half and bfloat16: every pattern survives a round trip, and rounding is to nearest even. The expectation is
// found among the stored values themselves, by search in double precision; no bit trick of the library is
// repeated.
#include <kvmeld/core/element.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "support/random_cache.hpp"

namespace {

// Value of sign, exponent and mantissa fields. Integers and ldexp only: subnormal floats may be flushed to
// zero.
double value_of(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  int const bias = (1 << (exponent_bits - 1)) - 1;
  auto const mantissa = static_cast<double>(bits & ((1u << mantissa_bits) - 1));
  auto const exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  bool const negative = (bits >> (mantissa_bits + exponent_bits)) != 0;
  double const size =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                    : std::ldexp(mantissa + std::ldexp(1.0, mantissa_bits), exponent - bias - mantissa_bits);
  return negative ? -size : size;
}

struct format {
  int exponent_bits, mantissa_bits;
  std::uint32_t infinity() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
};
constexpr format half_format{5, 10}, bfloat16_format{8, 7};

// The pattern nearest to |float bits|, even where two are: by bisection over the non-negative patterns, of
// which infinity stands where the next finite number would.
std::uint32_t nearest(std::uint32_t float_bits, format f) {
  double const x = value_of(float_bits & 0x7fffffffu, 8, 23);
  auto const value = [&](std::uint32_t p) { return value_of(p, f.exponent_bits, f.mantissa_bits); };
  std::uint32_t low = 0, high = f.infinity();
  if (x >= value(high)) return high;
  while (high - low > 1) {
    std::uint32_t const middle = (low + high) / 2;
    (value(middle) <= x ? low : high) = middle;
  }
  double const below = x - value(low), above = value(high) - x;
  if (below == above) return low % 2 == 0 ? low : high;
  return below < above ? low : high;
}

template <class T> void check_float(std::uint32_t bits, format f) {
  std::uint32_t const sign = (bits >> 16) & 0x8000u;
  std::uint32_t const got = kvmeld::element_traits<T>::from_float(kvmeld::bits_float(bits)).bits;
  std::uint32_t const magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    REQUIRE((got & 0x7fffu) > f.infinity());
    REQUIRE((got & 0x8000u) == sign);
  } else if (magnitude == 0x7f800000u) {
    REQUIRE(got == (sign | f.infinity()));
  } else if (got != (sign | nearest(bits, f))) {
    CAPTURE(bits);
    REQUIRE(got == (sign | nearest(bits, f)));
  }
}

template <class T> void round_trip(format f) {
  std::size_t wrong = 0;
  for (std::uint32_t p = 0; p < 65536; ++p) {
    T const stored{static_cast<std::uint16_t>(p)};
    std::uint32_t const got = kvmeld::float_bits(kvmeld::element_traits<T>::to_float(stored));
    std::uint32_t const back = kvmeld::element_traits<T>::from_float(kvmeld::bits_float(got)).bits;
    if ((p & 0x7fffu) > f.infinity()) {  // NaN stays NaN
      wrong += (got & 0x7fffffffu) > 0x7f800000u && (back & 0x7fffu) > f.infinity() ? 0 : 1;
    } else if ((p & 0x7fffu) == f.infinity()) {
      wrong += got == (0x7f800000u | (p & 0x8000u) << 16) && back == p ? 0 : 1;
    } else {
      bool const signs = (got >> 31) == (p >> 15);
      wrong +=
          signs && value_of(got, 8, 23) == value_of(p, f.exponent_bits, f.mantissa_bits) && back == p ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

// Around every boundary between two stored numbers, and many random floats.
template <class T> void rounding(format f) {
  for (std::uint32_t p = 0; p < f.infinity(); ++p) {
    std::uint32_t const here =
        kvmeld::float_bits(kvmeld::element_traits<T>::to_float({static_cast<std::uint16_t>(p)}));
    std::uint32_t const next =
        kvmeld::float_bits(kvmeld::element_traits<T>::to_float({static_cast<std::uint16_t>(p + 1)}));
    std::uint32_t const middle = here + (next - here) / 2;
    for (std::uint32_t u : {here + 1, middle - 1, middle, middle + 1}) {
      check_float<T>(u, f);
      check_float<T>(u | 0x80000000u, f);
    }
  }
  support::dice d(1);
  for (int i = 0; i < 200000; ++i) check_float<T>(static_cast<std::uint32_t>(d.next() >> 32), f);
  for (std::uint32_t u :
       {0u,          1u,          2u,          0x007fffffu, 0x00800000u, 0x7f7fffffu, 0x7f7f0000u,
        0x7f7f7fffu, 0x7f7f8000u, 0x7f800000u, 0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0x477fefffu,
        0x477ff000u, 0x33000000u, 0x33000001u, 0x32ffffffu, 0x38800000u, 0x387fffffu, 0x387ff000u}) {
    check_float<T>(u, f);
    check_float<T>(u | 0x80000000u, f);
  }
}

}  // namespace

TEST_CASE("every half and bfloat16 survives a round trip") {
  round_trip<kvmeld::float16>(half_format);
  round_trip<kvmeld::bfloat16>(bfloat16_format);
}

TEST_CASE("half rounds to nearest even") { rounding<kvmeld::float16>(half_format); }
TEST_CASE("bfloat16 rounds to nearest even") { rounding<kvmeld::bfloat16>(bfloat16_format); }

TEST_CASE("known conversions") {
  auto const half_bits = [](float x) { return kvmeld::element_traits<kvmeld::float16>::from_float(x).bits; };
  CHECK(half_bits(1.0f) == 0x3c00);
  CHECK(half_bits(-2.0f) == 0xc000);
  CHECK(half_bits(65504.0f) == 0x7bff);
  CHECK(half_bits(65519.0f) == 0x7bff);
  CHECK(half_bits(65520.0f) == 0x7c00);
  CHECK(half_bits(5.9604645e-8f) == 0x0001);
  auto const bfloat_bits = [](float x) {
    return kvmeld::element_traits<kvmeld::bfloat16>::from_float(x).bits;
  };
  CHECK(bfloat_bits(1.0f) == 0x3f80);
  CHECK(bfloat_bits(1.00390625f) == 0x3f80);  // half way, to even
  CHECK(bfloat_bits(1.01171875f) == 0x3f82);  // half way, to even
}

TEST_CASE("lowest is the most negative finite number") {
  CHECK(kvmeld::float_bits(kvmeld::element_traits<float>::lowest) == 0xff7fffffu);
  using half_traits = kvmeld::element_traits<kvmeld::float16>;
  using bfloat_traits = kvmeld::element_traits<kvmeld::bfloat16>;
  CHECK(half_traits::from_float(half_traits::lowest).bits == 0xfbff);
  CHECK(bfloat_traits::from_float(bfloat_traits::lowest).bits == 0xff7f);
  CHECK(kvmeld::float_bits(bfloat_traits::lowest) == 0xff7f0000u);
}
