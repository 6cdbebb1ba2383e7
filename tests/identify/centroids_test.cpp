// k-means against loops over all pairs, and what holds for any rows: the budget, the degrees, the order.
#include <doctest/doctest.h>
#include <kvmeld/identify/centroids.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "reference/attention.hpp"
#include "reference/centroids.hpp"
#include "support/random_cache.hpp"
#include "support/refusal_rule.hpp"
#include "support/track_view.hpp"

namespace centroids_cases {

using kvmeld::quantity;
using support::dice;

namespace {

using clustering = kvmeld::policy<kvmeld::score::none, kvmeld::select::sinks_and_recents,
                                  kvmeld::identify::centroids, kvmeld::merge::degree_weighted>;

clustering policy_of(std::uint32_t ends, std::uint32_t chunk, std::uint32_t steps,
                     kvmeld::rope_params const& rope = {}) {
  return {{}, {quantity::entries(ends), quantity::entries(ends)}, {chunk, steps, rope}, {}};
}

std::vector<std::uint32_t> planned(support::engine_memory<float>& memory, clustering const& policy,
                                   std::uint32_t n, std::uint32_t limit) {
  auto cache = make_cache(memory, policy, support::with_plan());
  cache.open(0, n);
  cache.plan({0}, kvmeld::budget::entries(limit), kvmeld::shortfall::keep);
  kvmeld::plan_ref const& p = cache.current_plan();
  for (std::uint32_t i = 0; i < n; ++i) CHECK((p.fates[i] == kvmeld::fate::keep) == (p.target[i] == i));
  return {p.target, p.target + n};
}

}  // namespace

TEST_CASE("clusters and pivots are those of the naive loops") {
  dice d(61);
  support::tally count;
  for (int i = 0; i < 400; ++i) {
    std::uint32_t const n = d.between(4, 200), ends = d.below(std::min((n - 2) / 2, 5u) + 1),
                        dim = d.between(2, 40);
    constexpr std::uint32_t chunks[] = {2, 3, 16, 33, 64, 1024};
    std::uint32_t const chunk = d.pick(chunks), steps = d.below(5), limit = d.between(2 * ends + 1, n - 1);
    support::engine_memory<float> memory({1, 1, 1, 1, dim, 1, n});
    kvmeld::track const t{0, 0, 0, 0};
    memory.fill_sequence(d, 0, 0, n, d.chance(0.3) ? support::texture::noise : support::texture::clusters);
    if (d.chance(0.2))
      support::write_row(memory.tensors().keys, t, d.below(n), {kvmeld::bits_float(0x7f800000u)});
    reference::attention_options turned;  // keys as they were before their rotation, which is undone
    kvmeld::rope_params rope;
    if (d.chance(0.5)) {
      bool const halves = d.chance(0.5);
      rope.pairing = halves ? kvmeld::rope_pairing::half_split : kvmeld::rope_pairing::interleaved;
      turned.rope = halves ? reference::rotation::half_split : reference::rotation::interleaved;
      turned.rotary = rope.rotary_dim = 2 * d.between(1, dim / 2);
      turned.rope_base = rope.base = 50;
    }
    auto cache = make_cache(memory, policy_of(ends, chunk, steps, rope));
    cache.open(0, n);
    reference::track_state track = support::read_track(cache.ref(), t);
    for (std::uint32_t s = 0; rope.active() && s < n; ++s)
      track.keys[s] = reference::rotated(track.keys[s], -static_cast<long>(s), turned);
    reference::indices list;
    for (std::uint32_t s = ends; s + ends < n; ++s) {
      if (!track.bad[s]) list.push_back(s);
    }
    std::size_t const excess = n - limit;
    double margin = reference::no_gap;
    std::vector<std::uint32_t> expected(n);
    std::iota(expected.begin(), expected.end(), 0u);
    if (!list.empty()) {
      std::size_t const clusters = list.size() > excess ? list.size() - excess : 1;
      auto const targets = reference::centroid_targets(track, list, clusters, chunk,
                                                       kvmeld::identify::centroids::most, steps, margin);
      for (std::size_t k = 0; k < list.size(); ++k)
        expected[list[k]] = static_cast<std::uint32_t>(list[targets[k]]);
    }
    if (margin < 2e-5) {
      ++count.skipped;
      continue;
    }
    ++count.compared;
    CHECK(planned(memory, policy_of(ends, chunk, steps, rope), n, limit) == expected);
  }
  MESSAGE("compared ", count.compared, " plans, skipped ", count.skipped);
  CHECK(count.compared > 250);
}

TEST_CASE("a budget is met whatever the rows, equal ones too; tokens are conserved") {
  dice d(62);
  for (int i = 0; i < 300; ++i) {
    std::uint32_t const n = d.between(2, 300), dim = d.between(1, 24), limit = d.between(1, n);
    support::engine_memory<float> memory({1, 1, 1, 1, dim, 3, n});
    kvmeld::track const t{0, 0, 0, 0};
    memory.fill_sequence(d, 0, 0, n, support::texture::noise);
    std::uint32_t const kinds = d.between(1, 4);
    for (std::uint32_t s = 0; s < n; ++s) {
      if (d.chance(0.7))
        support::write_row(memory.tensors().keys, t, s,
                           std::vector<float>(dim, static_cast<float>(d.below(kinds))));
    }
    auto cache = make_cache(memory, policy_of(0, d.between(2, 80), d.below(4)));
    cache.open(0, n);
    std::uint32_t left = n;
    for (std::uint32_t target : {limit, std::max(1u, limit / 3)}) {  // centroids become centroids
      cache.compress({0}, kvmeld::budget::entries(target), kvmeld::shortfall::keep);
      left = std::min(left, target);
      REQUIRE(cache.longest(0) == left);
      kvmeld::ledger_ref const& ledger = cache.ledger();
      double tokens = 0;
      for (std::uint32_t s = 0; s < left; ++s) {
        tokens += static_cast<double>(ledger.degree[ledger.at(t, s)]);
        if (s > 0) CHECK(ledger.position[ledger.at(t, s)] > ledger.position[ledger.at(t, s - 1)]);
      }
      CHECK(tokens == n);
      CHECK(cache.warnings(0) == 0);
    }
  }
}

TEST_CASE("what is far in time and close in space merges") {
  support::engine_memory<float> memory({1, 1, 1, 1, 2, 1, 6});
  memory.fill({0, 0, 0, 0}, 0, {{1, 0}, {0, 5}, {1, 0.1f}, {0, 5.1f}, {1, 0.2f}, {0, 5.2f}},
              support::rows{{1}, {2}, {3}, {4}, {5}, {6}});
  CHECK(planned(memory, policy_of(0, 1024, 6), 6, 2) == std::vector<std::uint32_t>{2, 3, 2, 3, 2, 3});
}

TEST_CASE("tracks that share a budget keep the best entries of all whole, and have equally many centroids") {
  using sharing = kvmeld::policy<kvmeld::score::given, kvmeld::select::top, kvmeld::identify::centroids,
                                 kvmeld::merge::degree_weighted>;
  dice d(63);
  for (int i = 0; i < 60; ++i) {
    std::uint32_t const n = d.between(40, 120), entries = d.between(10, n / 2), layers = d.between(1, 3),
                        sinks = d.below(3), recents = d.below(3);
    support::engine_memory<float> memory({layers, 1, 2, 1, 8, 8, n});
    memory.fill_sequence(d, 0, 0, n, support::texture::clusters);
    kvmeld::cache_options options;
    options.budgets_over = kvmeld::budget_scope::all_layers;
    bool const by_share = d.chance(0.5);
    sharing const policy{{},
                         {quantity::entries(sinks), quantity::entries(recents),
                          by_share ? quantity::of_budget(0.5) : quantity::rest_of_budget(0.25)},
                         {},
                         {}};
    std::uint32_t const sets = by_share ? entries - sinks - recents - entries / 2 : std::max(1u, entries / 4);
    auto cache = make_cache(memory, policy, options);
    cache.open(0, n);
    std::vector<float> all;  // of the entries between the ends
    std::vector<std::vector<float>> scores;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      std::vector<float> rows(std::size_t{2} * n);
      for (float& x : rows) x = static_cast<float>(d.uniform() + 0.3 * layer);  // the first layers have few
      for (std::uint32_t h = 0; h < 2; ++h) {
        scores.emplace_back(rows.begin() + h * n, rows.begin() + (h + 1) * n);
        all.insert(all.end(), scores.back().begin() + sinks, scores.back().end() - recents);
      }
      cache.set_scores(layer, {0}, kvmeld::rows_by_head<float const>(rows.data(), 1, 2, n));
    }
    cache.compress({0}, kvmeld::budget::entries(entries).over(kvmeld::budget_scope::all_layers, 0.0));
    std::size_t const tracks = scores.size(), whole = tracks * (entries - sinks - recents - sets);
    std::sort(all.rbegin(), all.rend());
    std::size_t held = 0;
    for (std::uint32_t k = 0; k < tracks; ++k) {
      kvmeld::track const t = kvmeld::make_track(cache.options().extent, k / 2, 0, k % 2);
      auto const& ledger = cache.ledger();
      std::map<kvmeld::position_t, float> degree_at;
      std::uint32_t const length = cache.length(k / 2, 0, k % 2);
      float tokens = 0;
      for (std::uint32_t s = 0; s < length; ++s)
        tokens += degree_at[ledger.position[ledger.at(t, s)]] = ledger.degree[ledger.at(t, s)];
      CHECK(tokens == n);
      std::uint32_t best = 0;
      for (std::uint32_t p = 0; p < n; ++p) {
        bool const end = p < sinks || p + recents >= n;
        bool const stays = end || (whole != 0 && scores[k][p] >= all[whole - 1]);
        if (stays) CHECK(degree_at[static_cast<int>(p)] == 1);
        best += stays && !end ? 1 : 0;
      }
      CHECK(length == std::min(n, sinks + recents + best + sets));
      held += length;
    }
    CHECK(held == std::size_t{entries} * tracks);
  }
}

TEST_CASE("keys that are the same before their rotation merge, however far they have turned") {
  support::engine_memory<float> memory({1, 1, 1, 1, 2, 1, 6});
  float const c = std::cos(1.0f), s = std::sin(1.0f);
  float x = 1, y = 0;  // turns by 1 from each entry to the next
  support::rows keys;
  for (int i = 0; i < 6; ++i) {
    keys.push_back(i % 2 == 0 ? std::vector<float>{x, y} : std::vector<float>{-3 * x, -3 * y});
    float const turned = x * c - y * s;
    y = x * s + y * c;
    x = turned;
  }
  memory.fill({0, 0, 0, 0}, 0, keys, support::rows{{1}, {2}, {3}, {4}, {5}, {6}});
  kvmeld::rope_params const rope{kvmeld::rope_pairing::half_split};
  // Which of them is nearest to their mean, only rounding tells.
  std::vector<std::uint32_t> const target = planned(memory, policy_of(0, 1024, 6, rope), 6, 2);
  for (std::uint32_t i = 0; i < 6; ++i) CHECK(target[i] == target[i % 2]);
  CHECK(target[0] % 2 == 0);
  CHECK(target[1] % 2 == 1);
}

TEST_CASE("rotations that do not fit the cache are refused") {
  support::engine_memory<float> memory({1, 1, 1, 1, 4, 1, 6});
  kvmeld::rope_params rope{kvmeld::rope_pairing::half_split};
  rope.rotary_dim = 6;
  CHECK_THROWS_WITH_AS(make_cache(memory, policy_of(0, 8, 6, rope)),
                       doctest::Contains("rope.rotary_dim is 6; it must be 0, which means all, or an even "
                                         "number of at most 4"),
                       kvmeld::invalid_argument);
  rope.rotary_dim = 0;
  rope.positions = kvmeld::rope_positions::slot;
  CHECK_THROWS_WITH_AS(make_cache(memory, policy_of(0, 8, 6, rope)),
                       doctest::Contains("identify::centroids.rope.positions is rope_positions::slot"),
                       kvmeld::invalid_argument);
}

TEST_CASE("a stretch has two entries at least") {
  CHECK(kvmeld::configuration_problem(policy_of(0, 1, 6)) ==
        "policy: identify::centroids.chunk is 1; it must be at least 2");
  CHECK(kvmeld::configuration_problem(policy_of(0, 2, 0)).empty());
}

}  // namespace centroids_cases
