// Scores that the engine brings: which entries stay, what merging, forks, saving and lanes do to them, and
// what is refused.
#include <doctest/doctest.h>

#include <kvmeld/compose/any_cache.hpp>
#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing/check_policy.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "cache/refusal.hpp"
#include "support/random_cache.hpp"

namespace given_score_cases {

using cache_test::check_text;
using cache_test::refusal_of;
using kvmeld::budget;
using kvmeld::quantity;
using support::dice;

namespace {

constexpr kvmeld::shape extent{2, 3, 2, 3, 8, 6, 40};

auto evicting() {
  return kvmeld::policy{
      kvmeld::score::given{},
      kvmeld::select::top{quantity::entries(0), quantity::entries(0), quantity::rest_of_budget()},
      kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}};
}

// Positions of the entries of a track.
template <class Cache> std::vector<int> held(Cache const& cache, kvmeld::track t) {
  kvmeld::ledger_ref const& l = cache.ledger();
  std::vector<int> out;
  for (kvmeld::slot_t s = 0; s < l.length[t.index]; ++s) out.push_back(l.position[l.at(t, s)]);
  return out;
}

template <class T> void keeps_the_best(dice& d) {
  support::engine_memory<float> memory(extent);
  auto cache = support::make_cache(memory, evicting());
  CHECK_FALSE(cache.needs_observation());
  std::uint32_t const n = d.between(2, 36), other = d.between(1, 20);
  cache.open(0, other);
  cache.open(2, n);
  // Rows with gaps between them; some numbers are equal.
  std::uint32_t const gap = d.below(4), row = extent.capacity + gap;
  std::vector<T> scores(std::size_t{2} * extent.kv_heads * row);
  for (T& x : scores)
    x = kvmeld::element_traits<T>::from_float(static_cast<float>(d.between(0, 50)) * 0.25f - 6.0f);
  std::size_t const odd = d.below(n);
  scores[odd] = kvmeld::element_traits<T>::from_float(std::numeric_limits<float>::quiet_NaN());
  kvmeld::head_rows<T const> const rows{scores.data(), std::int64_t{extent.kv_heads} * row, row, 0};
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer) cache.set_scores(layer, {2, 0}, rows);
  std::uint32_t const limit = d.between(1, n - 1);
  cache.compress({2}, budget::entries(limit));
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
    for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
      T const* const of = scores.data() + std::size_t{head} * row;
      auto const number = [&](int i) { return kvmeld::element_traits<T>::to_float(of[i]); };
      std::vector<int> order(n);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        bool const a_none = !kvmeld::is_finite(number(a)), b_none = !kvmeld::is_finite(number(b));
        return !a_none && (b_none || number(a) > number(b));
      });
      order.resize(limit);
      std::sort(order.begin(), order.end());
      CHECK(held(cache, kvmeld::make_track(extent, layer, 2, head)) == order);
    }
  }
}

}  // namespace

TEST_CASE("the entries with the highest scores stay") {
  dice d(2130);
  for (int round = 0; round < 30; ++round) {
    keeps_the_best<float>(d);
    keeps_the_best<kvmeld::float16>(d);
    keeps_the_best<kvmeld::bfloat16>(d);
  }
}

TEST_CASE("scores stay with their entries until they are set again; entries without a score stay longest") {
  support::engine_memory<float> memory(extent);
  auto cache = support::make_cache(memory, evicting());
  cache.open(0, 6);
  std::vector<float> const first{3, 9, 1, 8, 2, 7};
  kvmeld::head_rows<float const> const scores{first.data(), 0, 0, 0};  // the same for both heads
  std::uint32_t const slot = 0;
  for (std::uint32_t layer : {0u, 1u}) cache.set_scores(layer, {slot}, scores);
  cache.append({0}, {2});
  cache.commit({0}, {2});
  kvmeld::track const t = kvmeld::make_track(extent, 1, 0, 1);
  cache.compress({0}, budget::entries(6));
  CHECK(held(cache, t) == std::vector<int>{0, 1, 3, 5, 6, 7});
  cache.fork(0, 1);
  auto const bytes = cache.save(0);
  cache.open(2, 1);
  cache.close(2);
  cache.resume(2, bytes);
  for (std::uint32_t sequence : {0u, 1u, 2u}) {
    cache.compress({sequence}, budget::entries(4));
    CHECK(held(cache, kvmeld::make_track(extent, 1, sequence, 1)) == std::vector<int>{1, 3, 6, 7});
  }
  std::vector<float> const second{5, 6, 4, 7};
  cache.set_scores(1, {1}, kvmeld::head_rows<float const>{second.data(), 0, 0, 0});
  cache.compress({0, 1}, budget::entries(2));
  CHECK(held(cache, kvmeld::make_track(extent, 1, 1, 1)) == std::vector<int>{3, 7});
  CHECK(held(cache, t) == std::vector<int>{6, 7});
}

TEST_CASE("a result of a merge has the highest score of its members") {
  support::engine_memory<float> memory(extent);
  auto cache = support::make_cache(memory, kvmeld::preset::merging(evicting()), support::with_plan());
  dice d(2131);
  memory.fill_sequence(d, 0, 0, 30, support::texture::walk);
  cache.open(0, 30);
  std::vector<float> scores(30);
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<float>(i * 11 % 30);
  for (std::uint32_t layer : {0u, 1u})
    cache.set_scores(layer, {0}, kvmeld::head_rows<float const>{scores.data(), 0, 0, 0});
  cache.plan({0}, budget::entries(12));
  kvmeld::plan_ref const& plan = cache.current_plan();
  std::vector<float> wanted = scores;
  for (std::uint32_t i = 0; i < 30; ++i) {
    if (plan.fates[i] == kvmeld::fate::merge)
      wanted[plan.target[i]] = std::max(wanted[plan.target[i]], scores[i]);
  }
  std::vector<std::uint32_t> kept;
  for (std::uint32_t i = 0; i < 30; ++i) {
    if (plan.fates[i] == kvmeld::fate::keep) kept.push_back(i);
  }
  cache.apply();
  kvmeld::track const t = kvmeld::make_track(extent, 0, 0, 0);
  kvmeld::ledger_ref const& l = cache.ledger();
  REQUIRE(l.length[t.index] == kept.size());
  int merged = 0;
  for (std::uint32_t s = 0; s < kept.size(); ++s) {
    CHECK(l.channel_data[0][l.at(t, s)] == wanted[kept[s]]);
    merged += l.degree[l.at(t, s)] > 1.0f ? 1 : 0;
  }
  CHECK(merged > 0);
}

TEST_CASE("given scores: any lanes, and caches chosen at run time") {
  CHECK(kvmeld::testing::policy_problem(evicting()) == "");
  support::engine_memory<float> memory(extent);
  auto const any =
      kvmeld::make_any_cache(support::make_cache(memory, kvmeld::compose::composed_of(evicting())));
  any->open(0, 4);
  std::vector<float> const scores{1, 4, 2, 3};
  for (std::uint32_t layer : {0u, 1u})
    any->set_scores(layer, {0}, kvmeld::head_rows<float const>{scores.data(), 0, 0, 0});
  any->compress({0}, budget::entries(2));
  kvmeld::track const t = kvmeld::make_track(extent, 0, 0, 0);
  CHECK(any->ledger().position[any->ledger().at(t, 0)] == 1);
  CHECK(any->ledger().position[any->ledger().at(t, 1)] == 3);
}

TEST_CASE("set_scores refuses") {
  support::engine_memory<float> memory(extent);
  auto cache = support::make_cache(memory, evicting());
  cache.open(1, 4);
  std::vector<float> const scores(4);
  kvmeld::head_rows<float const> const rows{scores.data(), 0, 0, 0}, none{};
  auto const refuses = [&](auto call, std::initializer_list<char const*> parts) {
    auto const before = cache.save(1);
    check_text(refusal_of([&] { call(); }), parts);
    CHECK(cache.save(1) == before);
  };
  refuses([&] { cache.set_scores(2, {1}, rows); }, {"set_scores: layer is 2; it must be 0 to 1"});
  refuses([&] { cache.set_scores(0, {3}, rows); }, {"set_scores: sequence is 3; it must be 0 to 2"});
  refuses([&] { cache.set_scores(0, {0}, rows); }, {"set_scores: sequence is 0; it must be open"});
  refuses(
      [&] {
        cache.set_scores(0, {1, 1}, rows);
      },
      {"set_scores: sequence is 1; it must be listed only once"});
  refuses([&] { cache.set_scores(0, {1}, none); },
          {"set_scores: rows.data is null; it must be the rows of the scores"});
  cache.set_scores(0, {}, none);
  support::engine_memory<float> other(extent);
  auto h2o = support::make_cache(other, kvmeld::preset::h2o::defaults());
  h2o.open(1, 4);
  check_text(refusal_of([&] { h2o.set_scores(0, {1}, rows); }),
             {"set_scores: score of the policy is global; it must be score::given"});
}

}  // namespace given_score_cases
