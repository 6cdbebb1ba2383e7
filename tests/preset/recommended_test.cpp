// The recommended preset: what it pins is what plain loops over the last rows of attention and over keys say,
// and the rest is clustered.
#include <doctest/doctest.h>

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "reference/row_scores.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace recommended_cases {

namespace {

using support::dice;

// Entries pinned by definition: sinks, recents, and of those between the best by pooled sums of the last 32
// rows plus leverage, both standardised. `gap`: between the last one pinned and the first one not.
std::vector<bool> pinned(std::vector<std::vector<double>> const& rows, reference::track_state const& track,
                         std::uint32_t limit, double& gap) {
  std::uint32_t const n = static_cast<std::uint32_t>(track.size());
  std::uint32_t const sinks = std::min(4u, limit / 4),
                      recents = static_cast<std::uint32_t>(0.15 * limit + 1e-9),
                      heavy = static_cast<std::uint32_t>(0.6 * limit + 1e-9), window = 32;
  std::vector<double> sum(n, 0.0), score(n, 0.0);
  for (std::size_t r = rows.size() - window; r < rows.size(); ++r) {
    for (std::uint32_t j = 0; j < n; ++j) sum[j] += rows[r][j];
  }
  std::uint32_t const before = n - window;
  for (std::uint32_t j = 0; j < n; ++j) {
    if (j >= before) {
      score[j] = sum[j];
      continue;
    }
    std::uint32_t const low = j < 3 ? 0 : j - 3, high = std::min(before - 1, j + 3);
    for (std::uint32_t i = low; i <= high; ++i) score[j] += sum[i] / (high - low + 1);
  }
  auto const by_key = reference::standardised(reference::leverage(track, 0.1), track.bad);
  score = reference::standardised(score, track.bad);
  for (std::uint32_t j = 0; j < n; ++j) score[j] += by_key[j];
  std::vector<bool> out(n, false);
  std::vector<std::uint32_t> middle;
  for (std::uint32_t j = 0; j < n; ++j) {
    if (j < sinks || j >= n - recents) {
      out[j] = true;
    } else {
      middle.push_back(j);
    }
  }
  std::stable_sort(middle.begin(), middle.end(), [&](auto a, auto b) { return score[a] > score[b]; });
  for (std::uint32_t i = 0; i < heavy; ++i) out[middle[i]] = true;
  gap = score[middle[heavy - 1]] - score[middle[heavy]];
  return out;
}

}  // namespace

TEST_CASE("the recommended preset keeps what the last queries look at and what no key can stand in for, and "
          "clusters everything else") {
  dice d(77);
  for (int round = 0; round < 8; ++round) {
    std::uint32_t const n = d.between(150, 500);
    kvmeld::shape const s{1, 1, 1, 1, 12, 6, n};
    auto const k = support::random_rows(d, n, s.key_dim, support::texture::walk);
    auto const v = support::random_rows(d, n, s.value_dim, support::texture::noise);
    std::vector<float> keys, values;
    for (auto const& row : k) keys.insert(keys.end(), row.begin(), row.end());
    for (auto const& row : v) values.insert(values.end(), row.begin(), row.end());
    kvmeld::merged_cache cache{kvmeld::host_executor(1), kvmeld::preset::recommended::for_budget(),
                               kvmeld::kv{kvmeld::strided<float>(keys.data(), "LSHTC", s, s.key_dim),
                                          kvmeld::strided<float>(values.data(), "LSHTC", s, s.value_dim)},
                               kvmeld::cache_options{s}};
    cache.open(0, n);
    std::uint32_t const queries = 40;  // more than the window
    std::vector<float> rows(std::size_t{queries} * n);
    std::vector<std::vector<double>> naive(queries, std::vector<double>(n));
    for (std::uint32_t r = 0; r < queries; ++r) {
      for (std::uint32_t j = 0; j < n; ++j) {
        float const p = static_cast<float>(d.uniform() * d.uniform() / n);
        rows[std::size_t{r} * n + j] = p;
        naive[r][j] = static_cast<double>(p);
      }
    }
    kvmeld::attention_params all;
    all.causal = false;
    cache.observe_rows({0, 0, queries}, kvmeld::rows_by_head(rows.data(), queries, 1, n), all);
    std::uint32_t const limit = d.between(n / 6, n / 2);
    double gap = 0;
    auto const kept = pinned(naive, support::read_track(cache.ref(), cache.ref().where(0, 0, 0)), limit, gap);
    REQUIRE(gap > 1e-5);  // float and double agree on who is pinned
    cache.compress({0}, kvmeld::budget::entries(limit));

    auto const ref = cache.ref();
    kvmeld::track const t = ref.where(0, 0, 0);
    REQUIRE(ref.length(t) == limit);
    CHECK(cache.warnings(0) == kvmeld::warning::none);
    float degrees = 0;
    std::uint32_t whole = 0;
    for (kvmeld::slot_t slot = 0; slot < limit; ++slot) {
      degrees += ref.degree(t, slot);
      auto const at = static_cast<std::uint32_t>(ref.position(t, slot));
      if (!kept[at]) continue;
      ++whole;
      CHECK(ref.degree(t, slot) == 1.0f);
      for (std::uint32_t c = 0; c < s.key_dim; ++c) CHECK(keys[slot * s.key_dim + c] == k[at][c]);
      for (std::uint32_t c = 0; c < s.value_dim; ++c) CHECK(values[slot * s.value_dim + c] == v[at][c]);
    }
    CHECK(whole == static_cast<std::uint32_t>(std::count(kept.begin(), kept.end(), true)));
    CHECK(degrees == static_cast<float>(n));  // nothing was dropped
  }
  CHECK(kvmeld::name_of_policy(kvmeld::preset::recommended::for_budget()) ==
        "leverage+local x top x chunked_bipartite:top_share x degree_weighted");
}

}  // namespace recommended_cases
