// More sets than are merged at a time, in values that lie along tokens.
#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "support/random_cache.hpp"

namespace many_sets_cases {

namespace {

// Entry i becomes part of the entry `apart` before it, in blocks of 2 apart.
struct pair_across {
  std::uint32_t apart = 1;
  explicit pair_across(std::uint32_t a) : apart(a) {}
  template <class Round> void admit(Round& round) const {
    std::uint32_t const blocks = round.live() / (2 * apart);
    round.for_each(blocks * apart, [&](std::uint32_t i) {
      std::uint32_t const into = i / apart * 2 * apart + i % apart;
      round.merge(into + apart, into);
    });
  }
};

// Blocks of `size` entries become one entry each.
struct block_wise {
  std::uint32_t size = 2;
  explicit block_wise(std::uint32_t s) : size(s) {}
  template <class Round> void admit(Round& round) const {
    round.for_each(round.live() / size * size, [&](std::uint32_t i) {
      if (i % size != 0) round.merge(i, i / size * size);
    });
  }
};

constexpr std::uint32_t n = 6720, channels = 20;

// Values [channel][slot] of one track before and after a compression to `left` entries.
struct values {
  std::vector<float> before, after;
};
template <class Identify>
values compressed(Identify const& identify, std::uint32_t left, std::uint64_t seed) {
  kvmeld::shape const s{1, 1, 1, 1, channels, channels, n};
  support::dice d(seed);
  std::vector<float> k(std::size_t{n} * channels), v(k.size());
  for (float& x : k) x = static_cast<float>(d.normal());
  for (float& x : v) x = static_cast<float>(d.normal());
  values out{v, {}};
  kvmeld::policy const p{
      kvmeld::score::none{},
      kvmeld::select::sinks_and_recents{kvmeld::quantity::entries(0), kvmeld::quantity::entries(0)}, identify,
      kvmeld::merge::average{}};
  kvmeld::merged_cache cache{kvmeld::host_executor(2), p,
                             kvmeld::kv{kvmeld::strided<float>(k.data(), "LSHTC", s, channels),
                                        kvmeld::transposed<float>(v.data(), {0, 0, 0, 1, n}, s, channels)},
                             kvmeld::cache_options{s}};
  cache.open(0, n);
  cache.compress({0}, kvmeld::budget::entries(left), kvmeld::shortfall::keep);
  REQUIRE(cache.length(0, 0, 0) == left);
  out.after = v;
  return out;
}

}  // namespace

TEST_CASE("thousands of sets along tokens are merged one like another") {
  for (std::uint32_t apart : {1u, 7u, 60u, 3360u}) {
    CAPTURE(apart);
    values const v = compressed(pair_across(apart), n / 2, apart);
    std::size_t wrong = 0;
    for (std::uint32_t i = 0; i < n / 2; ++i) {
      std::uint32_t const a = i / apart * 2 * apart + i % apart, b = a + apart;
      for (std::size_t row = 0; row < std::size_t{n} * channels; row += n) {
        float const mean = 0.5f * v.before[row + a] + 0.5f * v.before[row + b];
        wrong += v.after[row + i] == mean ? 0 : 1;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("sets of many members along tokens") {
  for (std::uint32_t size : {3u, 16u, 40u, 120u, 3360u}) {
    CAPTURE(size);
    values const v = compressed(block_wise(size), n / size, size);
    double worst = 0;
    for (std::uint32_t i = 0; i < n / size; ++i) {
      for (std::size_t row = 0; row < std::size_t{n} * channels; row += n) {
        double sum = 0;
        for (std::uint32_t j = 0; j < size; ++j) sum += static_cast<double>(v.before[row + i * size + j]);
        worst = std::max(worst, std::fabs(static_cast<double>(v.after[row + i]) - sum / size));
      }
    }
    CHECK(worst < 1e-5);
  }
}

}  // namespace many_sets_cases
