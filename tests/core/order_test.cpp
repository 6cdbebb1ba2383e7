// order_key and is_finite: the order of the extended reals, NaN below everything.
#include <kvmeld/core/bits.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "support/random_cache.hpp"

namespace {

bool is_nan(std::uint32_t u) { return (u & 0x7fffffffu) > 0x7f800000u; }

// Rank in double precision from the fields; infinities far outside, NaN below them.
double rank(std::uint32_t u) {
  if (is_nan(u)) return -1e300;
  std::uint32_t const exponent = (u >> 23) & 255u;
  double const mantissa = static_cast<double>(u & 0x7fffffu);
  double const size = exponent == 255 ? 1e200
                      : exponent == 0 ? std::ldexp(mantissa, -149)
                                      : std::ldexp(mantissa + 8388608.0, static_cast<int>(exponent) - 150);
  return (u >> 31) != 0 ? -size : size;
}

std::vector<std::uint32_t> interesting() {
  std::vector<std::uint32_t> list;
  for (std::uint32_t u : {0u, 1u, 2u, 0x007fffffu, 0x00800000u, 0x3f7fffffu, 0x3f800000u, 0x3f800001u,
                          0x7f7fffffu, 0x7f800000u, 0x7f800001u, 0x7fc00000u, 0x7fffffffu}) {
    list.push_back(u);
    list.push_back(u | 0x80000000u);
  }
  support::dice d(2);
  for (int i = 0; i < 400; ++i) list.push_back(static_cast<std::uint32_t>(d.next() >> 32));
  return list;
}

}  // namespace

TEST_CASE("order_key orders floats as integers") {
  auto const list = interesting();
  std::size_t wrong = 0;
  for (std::uint32_t a : list) {
    for (std::uint32_t b : list) {
      std::uint32_t const x = kvmeld::order_key(kvmeld::bits_float(a));
      std::uint32_t const y = kvmeld::order_key(kvmeld::bits_float(b));
      if ((rank(a) < rank(b)) != (x < y) || (rank(a) > rank(b)) != (x > y)) ++wrong;
    }
  }
  CHECK(wrong == 0);
  auto const key = [](std::uint32_t u) { return kvmeld::order_key(kvmeld::bits_float(u)); };
  CHECK(key(0x80000000u) == key(0u));
  CHECK(key(0x7fc00000u) == 0);
  CHECK(key(0xffffffffu) == 0);
  CHECK(key(0xff800000u) > 0);
  CHECK(key(0x7f800000u) > key(0x7f7fffffu));
}

TEST_CASE("is_finite is false for NaN and infinities only") {
  for (std::uint32_t u : interesting()) {
    CHECK(kvmeld::is_finite(kvmeld::bits_float(u)) == ((u & 0x7fffffffu) < 0x7f800000u));
  }
}
