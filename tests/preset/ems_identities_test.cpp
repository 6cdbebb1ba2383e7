// EMS: what must hold for any input, and what becomes of rows with NaN.
#include <doctest/doctest.h>

#include <kvmeld/cache/plan_readings.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/cache_bytes.hpp"
#include "support/ems_view.hpp"
#include "support/random_cache.hpp"

namespace ems_identities_cases {

using doctest::Approx;
using kvmeld::quantity;
using support::dice;

namespace {

namespace ems = kvmeld::preset::ems;

// The preset without pooling, so that scores are what the tests give.
template <class Policy> Policy unpooled(Policy p) {
  p.score.pooling.kernel = 1;
  return p;
}
auto shared(std::uint32_t window, float tau, double gamma) {
  return unpooled(ems::shared(quantity::entries(window), window, tau, gamma));
}
auto collapsed(std::uint32_t window, float tau, double gamma) {
  return unpooled(ems::collapsed(quantity::entries(window), window, tau, gamma));
}

// Global and local scores alike: their alignment is 1.
template <class Cache>
void give_scores(Cache const& cache, kvmeld::track t, std::vector<float> const& scores) {
  support::set_scores(cache.ledger(), t, scores, kvmeld::score::global_local::accumulated);
  support::set_scores(cache.ledger(), t, scores, kvmeld::score::global_local::current);
}

// Outputs and log-sum-exps of some queries of the last token.
struct seen {
  std::vector<float> out, lse;
};
template <class Cache>
seen attend(Cache& cache, std::vector<float> const& q, std::uint32_t queries,
            kvmeld::attention_params const& params = {}) {
  kvmeld::shape const& s = cache.options().extent;
  seen r{std::vector<float>(queries * s.query_heads() * s.value_dim),
         std::vector<float>(queries * s.query_heads())};
  kvmeld::attention::attend(cache.executor(), {0, 0, queries},
                            kvmeld::rows_by_token<float const>(q.data(), queries, s.query_heads(), s.key_dim),
                            cache.ref(),
                            kvmeld::rows_by_token(r.out.data(), queries, s.query_heads(), s.value_dim),
                            kvmeld::rows_by_head(r.lse.data(), queries, s.query_heads(), 1), params);
  return r;
}

void check_close(std::vector<float> const& a, std::vector<float> const& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  CHECK(worst < tolerance);
}

}  // namespace

TEST_CASE("EMS by hand: a merge, a member, and what collapsing makes of it") {
  // As the reference's: keys (3, 4), (0, 2), (1, 0), local scores 3, 1, 0; budget 2 of which the last is the
  // window.
  kvmeld::shape const s{1, 1, 1, 1, 2, 2, 4};
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  support::engine_memory<float> memory(s), copy(s);
  for (auto* m : {&memory, &copy}) m->fill(t, 0, {{3, 4}, {0, 2}, {1, 0}}, {{8, 0}, {4, 4}, {0, 1}});
  auto cache = make_cache(memory, shared(1, 0.5f, 2), support::with_plan(2));
  cache.open(0, 3);
  give_scores(cache, t, {3, 1, 0});
  cache.plan({0}, kvmeld::budget::entries(2));
  CHECK(cache.current_plan().fates[1] == kvmeld::fate::share);
  CHECK(cache.current_plan().target[1] == 0);
  std::ostringstream text;
  print_plan(text, cache);
  CHECK(text.str().find("share") != std::string::npos);
  cache.apply();
  auto const ref = cache.ref();
  REQUIRE(ref.length(t) == 2);
  CHECK(ref.tokens(t) == 3);
  auto const key = support::get_row(ref.keys, t, 0), value = support::get_row(ref.values, t, 0);
  CHECK(key[0] == Approx(0.45));  // 3/4 (.6, .8) + 1/4 (0, 1)
  CHECK(key[1] == Approx(0.85));
  CHECK(value[0] == Approx(7));
  CHECK(value[1] == Approx(1));
  CHECK(ref.norm_factor(t, 0) == 5.0f);
  CHECK(ref.norm_factor(t, 1) == 1.0f);
  CHECK(ref.member_norm(t, 0) == 2.0f);
  CHECK(ref.member_position(t, 0) == 1);
  CHECK((ref.members(t, 0).begin == 0 && ref.members(t, 0).end == 1));
  CHECK((ref.members(t, 1).begin == 1 && ref.members(t, 1).end == 1));
  CHECK(cache.ledger().degree[0] == 2.0f);
  kvmeld::attention_params params;
  params.scale = 1;
  double const sum = std::exp(4.25) + std::exp(1.7) + 1;
  seen const x = attend(cache, {0, 1}, 1, params);
  CHECK(static_cast<double>(x.lse[0]) == Approx(std::log(sum)));
  CHECK(static_cast<double>(x.out[0]) == Approx(7 * (std::exp(4.25) + std::exp(1.7)) / sum));

  auto single = make_cache(copy, collapsed(1, 0.5f, 2));
  single.open(0, 3);
  give_scores(single, t, {3, 1, 0});
  single.compress({0}, kvmeld::budget::entries(2));
  CHECK(support::get_row(single.ref().keys, t, 0)[0] == Approx(0.45 * 4.25));
  CHECK(single.ref().degree(t, 0) == 2.0f);
  CHECK(static_cast<double>(attend(single, {0, 1}, 1, params).lse[0]) ==
        Approx(std::log(2 * std::exp(0.85 * 4.25) + 1)));
}

TEST_CASE("without magnification, and where nothing is alike, EMS is eviction") {
  dice d(211);
  for (int i = 0; i < 60; ++i) {
    std::uint32_t const n = d.between(10, 90), window = d.between(1, 6),
                        budget = window + d.between(1, n - 7);
    kvmeld::shape const s{1, 1, 1, 1, d.between(1, 24), d.between(1, 24), n};
    kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
    support::engine_memory<float> memory(s);
    memory.fill_sequence(d, 0, 0, n, support::texture::clusters);
    auto const scores = support::random_scores(d, n);
    kvmeld::pooling const pooling{d.chance(0.5) ? 7u : 1u, kvmeld::pooling_mode::mean};
    auto const run = [&](auto policy, std::uint32_t members) {
      support::engine_memory<float> copy = memory;
      kvmeld::cache_options sizes{};
      sizes.members = members;
      policy.score.pooling = pooling;
      auto cache = make_cache(copy, policy, sizes);
      cache.open(0, n);
      give_scores(cache, t, scores);
      cache.compress({0}, kvmeld::budget::entries(budget));
      return std::pair{support::bytes_of(copy.keys), support::bytes_of(copy.values)};
    };
    using namespace kvmeld;
    auto const evicted =
        run(policy{score::global_local{window, {}},
                   select::top{quantity::entries(0), quantity::entries(window), quantity::rest_of_budget()},
                   identify::evict_rest{}, merge::drop{}},
            0);
    CHECK(run(shared(window, 0.1f, 1.0), 5) == evicted);
    CHECK(run(collapsed(window, 0.1f, 1.0), 0) == evicted);
    CHECK(run(kvmeld::policy{score::global_local{window, {}},
                             select::tiers{quantity::entries(0), quantity::entries(window),
                                           quantity::entries(0), 4.0},
                             identify::evict_rest{}, merge::drop{}},
              0) == evicted);
    if (s.key_dim > 1 && s.value_dim > 1) CHECK(run(shared(window, 1.0f, 4.0), 4 * budget) == evicted);
  }
}

TEST_CASE("alike tokens share losslessly, rotated or not; collapsed where also their lengths agree") {
  dice d(212);
  std::size_t compared = 0;
  for (int i = 0; i < 80; ++i) {
    bool const one_length = i % 2 == 1;
    std::uint32_t const n = d.between(30, 80), window = d.between(1, 5);
    kvmeld::shape const s{1, 1, 1, 3, 2 * d.between(2, 12), d.between(1, 20), n};
    kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
    support::engine_memory<float> memory(s);
    support::rows const k = support::random_rows(d, 3, s.key_dim, support::texture::noise),
                        v = support::random_rows(d, 3, s.value_dim, support::texture::noise);
    for (std::uint32_t slot = 0; slot < n; ++slot) {
      std::uint32_t const c = d.below(3);
      auto key = k[c];
      float const length = one_length ? 1.0f : static_cast<float>(0.2 + 2 * d.uniform());
      for (float& x : key) x *= length;
      memory.fill(t, slot, {key}, {v[c]});
    }
    auto const run = [&](auto policy, std::uint32_t members, kvmeld::attention_params const& params) {
      support::engine_memory<float> copy = memory;
      kvmeld::cache_options sizes{};
      sizes.members = members;
      auto cache = make_cache(copy, policy, sizes);
      cache.open(0, n);
      give_scores(cache, t, support::random_scores(d, n));
      std::vector<float> q(2 * s.query_heads() * s.key_dim);
      for (float& x : q) x = static_cast<float>(d.normal());
      seen const before = attend(cache, q, 2, params);
      cache.compress({0}, kvmeld::budget::entries(window + 12));
      double tokens = 0;
      for (std::uint32_t slot = 0; slot < cache.longest(0); ++slot)
        tokens += static_cast<double>(cache.ledger().degree[slot]);
      if (tokens != n) return;  // a cluster had no centre
      ++compared;
      seen const after = attend(cache, q, 2, params);
      check_close(after.out, before.out, 2e-5);
      check_close(after.lse, before.lse, 2e-5);
    };
    kvmeld::attention_params params;
    params.causal = false;
    if (d.chance(0.3)) params.softcap = 3.0f;
    if (one_length) run(collapsed(window, 0.99f, 50), 0, params);
    constexpr kvmeld::rope_pairing ways[] = {kvmeld::rope_pairing::none, kvmeld::rope_pairing::half_split,
                                             kvmeld::rope_pairing::interleaved};
    params.rope.pairing = d.pick(ways);
    run(shared(window, 0.99f, 50), n, params);
  }
  CHECK(compared > 60);
}

TEST_CASE("what merges step by step is what merges at once") {
  dice d(213);
  for (int i = 0; i < 40; ++i) {
    std::uint32_t const n = d.between(12, 60);
    kvmeld::shape const s{1, 1, 1, 1, 6, 4, n};
    kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
    support::engine_memory<float> memory(s), steps(s);
    std::vector<float> scores = support::random_scores(d, n);
    for (std::uint32_t slot = 0; slot < n; ++slot) {  // two clusters, their best tokens 1 and 2
      std::uint32_t const c = slot == 1 ? 0 : slot == 2 ? 1 : d.below(2);
      std::vector<float> k(6), v(4);
      for (float& x : k) x = static_cast<float>(0.05 * d.normal());
      for (float& x : v) x = static_cast<float>(0.05 * d.normal());
      k[c] += 1;
      v[c] += 2;
      for (auto* m : {&memory, &steps}) m->fill(t, slot, {k}, {v});
    }
    scores[1] = 100;
    scores[2] = 90;
    auto at_once = make_cache(memory, shared(1, 0.5f, 100), support::with_plan(n));
    auto by_step = make_cache(steps, shared(1, 0.5f, 100), support::with_plan(n));
    for (auto* cache : {&at_once, &by_step}) {
      cache->open(0, n);
      give_scores(*cache, t, scores);
    }
    at_once.compress({0}, kvmeld::budget::entries(3));
    while (by_step.longest(0) > 3) {
      by_step.compress({0}, kvmeld::budget::entries(std::max(3u, by_step.longest(0) - d.between(1, 9))));
    }
    auto const a = support::read_ems(at_once.ref(), t, 1), b = support::read_ems(by_step.ref(), t, 1);
    REQUIRE(a.slots.size() == b.slots.size());
    REQUIRE(a.members.size() == n - 3);
    REQUIRE(b.members.size() == n - 3);
    std::set<std::pair<std::size_t, long>> in_a, in_b;  // (owner, position): the order is that of arrival
    for (auto const& m : a.members) in_a.insert({m.owner, m.position});
    for (auto const& m : b.members) in_b.insert({m.owner, m.position});
    CHECK(in_a == in_b);
    for (std::size_t slot = 0; slot < a.slots.size(); ++slot) {
      CHECK(a.slots[slot].own_norm == b.slots[slot].own_norm);
      CHECK(a.slots[slot].merge_weight == Approx(b.slots[slot].merge_weight).epsilon(1e-5));
      for (std::size_t c = 0; c < 6; ++c)
        CHECK(std::fabs(a.slots[slot].key[c] - b.slots[slot].key[c]) < 1e-5);
      for (std::size_t c = 0; c < 4; ++c)
        CHECK(std::fabs(a.slots[slot].value[c] - b.slots[slot].value[c]) < 1e-5);
    }
  }
}

TEST_CASE("at the end of a prompt the alignment of the scores is window / queries") {
  dice d(214);
  for (std::uint32_t const n : {5u, 33u, 150u}) {
    for (std::uint32_t const window : {1u, 4u, 32u}) {
      kvmeld::shape const s{1, 1, 2, 2, 16, 8, n};
      support::engine_memory<float> memory(s);
      memory.fill_sequence(d, 0, 0, n, support::texture::walk);
      kvmeld::cache_options sizes{};
      sizes.members = 8;
      auto cache = make_cache(memory, shared(window, 0.6f, 4), sizes);
      cache.open(0, n);
      std::vector<float> q(n * s.query_heads() * s.key_dim);
      for (float& x : q) x = static_cast<float>(d.normal());
      seen const x = attend(cache, q, n);
      cache.observe({0, 0, n}, kvmeld::rows_by_token<float const>(q.data(), n, s.query_heads(), s.key_dim),
                    kvmeld::rows_by_head<float const>(x.lse.data(), n, s.query_heads(), 1));
      support::for_tracks(s, 0, [&](kvmeld::track t) {
        auto const state = support::read_ems(cache.ref(), t, window);
        CHECK(reference::ems_alignment(state) == Approx(std::min(1.0, double{1} * window / n)).epsilon(1e-5));
      });
    }
  }
}

TEST_CASE("rows with NaN are ranked as any other, but never merge and are no targets") {
  dice d(215);
  support::tally count;
  std::size_t kept = 0, gone = 0;
  auto const run = [&](auto policy, std::uint32_t members) {
    std::uint32_t const n = 60, budget = 20;
    kvmeld::shape const s{1, 1, 1, 1, d.between(2, 20), d.between(1, 20), n};
    kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
    support::engine_memory<float> memory(s);
    memory.fill(t, 0, support::random_rows(d, n, s.key_dim, support::texture::clusters),
                support::random_rows(d, n, s.value_dim, support::texture::clusters));
    kvmeld::cache_options sizes{};
    sizes.members = members;
    auto cache = make_cache(memory, policy, sizes);
    cache.open(0, n);
    give_scores(cache, t, support::random_scores(d, n));
    // The reference sees zero rows there: their cosine with everything is 0, which is below the threshold.
    auto before = support::read_ems(cache.ref(), t, policy.score.window);
    std::set<long> bad;
    for (int times = 0; times < 12; ++times) {
      std::uint32_t const slot = d.below(n);
      bool const in_key = d.chance(0.5);
      bad.insert(slot);
      if (in_key)
        support::write_row(cache.ref().keys, t, slot, {kvmeld::bits_float(0x7fc00000u)});
      else
        support::write_row(cache.ref().values, t, slot, {kvmeld::bits_float(0xff800000u)});
      before.slots[slot].key.assign(s.key_dim, 0.0);
      before.slots[slot].value.assign(s.value_dim, 0.0);
    }
    auto const options = support::ems_options_of(policy, budget, members);
    auto const expected = reference::ems_compress(before, options);
    cache.compress({0}, kvmeld::budget::entries(budget));
    CHECK((cache.warnings(0) & kvmeld::warning::nonfinite_rows) != 0);
    if (!support::decided(expected, before)) return;
    ++count.compared;
    auto got = support::read_ems(cache.ref(), t, policy.score.window);
    for (auto& slot : got.slots) {
      CHECK(slot.bad == (bad.count(slot.position) != 0));
      if (!slot.bad) continue;
      ++kept;
      slot.key.assign(s.key_dim, 0.0);
      slot.value.assign(s.value_dim, 0.0);
    }
    for (auto const& m : got.members) CHECK(bad.count(m.position) == 0);
    gone += bad.size();
    CHECK(support::ems_difference<float>(expected, before, got) == "");
  };
  for (int i = 0; i < 60; ++i) {
    run(shared(3, 0.3f, 3), 40);
    run(collapsed(3, 0.3f, 3), 0);
  }
  gone -= kept;
  CHECK(count.compared > 80);
  CHECK(kept > 50);
  CHECK(gone > 50);
}

TEST_CASE("members stay within the magnified budget and within options.members; tokens are counted once") {
  dice d(216);
  for (int i = 0; i < 60; ++i) {
    std::uint32_t const budget = d.between(6, 30), capacity = d.between(1, 80);
    double const gamma = 1 + 3 * d.uniform();
    kvmeld::shape const s{1, 1, 1, 1, 4, 3, budget + 40};
    kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
    support::engine_memory<float> memory(s);
    kvmeld::cache_options sizes{};
    sizes.members = capacity;
    auto cache = make_cache(memory, shared(3, 0.3f, gamma), sizes);
    cache.open(0, budget + 40);
    memory.fill(t, 0, support::rows(budget + 40, {1, 1, 1, 1}), support::rows(budget + 40, {1, 2, 3}));
    std::uint32_t const most = std::min(capacity, ems::members_for(budget, gamma));
    for (int times = 0; times < 8; ++times) {
      give_scores(cache, t, support::random_scores(d, cache.longest(0)));
      cache.compress({0}, kvmeld::budget::entries(budget));
      auto const state = support::read_ems(cache.ref(), t, 3);
      std::vector<double> tokens(state.slots.size(), 1.0);
      std::set<long> positions;
      for (auto const& m : state.members) {
        tokens[m.owner] += 1;
        positions.insert(m.position);
      }
      for (std::size_t slot = 0; slot < tokens.size(); ++slot) {
        CHECK(state.slots[slot].degree == tokens[slot]);
        positions.insert(state.slots[slot].position);
      }
      CHECK(positions.size() == state.slots.size() + state.members.size());
      CHECK(state.members.size() <= most);
      if (times == 0) CHECK(state.members.size() == std::min(most, 40u));  // all are alike
      std::uint32_t const added = d.between(1, 40);
      memory.fill(t, cache.longest(0), support::rows(added, {1, 1, 1, 1}), support::rows(added, {1, 2, 3}));
      cache.append({0}, {added});
      cache.commit({0}, {added});
    }
  }
}

TEST_CASE("planning and applying EMS is compressing it") {
  dice d(217);
  for (int i = 0; i < 20; ++i) {
    kvmeld::shape const s{2, 2, 2, 1, d.between(1, 20), d.between(1, 20), 90};
    support::engine_memory<kvmeld::float16> memory(s), copy(s);
    auto const policy = shared(d.between(1, 8), 0.3f, 3);
    auto cache = make_cache(memory, policy, support::with_plan(50));
    auto other = make_cache(copy, policy, support::with_plan(50));
    for (std::uint32_t q = 0; q < 2; ++q) {
      cache.open(q, 60 + q);
      other.open(q, 60 + q);
      memory.fill_sequence(d, q, 0, 60 + q, support::texture::clusters);
    }
    for (int times = 0; times < 3; ++times) {
      copy.keys = memory.keys;
      copy.values = memory.values;
      for (std::uint32_t q = 0; q < 2; ++q) {
        support::for_tracks(s, q, [&](kvmeld::track t) {
          auto const scores = support::random_scores(d, cache.ref().length(t));
          give_scores(cache, t, scores);
          give_scores(other, t, scores);
        });
      }
      cache.compress({1, 0}, kvmeld::budget::entries(20));
      other.plan({1, 0}, kvmeld::budget::entries(20));
      CHECK(other.apply().ok());
      CHECK(copy == memory);
      for (auto* x : {&cache, &other})  // a plan looks at all rows, a compression at its tiers
        std::fill_n(x->ledger().flags, s.slots(), std::uint8_t{0});
      CHECK(support::ledger_bytes(cache) == support::ledger_bytes(other));
      for (auto* x : {&cache, &other}) {
        x->append({0, 1}, {25, 20});
        x->commit({0, 1}, {25, 19});
      }
      memory.fill_sequence(d, 0, 20, 25, support::texture::clusters);
      memory.fill_sequence(d, 1, 20, 19, support::texture::clusters);
    }
  }
}

}  // namespace ems_identities_cases
