// Rows of 4 to 8 bits: what their bytes say, read here in double as the formats define it, and how far it is
// from what was stored.
#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "cache/refusal.hpp"
#include "support/random_cache.hpp"

namespace packed_rows_cases {

namespace {

using cache_test::check_text;
using kvmeld::shape;
using support::dice;
constexpr shape extent{2, 3, 2, 1, 8, 8, 20};

double number(dice& d, double low, double high) { return low + (high - low) * d.uniform(); }

// What a block of 4 or 5 bits holds, read as ggml's format says, in double.
double half_of(std::uint8_t const* at) {
  unsigned const bits = at[0] + 256u * at[1];
  int const exponent = static_cast<int>(bits >> 10 & 31), sign = (bits & 0x8000) != 0 ? -1 : 1;
  double const mantissa = bits & 1023;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

std::vector<double> numbers_of(std::uint8_t const* block, int bits, bool offset) {
  std::uint8_t const *high = block + (offset ? 4 : 2), *low = high + (bits == 5 ? 4 : 0);
  std::vector<double> out;
  for (int c = 0; c < 32; ++c) {
    int code = c < 16 ? low[c] % 16 : low[c - 16] / 16;
    if (bits == 5 && (high[c / 8] >> (c % 8)) % 2 != 0) code += 16;
    out.push_back(offset ? half_of(block) * code + half_of(block + 2)
                         : half_of(block) * (code - (bits == 4 ? 8 : 16)));
  }
  return out;
}

// Random rows of all sizes come back near what they were, and as the format says.
template <class Rows> void small_blocks(Rows const& rows, std::uint8_t const* bytes, int bits, bool offset) {
  kvmeld::serial_team const team(nullptr, 0);
  dice d(static_cast<std::uint64_t>(bits) * 2 + offset);
  for (int trial = 0; trial < 200; ++trial) {
    double const size = std::pow(10.0, number(d, -3, 3)),
                 middle = d.chance(0.5) ? 0 : size * number(d, -3, 3);
    std::vector<float> row(64);
    for (float& x : row) x = static_cast<float>(middle + size * number(d, -1, 1));
    rows.encode_row(team, {}, 0, [&](std::uint32_t c) { return row[c]; });
    std::vector<float> read(64);
    rows.load_tile(team, {}, 0, 1, 0, 64, read.data(), 64);
    for (std::uint32_t b = 0; b < 2; ++b) {
      std::size_t const block_bytes =
          static_cast<std::size_t>(2 + 16 + (offset ? 2 : 0) + (bits == 5 ? 4 : 0));
      std::vector<double> const wanted = numbers_of(bytes + b * block_bytes, bits, offset);
      float const *const first = row.data() + 32 * b, low = *std::min_element(first, first + 32),
                         high = *std::max_element(first, first + 32);
      double const most = std::max(std::abs(static_cast<double>(low)), std::abs(static_cast<double>(high)));
      double const codes = (1 << bits) - 1;
      double const step =
          offset ? (static_cast<double>(high) - static_cast<double>(low)) / codes : most / ((codes + 1) / 2);
      for (std::uint32_t c = 0; c < 32; ++c) {
        CHECK(static_cast<double>(read[32 * b + c]) == doctest::Approx(wanted[c]).epsilon(1e-6));
        double const away = std::abs(wanted[c] - static_cast<double>(first[c]));
        // Without an offset there is no code for the opposite of the farthest number.
        double const x = static_cast<double>(first[c]),
                     opposite = -static_cast<double>(low) > static_cast<double>(high) ? 1 : -1;
        bool const missing = !offset && x * opposite > most - step;
        // Binary16 rounds the scale, and with an offset the smallest number.
        CHECK(away <= step * (missing ? 1.01 : 0.505) + most * 1.1e-3);
      }
    }
  }
}

}  // namespace

TEST_CASE("ggml's blocks of 4 and 5 bits") {
  shape s = extent;
  s.key_dim = 64;
  std::vector<std::uint8_t> bytes(s.slots() * 48);
  auto const rows = [&](std::uint32_t block) {
    return kvmeld::strided<std::uint8_t>(bytes.data(), "LSHTC", s, 2 * block);
  };
  small_blocks(kvmeld::q4_0_rows(rows(18)), bytes.data(), 4, false);
  small_blocks(kvmeld::q4_1_rows(rows(20)), bytes.data(), 4, true);
  small_blocks(kvmeld::q5_0_rows(rows(22)), bytes.data(), 5, false);
  small_blocks(kvmeld::q5_1_rows(rows(24)), bytes.data(), 5, true);

  // By hand: -8 is the farthest from 0, so the scale is 1 (0x3c00) and code 8 is 0.
  kvmeld::serial_team const team(nullptr, 0);
  kvmeld::q4_0_rows const q4(rows(18));
  q4.encode_row(team, {}, 0, [](std::uint32_t c) {
    return c == 3 ? -8.0f : c == 19 ? 5.0f : c == 20 ? 8.0f : 0.0f;
  });
  CHECK((bytes[0] == 0x00 && bytes[1] == 0x3c));
  CHECK(bytes[2 + 3] == (0 | 13 << 4));
  CHECK(bytes[2 + 4] == (8 | 15 << 4));  // 8 would need code 16
  CHECK(bytes[2 + 5] == (8 | 8 << 4));
  // -10 to 5.5 in q4_1: scale 1.03125, smallest -10.
  kvmeld::q4_1_rows const q41(rows(20));
  q41.encode_row(team, {}, 0, [](std::uint32_t c) {
    return c == 0 ? -10.0f : c == 31 ? 5.46875f : -10.0f + 1.03125f * 7;
  });
  CHECK(half_of(bytes.data()) == 1.03125);
  CHECK(half_of(bytes.data() + 2) == -10);
  CHECK(bytes[4] == (0 | 7 << 4));
  CHECK(bytes[4 + 15] == (7 | 15 << 4));
  // q5_0: the fifth bits of all codes are a number of 32 bits.
  kvmeld::q5_0_rows const q5(rows(22));
  q5.encode_row(team, {}, 0, [](std::uint32_t c) {
    return c == 0 ? -16.0f : c == 9 ? 3.0f : c == 30 ? 15.0f : -1.0f;
  });
  CHECK(half_of(bytes.data()) == 1);
  CHECK((bytes[2] == 0 && bytes[3] == 1 << 1 && bytes[4] == 0 && bytes[5] == 1 << 6));
  CHECK(bytes[6] == (0 | 15 << 4));
  CHECK(bytes[6 + 9] == (3 | 15 << 4));
  CHECK(bytes[6 + 14] == (15 | 15 << 4));
  // Rows of zeros.
  for (std::uint8_t& b : bytes) b = 0xff;
  std::vector<float> read(64, 1.0f);
  q4.encode_row(team, {}, 0, [](std::uint32_t) { return 0.0f; });
  q4.load_tile(team, {}, 0, 1, 0, 64, read.data(), 64);
  CHECK(read == std::vector<float>(64, 0.0f));
  kvmeld::q5_1_rows const q51(rows(24));
  q51.encode_row(team, {}, 0, [](std::uint32_t) { return 2.5f; });
  q51.load_tile(team, {}, 0, 1, 0, 64, read.data(), 64);
  CHECK(read == std::vector<float>(64, 2.5f));
  check_text(
      kvmeld::q4_0_rows(rows(17)).problem(s),
      {"q4_0_rows: number of bytes of a row is 34; it must be a multiple of 18, the bytes of a block"});
  check_text(kvmeld::q4_1_rows(rows(18)).problem(s), {"q4_1_rows: number of bytes of a row is 36"});
  check_text(kvmeld::q5_0_rows(kvmeld::strided<std::uint8_t>(nullptr, "LSHTC", s, 44)).problem(s),
             {"q5_0_rows: bytes: base pointer is null"});
}

// Groups whose zero is large or whose scale is small in T, and such with NaN or an infinity.
template <class T> void hostile_groups(double rounding) {
  shape s = extent;
  s.key_dim = 24;
  std::vector<std::uint8_t> bytes(s.slots() * 24);
  std::vector<T> pairs(s.slots() * 2);
  kvmeld::serial_team const team(nullptr, 0);
  float const nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  struct group {
    float low, high;
  };
  for (kvmeld::code_order const order : {kvmeld::code_order::bytes, kvmeld::code_order::halves}) {
    bool const whole = order == kvmeld::code_order::bytes;
    kvmeld::zero_point_rows const rows(
        kvmeld::strided<std::uint8_t>(bytes.data(), "LSTHC", s, whole ? 24 : 12),
        kvmeld::strided<T>(pairs.data(), "LSTHC", s, 2), order);
    for (group const g :
         {group{1.0f, 1.0009765625f}, group{-10.0f, -9.97f}, group{10.0f, 10.002f}, group{5.0f, 5.0f},
          group{-3000.0f, -2999.0f}, group{0.0f, 1e-9f}, group{-1e-3f, 2.0f}, group{-4.0f, -4.0f}}) {
      for (int const spoils : {0, 1, 2}) {
        float const bad = spoils == 1 ? nan : infinity;
        auto const value = [&](std::uint32_t c) {
          if (c == 5 && spoils != 0) return bad;
          return c % 3 == 0 ? g.low : c % 3 == 1 ? g.high : 0.5f * (g.low + g.high);
        };
        rows.encode_row(team, {}, 1, value);
        std::vector<float> read(24);
        rows.load_tile(team, {}, 1, 1, 0, 24, read.data(), 24);
        double const most =
            std::max(std::abs(static_cast<double>(g.low)), std::abs(static_cast<double>(g.high)));
        double const step = (static_cast<double>(g.high) - static_cast<double>(g.low)) / (whole ? 255 : 15);
        CAPTURE(g.low);
        CAPTURE(g.high);
        for (std::uint32_t c = 0; c < 24; ++c) {
          CHECK(kvmeld::is_finite(read[c]));
          if (c == 5 && spoils != 0) continue;
          double const away = std::abs(static_cast<double>(read[c]) - static_cast<double>(value(c)));
          CHECK(away <= 0.505 * step + rounding * most + 1e-9);
        }
        kvmeld::track const other = kvmeld::make_track(s, 0, 2, 1);
        rows.copy_row_across(team, other, {}, 1);
        std::vector<float> copied(24);
        rows.load_tile(team, other, 1, 1, 0, 24, copied.data(), 24);
        CHECK(copied == read);
      }
    }
  }
}

TEST_CASE("codes with a scale and a zero per group") {
  shape s = extent;
  s.key_dim = 24;
  std::vector<std::uint8_t> bytes(s.slots() * 24);
  std::vector<float> pairs(s.slots() * 6);
  kvmeld::serial_team const team(nullptr, 0);
  dice d(3);
  for (kvmeld::code_order const order :
       {kvmeld::code_order::bytes, kvmeld::code_order::halves, kvmeld::code_order::neighbours}) {
    bool const whole = order == kvmeld::code_order::bytes;
    std::uint32_t const width = whole ? 24 : 12;
    double const most = whole ? 255 : 15;
    for (std::uint32_t const groups : {1u, 3u}) {
      kvmeld::zero_point_rows const rows(kvmeld::strided<std::uint8_t>(bytes.data(), "LSTHC", s, width),
                                         kvmeld::strided<float>(pairs.data(), "LSTHC", s, 2 * groups), order);
      CHECK(rows.problem(s).empty());
      CHECK(rows.channels() == 24);
      for (int trial = 0; trial < 100; ++trial) {
        std::vector<float> row(24), read(24), moved(24);
        double const middle = number(d, -3, 3);
        for (float& x : row) x = static_cast<float>(middle + number(d, -1, 1));
        if (trial == 0) std::fill(row.begin(), row.end(), 1.75f);
        rows.encode_row(team, {}, 1, [&](std::uint32_t c) { return row[c]; });
        rows.load_tile(team, {}, 1, 1, 0, 24, read.data(), 24);
        rows.copy_row(team, {}, 2, 1);
        rows.load_tile(team, {}, 2, 1, 0, 24, moved.data(), 24);
        CHECK(moved == read);
        kvmeld::strided<std::uint8_t> const codes(bytes.data(), "LSTHC", s, width);
        kvmeld::strided<float> const beside(pairs.data(), "LSTHC", s, 2 * groups);
        for (std::uint32_t c = 0; c < 24; ++c) {
          // As LMDeploy's kernels read it, in double.
          std::uint32_t const byte = whole ? c : order == kvmeld::code_order::halves ? c % 12 : c / 2;
          bool const high = order == kvmeld::code_order::halves ? c >= 12 : c % 2 == 1;
          int const both = codes.locate({}, 1).base[byte];
          int const code = whole ? both : high ? both / 16 : both % 16;
          float const* const pair = beside.locate({}, 1).base + 2 * (c / (24 / groups));
          double const wanted = static_cast<double>(pair[0]) * (code - static_cast<double>(pair[1]));
          CHECK(static_cast<double>(read[c]) == doctest::Approx(wanted).epsilon(1e-5));
          std::uint32_t const first = c / (24 / groups) * (24 / groups);
          auto const begin = row.begin() + first, end = begin + 24 / groups;
          double const range = static_cast<double>(*std::max_element(begin, end)) -
                               static_cast<double>(*std::min_element(begin, end));
          CHECK(std::abs(static_cast<double>(read[c]) - static_cast<double>(row[c])) <=
                0.501 * range / most + 1e-5);
        }
      }
    }
  }
  hostile_groups<float>(1e-6);
  hostile_groups<kvmeld::float16>(0x1p-10);
  hostile_groups<kvmeld::bfloat16>(0x1p-7);
  kvmeld::strided<std::uint8_t> const codes(bytes.data(), "LSTHC", s, 12);
  auto const wrong = [&](std::uint32_t parameters) {
    return kvmeld::zero_point_rows(codes, kvmeld::strided<float>(pairs.data(), "LSTHC", s, parameters),
                                   kvmeld::code_order::halves)
        .problem(s);
  };
  check_text(wrong(3), {"zero_point_rows: number of channels of the parameters is 3; it must be a multiple "
                        "of 2 and above 0: a "
                        "scale and a zero per group"});
  check_text(wrong(10),
             {"zero_point_rows: number of groups is 5; it must be a divisor of 24, the number of channels"});
  check_text(kvmeld::zero_point_rows(codes, kvmeld::strided<float>(nullptr, "LSTHC", s, 2)).problem(s),
             {"zero_point_rows: parameters: base pointer is null"});
  check_text(kvmeld::zero_point_rows(kvmeld::strided<std::uint8_t>(nullptr, "LSTHC", s, 12),
                                     kvmeld::strided<float>(pairs.data(), "LSTHC", s, 2))
                 .problem(s),
             {"zero_point_rows: codes: base pointer is null"});
}

TEST_CASE("nvfp4: blocks of 16 channels") {
  constexpr double numbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  shape s = extent;
  s.key_dim = 32;
  std::vector<std::uint8_t> bytes(s.slots() * 16);
  std::vector<kvmeld::fp8_e4m3> scales(s.slots() * 2);
  kvmeld::nvfp4_rows const rows(kvmeld::strided<std::uint8_t>(bytes.data(), "LSHTC", s, 16),
                                kvmeld::strided<kvmeld::fp8_e4m3>(scales.data(), "LSHTC", s, 2), 0.5f);
  CHECK(rows.problem(s).empty());
  CHECK(rows.channels() == 32);
  kvmeld::serial_team const team(nullptr, 0);
  std::vector<float> row(32), read(32);
  // Every number of the format, both signs, and what lies halfway: the scale of the block is 1.
  for (std::uint32_t c = 0; c < 8; ++c) {
    row[c] = static_cast<float>(numbers[c]);
    row[8 + c] = -row[c];
  }
  float const halfway[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, -5.0f};
  float const even[] = {0, 1, 1, 2, 2, 4, 4, -4};
  for (std::uint32_t c = 0; c < 8; ++c) row[16 + c] = halfway[c];
  row[24] = 6;
  rows.encode_row(team, {}, 0, [&](std::uint32_t c) { return row[c]; });
  rows.load_tile(team, {}, 0, 1, 0, 32, read.data(), 32);
  for (std::uint32_t c = 0; c < 16; ++c) CHECK(read[c] == row[c]);
  for (std::uint32_t c = 0; c < 8; ++c) CHECK(read[16 + c] == even[c]);
  CHECK(bytes[0] == (0 | 1 << 4));
  CHECK(bytes[3] == (6 | 7 << 4));
  CHECK(bytes[4] == (0 | 9 << 4));  // no negative zero
  CHECK(kvmeld::element_traits<kvmeld::fp8_e4m3>::to_float(scales[0]) == 2.0f);

  dice d(8);
  for (int trial = 0; trial < 300; ++trial) {
    double const size = std::pow(10.0, number(d, -1, 2));
    for (float& x : row) x = static_cast<float>(size * number(d, -1, 1));
    rows.encode_row(team, {}, 1, [&](std::uint32_t c) { return row[c]; });
    rows.load_tile(team, {}, 1, 1, 0, 32, read.data(), 32);
    for (std::uint32_t c = 0; c < 32; ++c) {
      kvmeld::fp8_e4m3 const scale =
          kvmeld::strided<kvmeld::fp8_e4m3>(scales.data(), "LSHTC", s, 2).locate({}, 1).base[c / 16];
      std::uint8_t const both =
          kvmeld::strided<std::uint8_t>(bytes.data(), "LSHTC", s, 16).locate({}, 1).base[c / 2];
      int const code = c % 2 == 0 ? both % 16 : both / 16;
      double const wanted = (code >= 8 ? -0.5 : 0.5) *
                            static_cast<double>(kvmeld::element_traits<kvmeld::fp8_e4m3>::to_float(scale)) *
                            numbers[code % 8];
      CHECK(static_cast<double>(read[c]) == doctest::Approx(wanted).epsilon(1e-6));
      auto const first = row.begin() + c / 16 * 16;
      double most = 0;
      for (auto x = first; x != first + 16; ++x) most = std::max(most, std::abs(static_cast<double>(*x)));
      CHECK(std::abs(static_cast<double>(read[c]) - static_cast<double>(row[c])) <= most * 0.18);
    }
    rows.copy_row(team, {}, 2, 1);
    std::vector<float> moved(32);
    rows.load_tile(team, {}, 2, 1, 0, 32, moved.data(), 32);
    CHECK(moved == read);
  }
  auto const with = [&](std::uint32_t codes, std::uint32_t channels, float scale) {
    return kvmeld::nvfp4_rows(kvmeld::strided<std::uint8_t>(bytes.data(), "LSHTC", s, codes),
                              kvmeld::strided<kvmeld::fp8_e4m3>(scales.data(), "LSHTC", s, channels), scale)
        .problem(s);
  };
  check_text(with(16, 2, 0), {"nvfp4_rows: scale is 0; it must be a finite number above 0"});
  check_text(with(16, 3, 1),
             {"nvfp4_rows: number of channels of the scales is 3; it must be a sixteenth of 32"});
  check_text(with(15, 2, 1), {"nvfp4_rows: number of channels is 30; it must be a multiple of 16"});
  // Beyond what scales can say: the largest numbers saturate, the smallest blocks are zeros; NaN is 0.
  rows.encode_row(team, {}, 0, [](std::uint32_t c) { return c < 16 ? 4000.0f : 0.5f * 0.005f; });
  rows.load_tile(team, {}, 0, 1, 0, 32, read.data(), 32);
  CHECK(read[0] == 0.5f * 2688.0f);
  CHECK(read[16] == 0.0f);
  rows.encode_row(team, {}, 0, [](std::uint32_t c) {
    return c == 0    ? std::numeric_limits<float>::quiet_NaN()
           : c == 17 ? std::numeric_limits<float>::infinity()
                     : 3.0f;
  });
  rows.load_tile(team, {}, 0, 1, 0, 32, read.data(), 32);
  for (std::uint32_t c = 0; c < 32; ++c) CHECK(read[c] == (c == 0 || c == 17 ? 0.0f : 3.0f));
  kvmeld::track const other = kvmeld::make_track(s, 0, 1, 1);
  rows.copy_row_across(team, other, {}, 0);
  std::vector<float> copied(32);
  rows.load_tile(team, other, 0, 1, 0, 32, copied.data(), 32);
  CHECK(copied == read);
}

}  // namespace packed_rows_cases
