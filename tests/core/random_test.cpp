// Philox4x32-10 against the known answers of Random123 (Salmon et al., SC'11), and the draws made from it.
#include <kvmeld/core/random.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

TEST_CASE("Philox4x32-10 gives the published answers") {
  struct answer {
    std::uint32_t counter[4], key[2], result[4];
  };
  constexpr std::uint32_t ones = 0xffffffffu;
  answer const answers[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}},
      {{ones, ones, ones, ones}, {ones, ones}, {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}},
      {{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
       {0xa4093822u, 0x299f31d0u},
       {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}}};
  for (answer const& a : answers) {
    auto const r =
        kvmeld::philox4x32({{a.counter[0], a.counter[1], a.counter[2], a.counter[3]}}, a.key[0], a.key[1]);
    for (int i = 0; i < 4; ++i) CHECK(r.word[i] == a.result[i]);
  }
}

TEST_CASE("uniform01 is uniform, and a draw depends on its key alone") {
  constexpr std::uint32_t n = 20000;
  double sum = 0, square = 0;
  std::vector<float> forward(n);
  std::vector<std::uint32_t> bins(16, 0);
  for (std::uint32_t i = 0; i < n; ++i) {
    float const u = kvmeld::uniform01({42, 3, 1, 2, i});
    REQUIRE(u >= 0.0f);
    REQUIRE(u < 1.0f);
    REQUIRE(std::floor(u * 16777216.0f) == u * 16777216.0f);
    forward[i] = u;
    sum += static_cast<double>(u);
    square += static_cast<double>(u) * static_cast<double>(u);
    ++bins[static_cast<std::size_t>(u * 16.0f)];
  }
  CHECK(std::fabs(sum / n - 0.5) < 0.01);  // five deviations
  CHECK(std::fabs(square / n - 1.0 / 3) < 0.011);
  for (std::uint32_t b : bins) CHECK(std::fabs(b - n / 16.0) < 6 * std::sqrt(n / 16.0));
  std::size_t changed = 0;
  for (std::uint32_t i = n; i-- > 0;) changed += kvmeld::uniform01({42, 3, 1, 2, i}) == forward[i] ? 0 : 1;
  CHECK(changed == 0);
}

TEST_CASE("every field of the key makes another draw") {
  float const base = kvmeld::uniform01({7, 1, 2, 3, 4});
  CHECK(base != kvmeld::uniform01({8, 1, 2, 3, 4}));
  CHECK(base != kvmeld::uniform01({7 + (std::uint64_t{1} << 32), 1, 2, 3, 4}));
  CHECK(base != kvmeld::uniform01({7, 2, 2, 3, 4}));
  CHECK(base != kvmeld::uniform01({7, 1, 3, 3, 4}));
  CHECK(base != kvmeld::uniform01({7, 1, 2, 4, 4}));
  CHECK(base != kvmeld::uniform01({7, 1, 2, 3, 5}));
}
