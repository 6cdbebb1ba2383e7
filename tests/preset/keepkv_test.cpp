// Merging that keeps attention: against the reference on sets that identifiers chose, and as an identity of
// the output.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/attention.hpp"
#include "reference/keepkv.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace keepkv_cases {

using doctest::Approx;
using support::dice;

namespace {

namespace keepkv = kvmeld::preset::keepkv;
using kvmeld::quantity;

kvmeld::select::top some_top(dice& d) {
  return {quantity::entries(d.below(3)), quantity::of_budget(0.3 * d.uniform()),
          quantity::of_budget(0.3 * d.uniform())};
}

kvmeld::policy<kvmeld::score::global, kvmeld::select::top, kvmeld::identify::consecutive_threshold<>,
               kvmeld::merge::mass_preserving>
consecutive(dice& d) {
  return {{}, some_top(d), {}, {}};
}
keepkv::type matched(dice& d) {
  keepkv::type p = keepkv::for_budget(quantity::of_budget(0.3 * d.uniform()), quantity::of_budget(0.25));
  p.identify.chunk = d.pick({4u, 16u, 256u});
  return p;
}

// Round by round: the plan says which sets, the reference what becomes of them.
template <class T, class Policy> void compare(dice& d, Policy const& policy, support::tally& count) {
  std::uint32_t const most = d.pick({20u, 60u, 200u});
  kvmeld::shape const s{
      d.between(1, 2), d.between(1, 2), d.between(1, 2), 1, d.pick({8u, 32u}), d.pick({4u, 48u}), most};
  support::engine_memory<T> memory(s);
  auto cache = make_cache(memory, policy, support::with_plan());
  std::vector<std::uint32_t> slots;
  constexpr support::texture textures[] = {support::texture::walk, support::texture::clusters};
  for (std::uint32_t q = 0; q < s.sequences; ++q) {
    slots.push_back(q);
    std::uint32_t const n = d.between(most / 2, most);
    cache.open(q, n);
    memory.fill_sequence(d, q, 0, n, d.pick(textures));
    support::for_tracks(s, q, [&](kvmeld::track t) {
      std::vector<float> scores = support::random_scores(d, n);
      for (float& x : scores) x = d.chance(0.2) ? 0.0f : x;
      if (d.chance(0.2)) scores.assign(n, 0.0f);
      support::set_scores(cache.ledger(), t, scores);
      for (std::uint32_t i = 0; i < n; ++i)
        cache.ledger().degree[cache.ledger().at(t, i)] =
            d.chance(0.6) ? 1.0f : static_cast<float>(1 + 3 * d.uniform());
      if (d.chance(0.2))
        support::write_row(cache.ref().values, t, d.below(n), {kvmeld::bits_float(0x7fc00000u)});
    });
  }
  auto const budget = kvmeld::budget::entries(d.between(most / 5, most / 3));
  for (std::size_t held = 0, left = 1; held != left;) {
    std::vector<reference::track_state> before(s.tracks());
    held = left = 0;
    for (std::uint32_t q : slots) {
      held += cache.entries(q);
      support::for_tracks(s, q,
                          [&](kvmeld::track t) { before[t.index] = support::read_track(cache.ref(), t); });
    }
    cache.plan(slots, budget, kvmeld::shortfall::keep);
    kvmeld::plan_ref const& plan = cache.current_plan();
    std::vector<reference::outcome> expected(s.tracks());
    for (std::uint32_t item = 0; item < s.tracks(); ++item) {
      kvmeld::track const t = cache.planned_work().at(s, item);
      reference::indices target;
      for (std::uint32_t i = 0; i < before[t.index].size(); ++i)
        target.push_back(plan.target[plan.at(item, i)]);
      expected[t.index] =
          reference::keep_mass(before[t.index], target, before[t.index].score, support::store_as<T>());
    }
    cache.apply();
    for (std::uint32_t q : slots) {
      left += cache.entries(q);
      support::for_tracks(s, q, [&](kvmeld::track t) {
        ++count.compared;
        CHECK(support::difference<T>(expected[t.index], before[t.index],
                                     support::read_track(cache.ref(), t)) == "");
      });
    }
  }
}

// One track with the attention of one query as scores, times a factor; the query's outputs before and after.
template <class Policy> void keeps_output(dice& d, Policy const& policy) {
  std::uint32_t const n = d.between(12, 60), channels = d.between(2, 12);
  kvmeld::shape const s{1, 1, 1, 1, channels, 3, n};
  support::engine_memory<float> memory(s);
  auto cache = make_cache(memory, policy);
  cache.open(0, n);
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  memory.fill_sequence(d, 0, 0, n, support::texture::walk);
  for (std::uint32_t i = 0; i < n; ++i)
    cache.ledger().degree[i] = d.chance(0.5) ? 1.0f : static_cast<float>(d.between(1, 5));
  reference::matrix query(1);
  for (std::uint32_t c = 0; c < channels; ++c) query[0].push_back(0.7 * d.normal());
  auto const before = reference::attend(query, support::read_track(cache.ref(), t));
  double const factor = std::exp(6 * d.uniform() - 3);
  std::vector<float> scores;
  for (double p : before.probability[0]) scores.push_back(static_cast<float>(factor * p));
  support::set_scores(cache.ledger(), t, scores);
  cache.compress({0}, kvmeld::budget::entries(n / 3));
  reference::track_state const merged = support::read_track(cache.ref(), t);
  CHECK(merged.size() == n / 3);
  auto const after = reference::attend(query, merged);
  CHECK(after.lse[0] == Approx(before.lse[0]).epsilon(1e-4).scale(1));
  for (std::size_t c = 0; c < 3; ++c)
    CHECK(after.output[0][c] == Approx(before.output[0][c]).epsilon(2e-4).scale(1));
  // Scores are the attention that is there now.
  for (std::size_t i = 0; i < merged.size(); ++i)
    CHECK(merged.score[i] == Approx(factor * after.probability[0][i]).epsilon(1e-3));
}

}  // namespace

TEST_CASE("mass-preserving by hand: two pairs") {
  // Attention 3 : 1, degrees 1 and 1: weights 3/4 and 1/4, d* = (4/3)^(3/4) 4^(1/4) = 1.7547654.
  // Attention 1 : 1, degrees 3 and 1: d* = sqrt(6 * 2) = 3.4641016. Attention by degree: 3 : 1, d* = 4, the
  // sum.
  kvmeld::shape const s{1, 1, 1, 1, 1, 1, 2};
  auto const run = [&](std::vector<float> const& scores, std::vector<float> const& degrees) {
    support::engine_memory<float> memory(s);
    kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
    memory.fill(t, 0, {{1}, {2}}, {{4}, {8}});
    auto cache = make_cache(memory, keepkv::for_budget(quantity::entries(0), quantity::entries(0)));
    cache.open(0, 2);
    cache.ledger().degree[0] = degrees[0];
    cache.ledger().degree[1] = degrees[1];
    support::set_scores(cache.ledger(), t, scores);
    cache.compress({0}, kvmeld::budget::entries(1));
    return support::read_track(cache.ref(), t);
  };
  auto got = run({3, 1}, {1, 1});
  CHECK(got.keys[0][0] == Approx(1.25));
  CHECK(got.values[0][0] == Approx(5));
  CHECK(got.degree[0] == Approx(1.7547654));
  CHECK(got.score[0] == 4);
  CHECK(run({1, 1}, {3, 1}).degree[0] == Approx(3.4641016));
  got = run({3, 1}, {3, 1});
  CHECK(got.degree[0] == Approx(4));
  CHECK(got.degree[0] <= 4);
  // Without attention: the centroid of the tokens. NaN, infinite and negative attention is none.
  float const nan = kvmeld::bits_float(0x7fc00000u), infinite = kvmeld::bits_float(0x7f800000u);
  for (auto const& none : {std::vector<float>{0, 0}, {nan, infinite}, {-1, 0}}) {
    got = run(none, {3, 1});
    CHECK(got.keys[0][0] == Approx(1.25));
    CHECK(got.degree[0] == 4);
  }
  // All of the attention on one: it is the entry, as it was.
  got = run({0, 5}, {3, 2});
  CHECK(got.keys[0][0] == 2);
  CHECK(got.values[0][0] == 8);
  CHECK(got.degree[0] == Approx(2));
}

TEST_CASE("mass-preserving merges are the reference's, of matched and of consecutive sets") {
  dice d(61);
  support::tally count;
  for (int i = 0; i < 40; ++i) {
    compare<float>(d, matched(d), count);
    compare<float>(d, consecutive(d), count);
    compare<kvmeld::bfloat16>(d, matched(d), count);
    compare<kvmeld::bfloat16>(d, consecutive(d), count);
  }
  MESSAGE("compared ", count.compared, " tracks");
  CHECK(count.compared > 800);
}

TEST_CASE("for the query whose attention the scores are, nothing is lost, in any number of rounds") {
  dice d(62);
  for (int i = 0; i < 60; ++i) {
    keeps_output(d, matched(d));
    keeps_output(d, consecutive(d));
  }
}

TEST_CASE("KeepKV's parts by name") {
  CHECK(kvmeld::name_of_policy(keepkv::for_budget()) ==
        "global x top x chunked_bipartite:exact_budget x mass_preserving");
  auto p = keepkv::for_budget();
  CHECK(kvmeld::configuration_problem(p).empty());
  p.identify.chunk = 1;
  CHECK(kvmeld::configuration_problem(p).find("chunk is 1") != std::string::npos);
}

}  // namespace keepkv_cases
