// Chelsea's outlier heads against plain loops over all pairs of a chunk.
#include <doctest/doctest.h>

#include <kvmeld/calibrate/outlier_heads.hpp>
#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cache/refusal.hpp"
#include "support/random_cache.hpp"

namespace {

using cache_test::refusal_of;
using support::dice;

double cosine(std::vector<float> const& a, std::vector<float> const& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t c = 0; c < a.size(); ++c) {
    ab += static_cast<double>(a[c]) * static_cast<double>(b[c]);
    aa += static_cast<double>(a[c]) * static_cast<double>(a[c]);
    bb += static_cast<double>(b[c]) * static_cast<double>(b[c]);
  }
  return aa == 0 || bb == 0 ? 0 : ab / std::sqrt(aa * bb);
}

// Entries 1, 3, 5 ... of each chunk of the middle that find no entry 2, 4 ... of it above the threshold.
double unmatched(support::rows const& keys, std::size_t sinks, std::size_t recents, std::size_t chunk,
                 double threshold) {
  std::size_t const end = keys.size() - recents;
  std::size_t sources = 0, lonely = 0;
  for (std::size_t begin = sinks; begin < end; begin += chunk) {
    std::size_t const stop = std::min(end, begin + chunk);
    for (std::size_t a = begin; a < stop; a += 2) {
      double best = -2;
      for (std::size_t b = begin + 1; b < stop; b += 2) best = std::max(best, cosine(keys[a], keys[b]));
      ++sources;
      lonely += best > threshold ? 0 : 1;
    }
  }
  return static_cast<double>(lonely) / static_cast<double>(sources);
}

}  // namespace

TEST_CASE("a head's share of unmatched entries is that of loops over all pairs") {
  dice d(31);
  for (int round = 0; round < 12; ++round) {
    kvmeld::shape const s{2, 2, 3, 1, d.between(4, 40), 4, d.between(120, 400)};
    std::uint32_t const tokens = d.between(90, s.capacity);
    std::uint32_t const chunk = d.pick(std::vector<std::uint32_t>{16, 50, 256});
    float const threshold = d.chance(0.5) ? 0.8f : 0.5f;
    std::vector<float> k(s.slots() * s.key_dim), v(s.slots() * s.value_dim, 1.0f);
    kvmeld::strided<float> const keys(k.data(), "LSHTC", s, s.key_dim),
        values(v.data(), "LSHTC", s, s.value_dim);
    std::vector<double> wanted;
    for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
      for (std::uint32_t head = 0; head < s.kv_heads; ++head) {
        auto const how = head == 0 ? support::texture::noise
                                   : (head == 1 ? support::texture::walk : support::texture::clusters);
        auto const rows = support::random_rows(d, tokens, s.key_dim, how);
        kvmeld::track const t = kvmeld::make_track(s, layer, 1, head);
        for (std::uint32_t i = 0; i < tokens; ++i) {
          std::copy(rows[i].begin(), rows[i].end(),
                    k.data() + (std::size_t{t.index} * s.capacity + i) * s.key_dim);
        }
        wanted.push_back(unmatched(rows, 3, 20, chunk, static_cast<double>(threshold)));
      }
    }
    std::vector<float> const before = k;
    auto const got = kvmeld::calibrate::unmatched_shares(
        kvmeld::host_executor(1), kvmeld::kv{keys, values}, s, 1, tokens,
        {threshold, chunk, kvmeld::quantity::entries(3), kvmeld::quantity::entries(20)});
    REQUIRE(got.size() == wanted.size());
    for (std::size_t h = 0; h < got.size(); ++h) CHECK(got[h] == doctest::Approx(wanted[h]));
    CHECK(k == before);
  }
}

TEST_CASE("the largest shares are outliers, and the others pay for them") {
  using kvmeld::calibrate::outlier_heads;
  using kvmeld::calibrate::outlier_shares;
  std::vector<double> const unmatched{0.1, 0.9, 0.3, 0.9, 0.2};
  CHECK(outlier_heads(unmatched, 0.4) == std::vector<bool>{false, true, false, true, false});
  CHECK(outlier_heads(unmatched) ==
        std::vector<bool>{false, true, false, false, false});  // one of five, though 4 % is less
  CHECK(outlier_heads(unmatched, 0.0) == std::vector<bool>(5, false));
  // 4 % of 100 heads whole: 20 % in all leaves the others 16.7 % (Chelsea, section 4.3).
  std::vector<bool> four(100, false);
  for (std::size_t h = 0; h < 4; ++h) four[h * 7] = true;
  auto const share = outlier_shares(four, 0.2);
  double total = 0;
  for (std::size_t h = 0; h < 100; ++h) {
    CHECK(share[h] == doctest::Approx(four[h] ? 1.0 : 16.0 / 96));
    total += share[h];
  }
  CHECK(total == doctest::Approx(20.0));
  CHECK(outlier_shares(std::vector<bool>(3, true), 1.0) == std::vector<double>(3, 1.0));

  CHECK(refusal_of([&] { outlier_heads(unmatched, 1.0); }) ==
        "outlier_heads: fraction is 1; it must be at least 0 and below 1");
  CHECK(refusal_of([&] { outlier_heads({}); }) ==
        "outlier_heads: number of shares is 0; it must be at least 1, one per head");
  CHECK(refusal_of([&] { outlier_shares(four, 0.04); }) ==
        "outlier_shares: ratio is 0.04; it must be above the share of heads that keep everything, 4 of 100, "
        "and at most 1");
}
