// Two scores in one, merging what it would evict: what it pins is what plain loops over the last rows of
// attention and over keys say, and the rest is clustered. The leverage_dropkv preset: what it keeps is what
// plain loops over the last queries, keys and values say.
#include <doctest/doctest.h>

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "reference/last_queries.hpp"
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

auto clustering() {
  using kvmeld::quantity;
  kvmeld::policy const evicting{
      kvmeld::score::blended<kvmeld::score::leverage, kvmeld::score::local>{},
      kvmeld::select::top{quantity::at_most(4, 0.25), quantity::of_budget(0.15), quantity::rest_of_budget()},
      kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}};
  return kvmeld::preset::merging(evicting, quantity::of_budget(0.6));
}

}  // namespace

TEST_CASE("merging keeps what the last queries look at and what no key can stand in for, and clusters "
          "everything else") {
  dice d(77);
  for (int round = 0; round < 8; ++round) {
    std::uint32_t const n = d.between(150, 500);
    kvmeld::shape const s{1, 1, 1, 1, 12, 6, n};
    auto const k = support::random_rows(d, n, s.key_dim, support::texture::walk);
    auto const v = support::random_rows(d, n, s.value_dim, support::texture::noise);
    std::vector<float> keys, values;
    for (auto const& row : k) keys.insert(keys.end(), row.begin(), row.end());
    for (auto const& row : v) values.insert(values.end(), row.begin(), row.end());
    kvmeld::merged_cache cache{kvmeld::host_executor(1), clustering(),
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
  CHECK(kvmeld::name_of_policy(clustering()) ==
        "leverage+local x top x chunked_bipartite:top_share x degree_weighted");
}

TEST_CASE(
    "the leverage_dropkv preset keeps what the outputs of the last queries need and what no key can stand in "
    "for") {
  dice d(78);
  for (int round = 0; round < 8; ++round) {
    std::uint32_t const n = d.between(100, 300);
    kvmeld::shape const s{1, 1, 1, 2, 12, 6, n};
    support::engine_memory<float> memory(s);
    auto cache = support::make_cache(memory, kvmeld::preset::leverage_dropkv::for_budget());
    cache.open(0, n);
    memory.fill_sequence(d, 0, 0, n, support::texture::walk);
    std::uint32_t const queries = 20, window = 8;  // more than the window
    std::vector<float> query(std::size_t{queries} * 2 * s.key_dim);
    for (float& x : query) x = static_cast<float>(d.uniform() * 2 - 1);
    cache.observe({0, 0, queries}, kvmeld::rows_by_token(query.data(), queries, 2, s.key_dim), {});

    auto const track = support::read_track(cache.ref(), cache.ref().where(0, 0, 0));
    std::vector<reference::shown_queries> heads(2);
    for (std::uint32_t h = 0; h < 2; ++h) {
      for (std::uint32_t q = queries - window; q < queries; ++q) {
        reference::row scaled;
        for (std::uint32_t c = 0; c < s.key_dim; ++c) {
          double const x = static_cast<double>(query[(std::size_t{q} * 2 + h) * s.key_dim + c]);
          scaled.push_back(x / std::sqrt(static_cast<double>(s.key_dim)));
        }
        heads[h].rows.push_back(scaled);
        heads[h].position.push_back(static_cast<long>(n - queries + q));
      }
    }
    auto const changes = reference::pooled(reference::change_without(heads, track), 11, false);
    auto const by_key = reference::standardised(reference::leverage(track, 0.1), track.bad);
    std::vector<double> score = reference::standardised(changes, track.bad);
    for (std::uint32_t i = 0; i < n; ++i) score[i] += by_key[i];
    std::uint32_t const limit = d.between(n / 6, n / 2), sinks = std::min(4u, limit / 4),
                        recents = std::min(32u, limit / 4);
    std::vector<std::uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0u);
    auto const rank = [&](std::uint32_t i) { return i < sinks || i >= n - recents ? 1e300 : score[i]; };
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return rank(a) > rank(b); });
    REQUIRE(rank(order[limit - 1]) - rank(order[limit]) > 1e-5);  // float and double agree on who stays
    std::vector<std::uint32_t> wanted(order.begin(), order.begin() + limit);
    std::sort(wanted.begin(), wanted.end());

    cache.compress({0}, kvmeld::budget::entries(limit));
    auto const ref = cache.ref();
    kvmeld::track const t = ref.where(0, 0, 0);
    REQUIRE(ref.length(t) == limit);
    CHECK(cache.warnings(0) == kvmeld::warning::none);
    for (std::uint32_t i = 0; i < limit; ++i) {
      CHECK(static_cast<std::uint32_t>(ref.position(t, i)) == wanted[i]);
      CHECK(ref.degree(t, i) == 1.0f);
    }
  }
  CHECK(kvmeld::name_of_policy(kvmeld::preset::leverage_dropkv::for_budget()) ==
        "leverage+drop_error x top x evict_rest x drop");
  CHECK(kvmeld::name_of_policy(kvmeld::preset::recommended::with_second_reading({})) ==
        "max_attention x top x centroids x score_weighted");
  float const weights[10] = {};
  auto const learned = kvmeld::preset::recommended::with_learned({weights, 1, 1, 4}, {});
  CHECK(kvmeld::name_of_policy(learned) == "learned x top x centroids x score_weighted");
  CHECK(learned.score.weights.data == weights);
}

}  // namespace recommended_cases
