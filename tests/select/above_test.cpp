// Selection by a threshold: against counting loops, with the budget as an upper bound, within it and above
// it.
#include <kvmeld/compose/any_cache.hpp>
#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cache/refusal.hpp"
#include "support/random_cache.hpp"

namespace above_cases {

using kvmeld::quantity;
using kvmeld::select::above;
using support::dice;

namespace {

auto evicting(above const& select) {
  return kvmeld::policy{kvmeld::score::global{}, select, kvmeld::identify::evict_rest{},
                        kvmeld::merge::drop{}};
}

// Positions that a track keeps.
template <class Cache> std::vector<int> kept(Cache const& cache, kvmeld::track t) {
  std::vector<int> out;
  for (std::uint32_t i = 0; i < cache.ref().length(t); ++i)
    out.push_back(static_cast<int>(cache.ref().position(t, i)));
  return out;
}

// What a compression of one track with these scores keeps.
template <class Policy>
std::vector<int> left(Policy const& policy, std::vector<float> const& scores, std::uint32_t limit,
                      std::uint32_t frozen = 0) {
  std::uint32_t const n = static_cast<std::uint32_t>(scores.size());
  kvmeld::shape const s{1, 2, 1, 1, 1, 1, n + 3};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, policy, support::with_plan());
  kvmeld::track const t = kvmeld::make_track(s, 0, 1, 0);
  cache.open(1, n, frozen);
  support::set_scores(cache.ledger(), t, scores);
  cache.plan({1}, kvmeld::budget::entries(limit));
  std::vector<int> planned;
  for (std::uint32_t i = 0; i < n; ++i) {
    if (cache.current_plan().fates[i] == kvmeld::fate::keep) planned.push_back(static_cast<int>(i));
  }
  cache.compress({1}, kvmeld::budget::entries(limit));
  CHECK(cache.warnings(1) == kvmeld::warning::none);
  CHECK(kept(cache, t) == planned);
  return planned;
}

}  // namespace

TEST_CASE("above by hand: the threshold, ends, the upper bound, ties, NaN, a frozen beginning") {
  float const nan = kvmeld::bits_float(0x7fc00000u);
  using list = std::vector<int>;
  above by{5.0f, quantity::entries(0), quantity::entries(0)};
  CHECK(left(evicting(by), {9, 1, 5, 2, 7, 0}, 6) == list{0, 2, 4});  // within the budget
  CHECK(left(evicting(by), {9, 1, 5, 2, 7, 0}, 100) == list{0, 2, 4});
  CHECK(left(evicting(by), {9, 1, 5, 2, 7, 0}, 3) == list{0, 2, 4});
  CHECK(left(evicting(by), {9, 1, 5, 2, 7, 0}, 2) == list{0, 4});  // the best by rank
  CHECK(left(evicting(by), {5, 5, 5, 5}, 2) == list{0, 1});
  CHECK(left(evicting(by), {nan, 9, nan, 4}, 4) == list{1});
  CHECK(left(evicting(by), {1, 3, 2}, 3) == list{1});                       // none reaches it: the best stays
  CHECK(left(evicting(by), {9, 1, 5, 2, 7, 0}, 6, 2) == list{0, 1, 2, 4});  // 0 and 1 are frozen
  by.recents = quantity::entries(2);
  by.sinks = quantity::entries(1);
  CHECK(left(evicting(by), {0, 1, 5, 2, 7, 0}, 6) == list{0, 2, 4, 5});
  CHECK(left(evicting(by), {0, 9, 5, 8, 7, 0}, 4) == list{0, 1, 4, 5});
  CHECK(left(evicting(by), {7}, 1) == list{0});
  by.threshold = -0.0f;
  by.recents = by.sinks = quantity::entries(0);
  CHECK(left(evicting(by), {0.0f, -0.0f, -1e-30f}, 3) == list{0, 1});
}

TEST_CASE("above against counting loops, fixed and at run time") {
  dice d(2601);
  for (int round = 0; round < 400; ++round) {
    std::uint32_t const n = d.between(1, 90), limit = d.between(1, 100),
                        frozen = d.chance(0.3) ? d.below(n) : 0;
    std::uint32_t const first = std::max(frozen, std::min(n, d.below(5)));
    above const by{static_cast<float>(d.below(11)) - 3, quantity::entries(first),
                   quantity::entries(d.below(6))};
    std::uint32_t const last = std::min(n - first, static_cast<std::uint32_t>(by.recents.value()));
    if (first + last > limit) continue;
    std::vector<float> scores(n);
    for (float& x : scores) x = static_cast<float>(d.below(9)) - 3;  // many ties
    std::vector<int> wanted;
    for (std::uint32_t i = 0; i < n; ++i) {
      std::uint32_t better = 0;
      for (std::uint32_t j = first; j < n - last; ++j)
        better += scores[j] > scores[i] || (scores[j] == scores[i] && j < i) ? 1 : 0;
      bool const end = i < first || i >= n - last;
      if (end || (scores[i] >= by.threshold && better < limit - first - last))
        wanted.push_back(static_cast<int>(i));
    }
    if (wanted.empty())
      wanted.push_back(static_cast<int>(std::max_element(scores.begin(), scores.end()) - scores.begin()));
    CHECK(left(evicting(by), scores, limit, frozen) == wanted);
    CHECK(left(kvmeld::compose::composed_of(evicting(by)), scores, limit, frozen) == wanted);
  }
}

TEST_CASE("KVzap: the model's scores decide, each time anew, and recent entries wait") {
  kvmeld::shape const s{1, 1, 1, 1, 1, 1, 20};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::kvzap::with_threshold(0.5f, quantity::entries(3)));
  CHECK_FALSE(cache.needs_observation());
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  auto const all = kvmeld::budget::ratio(1.0);
  cache.open(0, 8);
  std::vector<float> scores{0.9f, 0.1f, 0.5f, 0.4f, 0.8f, 0.1f, 0.9f, 0.2f};
  cache.set_scores(0, {0}, kvmeld::rows_by_head<float const>(scores.data(), 1, 1, 8));
  cache.compress({0}, all);
  CHECK(kept(cache, t) == std::vector<int>{0, 2, 4, 5, 6, 7});
  CHECK(cache.warnings(0) == kvmeld::warning::none);
  // Two tokens more: 5 is no longer recent. What has no score yet stays.
  cache.append({0}, {2});
  cache.commit({0}, {2});
  cache.compress({0}, all);
  CHECK(kept(cache, t) == std::vector<int>{0, 2, 4, 6, 7, 8, 9});
  cache.compress({0}, all);
  CHECK(kept(cache, t) == std::vector<int>{0, 2, 4, 6, 7, 8, 9});
  // A bound below what reaches the threshold.
  cache.compress({0}, kvmeld::budget::entries(5));
  CHECK(kept(cache, t) == std::vector<int>{0, 6, 7, 8, 9});
}

TEST_CASE("entries below the threshold merge where the identifier makes sets") {
  dice d(2602);
  kvmeld::shape const s{1, 1, 1, 1, 8, 8, 64};
  support::engine_memory<float> memory(s);
  kvmeld::policy const merging{kvmeld::score::global{},
                               above{0.5f, quantity::entries(1), quantity::entries(2)},
                               kvmeld::identify::chunked_bipartite<kvmeld::admit::threshold>{16, {-2.0f}},
                               kvmeld::merge::degree_weighted{}};
  auto cache = support::make_cache(memory, merging);
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  cache.open(0, 40);
  memory.fill_sequence(d, 0, 0, 40, support::texture::clusters);
  std::vector<float> scores(40, 0.25f);
  for (std::size_t i = 4; i < 40; i += 6) scores[i] = 1.0f;
  support::set_scores(cache.ledger(), t, scores);
  REQUIRE(cache.compress({0}, kvmeld::budget::ratio(1.0), kvmeld::shortfall::keep).ok());
  std::uint32_t const n = cache.ref().length(t);
  CHECK(n < 40);
  double tokens = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    double const degree = static_cast<double>(cache.ref().degree(t, i));
    auto const p = static_cast<std::size_t>(cache.ref().position(t, i));
    tokens += degree;
    if (scores[p] == 1.0f) CHECK(degree == 1.0);
  }
  CHECK(tokens == 40.0);
  CHECK(std::count_if(scores.begin(), scores.end(), [](float x) { return x == 1.0f; }) == 6);
}

TEST_CASE("thresholds: what is refused") {
  above by;
  CHECK(by.problem().empty());
  by.threshold = kvmeld::bits_float(0x7f800000u);
  CHECK(by.problem() == "policy: select::above.threshold is inf; it must be a finite number");
  by.threshold = 1.0f;
  by.recents = quantity::of_length(1.5);
  CHECK(by.problem() == "policy: select::above.recents is 1.5; it must be 0 to 1, a share");
  by.recents = quantity::entries(0);
  // Scores that were never observed, also within the budget; budgets that tracks share; too many recents.
  kvmeld::shape const s{1, 1, 2, 1, 1, 1, 8};
  support::engine_memory<float> memory(s);
  kvmeld::cache_options options;
  options.budgets_over = kvmeld::budget_scope::layer;
  auto cache = support::make_cache(memory, evicting(by), options);
  cache.open(0, 4);
  cache_test::check_text(cache_test::refusal_of([&] { cache.compress({0}, kvmeld::budget::entries(8)); }),
                         {"number of observed rows", "is 0; it must be at least 1"});
  cache_test::check_text(
      cache_test::refusal_of(
          [&] { cache.compress({0}, kvmeld::budget::entries(8).over(kvmeld::budget_scope::layer)); }),
      {"scope of the budget is budget_scope::layer", "does not decide by score alone what stays"});
  by.recents = quantity::entries(3);
  auto few = support::make_cache(memory, kvmeld::preset::kvzap::with_threshold(1.0f, by.recents));
  few.open(0, 4);
  cache_test::check_text(cache_test::refusal_of([&] { few.compress({0}, kvmeld::budget::entries(2)); }),
                         {"budget of track", "is 2; it must be at least 3"});
  CHECK_FALSE(few.exact());
  CHECK(few.length_after(0, kvmeld::budget::entries(3)) == 3);
  CHECK(few.length_after(0, kvmeld::budget::entries(8)) == 4);  // at most
}

}  // namespace above_cases
