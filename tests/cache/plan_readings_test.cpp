// What a plan was made from, read after `plan`: roles, similarities and KVMerger's sigma, against numbers
// made by hand.
#include "refusal.hpp"

#include <kvmeld/cache/plan_readings.hpp>
#include <kvmeld/compose/composed.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace plan_readings_cases {

namespace {

using cache_test::check_text;
using cache_test::refusal_of;
using doctest::Approx;
using kvmeld::quantity;
using kvmeld::role;
using kvmeld::slot_t;

kvmeld::cache_options one_wave(kvmeld::shape const& s) {
  kvmeld::cache_options options = support::with_plan();
  options.wave_tracks = s.tracks();
  return options;
}

double cosine(std::vector<float> const& a, std::vector<float> const& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t c = 0; c < a.size(); ++c) {
    double const x = static_cast<double>(a[c]), y = static_cast<double>(b[c]);
    ab += x * y;
    aa += x * x;
    bb += y * y;
  }
  return ab / std::sqrt(aa * bb);
}

}  // namespace

TEST_CASE("roles and similarities of every planned track, admitted or not") {
  kvmeld::shape const s{2, 3, 2, 1, 5, 4, 20};
  support::engine_memory<float> memory(s);
  support::dice d(5);
  std::vector<support::rows> keys(s.tracks());
  for (std::uint32_t q : {0u, 2u}) {
    support::for_tracks(s, q, [&](kvmeld::track t) {
      keys[t.index] = support::random_rows(d, 17, 5, support::texture::noise);
      memory.fill(t, 0, keys[t.index], support::random_rows(d, 17, 4, support::texture::noise));
    });
  }
  kvmeld::policy const p{kvmeld::score::none{},
                         kvmeld::select::sinks_and_recents{quantity::entries(2), quantity::entries(3)},
                         kvmeld::identify::chunked_bipartite<kvmeld::admit::exact_budget>{6, {}},
                         kvmeld::merge::degree_weighted{}};
  auto cache = make_cache(memory, p, one_wave(s));
  cache.open(0, 17);
  cache.open(2, 17);
  cache.plan({2, 0}, kvmeld::budget::entries(15));
  kvmeld::work_list const work = cache.planned_work();
  REQUIRE(work.tracks(s) == 8);
  std::uint32_t admitted = 0;
  for (std::uint32_t item = 0; item < 8; ++item) {
    kvmeld::track const t = work.at(s, item);
    for (std::uint32_t i = 0; i < 17; ++i) {
      CHECK(planned_role(cache, item, i) == (i < 2 || i >= 14 ? role::pinned : role::mergeable));
      kvmeld::candidate const c = planned_candidate(cache, item, i);
      // Slots 2 to 7 and 8 to 13 are chunks; every second entry, from the first on, has an edge to its best
      // of the others.
      if (i < 2 || i >= 14 || i % 2 == 1) {
        CHECK(c.key == 0);
        continue;
      }
      double best = -2;
      for (std::uint32_t j = i < 8 ? 3 : 9; j < (i < 8 ? 8u : 14u); j += 2)
        best = std::max(best, cosine(keys[t.index][i], keys[t.index][j]));
      CHECK(static_cast<double>(kvmeld::order_value(c.key)) == Approx(best).epsilon(1e-5));
      CHECK(cosine(keys[t.index][i], keys[t.index][c.target]) == Approx(best).epsilon(1e-6));
      admitted += cache.current_plan().fates[cache.current_plan().at(item, i)] == kvmeld::fate::merge ? 1 : 0;
    }
  }
  CHECK(admitted == 16);  // two of six edges in each track, but similarities of all

  auto const text = [&](auto call) { return refusal_of(call); };
  CHECK(text([&] { planned_role(cache, 8, 0); }) ==
        "planned_role: item is 8; it must be less than 8, the planned tracks");
  CHECK(text([&] { planned_role(cache, 7, 17); }) ==
        "planned_role: s is 17; it must be less than 17, the entries of item 7");
  cache.plan({2}, kvmeld::budget::entries(17));
  CHECK(text([&] { planned_role(cache, 0, 0); }) ==
        "planned_role: item is 0; it must be a track above its budget, because others take no part");
  cache.apply();
  CHECK(text([&] { planned_candidate(cache, 0, 0); }) ==
        "planned_candidate: the plan is none; it must be one that plan made");

  // In waves of two tracks nothing of the first is left.
  kvmeld::cache_options small = support::with_plan();
  small.wave_tracks = 2;
  auto waves = make_cache(memory, p, small);
  waves.open(0, 17);
  waves.plan({0}, kvmeld::budget::entries(15));
  check_text(text([&] { planned_candidate(waves, 0, 2); }),
             {"planned_candidate: options.wave_tracks is 2; it must be at least 4, the planned tracks"});
}

TEST_CASE("scores that a plan was made from, of attention, of rows and of the engine's own") {
  kvmeld::shape const s{1, 2, 2, 1, 3, 2, 12};
  support::engine_memory<float> memory(s);
  support::dice d(8);
  std::vector<support::rows> keys(s.tracks());
  support::for_tracks(s, 1, [&](kvmeld::track t) {
    keys[t.index] = support::random_rows(d, 10, 3, support::texture::noise);
    memory.fill(t, 0, keys[t.index], support::random_rows(d, 10, 2, support::texture::noise));
  });
  auto const each = [&](auto& cache, auto wanted) {
    kvmeld::work_list const work = cache.planned_work();
    REQUIRE(work.tracks(s) == 2);
    for (std::uint32_t item = 0; item < 2; ++item) {
      for (std::uint32_t i = 0; i < 10; ++i)
        CHECK(static_cast<double>(planned_score(cache, item, i)) ==
              Approx(wanted(work.at(s, item), i)).epsilon(1e-5));
    }
  };
  // Knorm: minus the length of a key.
  auto by_norm = make_cache(memory, kvmeld::preset::knorm::for_budget(), one_wave(s));
  by_norm.open(1, 10);
  by_norm.plan({1}, kvmeld::budget::entries(6));
  each(by_norm, [&](kvmeld::track t, std::uint32_t i) {
    double square = 0;
    for (float x : keys[t.index][i]) square += static_cast<double>(x) * static_cast<double>(x);
    return -std::sqrt(square);
  });
  // Scores of the engine's own.
  kvmeld::policy const given{kvmeld::score::given{}, kvmeld::select::top{}, kvmeld::identify::evict_rest{},
                             kvmeld::merge::drop{}};
  auto own = make_cache(memory, given, one_wave(s));
  own.open(1, 10);
  std::vector<float> scores(2 * 12);
  for (float& x : scores) x = static_cast<float>(d.uniform() * 4 - 2);
  own.set_scores(0, {1}, kvmeld::rows_by_head<float const>(scores.data(), 1, 2, 12));
  own.plan({1}, kvmeld::budget::entries(6));
  each(own,
       [&](kvmeld::track t, std::uint32_t i) { return static_cast<double>(scores[t.kv_head * 12 + i]); });
  // The same through parts chosen at run time.
  auto chosen =
      make_cache(memory, kvmeld::compose::composed_of(kvmeld::preset::knorm::for_budget()), one_wave(s));
  chosen.open(1, 10);
  chosen.plan({1}, kvmeld::budget::entries(6));
  CHECK(planned_score(chosen, 1, 3) == planned_score(by_norm, 1, 3));

  CHECK(refusal_of([&] { planned_score(by_norm, 2, 0); }) ==
        "planned_score: item is 2; it must be less than 2, the planned tracks");
  auto none = make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(1), one_wave(s));
  none.open(1, 10);
  none.plan({1}, kvmeld::budget::entries(6));
  CHECK(refusal_of([&] { planned_score(none, 0, 0); }) ==
        "planned_score: the policy's score is none; it must be one that gives a score");
}

// Weights that follow from the position alone.
struct by_position {
  static constexpr kvmeld::score_facts facts{kvmeld::score_kind::weights};
  static float of(kvmeld::position_t p) { return static_cast<float>(1 + p * 7 % 31); }
  float importance(kvmeld::score_view const& view, std::uint32_t i) const { return of(view.position(i)); }
};

// Plans with scores that are known, and compares those that can be read with those that were given.
// Returns how many pivots there were.
template <class Policy>
std::uint32_t read_scores(Policy const& policy, kvmeld::shortfall fallback,
                          kvmeld::plan_scope scope = kvmeld::plan_scope::head) {
  CAPTURE(kvmeld::name_of_policy(policy));
  CAPTURE(int(fallback));
  CAPTURE(int(scope));
  kvmeld::shape const s{2, 2, 2, 1, 8, 4, 40};
  support::engine_memory<float> memory(s);
  support::dice d(12);
  memory.fill_sequence(d, 1, 0, 36, support::texture::clusters);
  kvmeld::cache_options options = one_wave(s);
  options.scope = scope;
  auto cache = make_cache(memory, policy, options);
  cache.open(1, 36);
  bool const brings = !std::is_same_v<typename Policy::score_type, by_position>;
  std::vector<float> scores(std::size_t{2} * 2 * 40);
  for (std::size_t i = 0; i < scores.size(); ++i)
    scores[i] = brings ? static_cast<float>(d.uniform()) : by_position::of(static_cast<int>(i % 40));
  for (std::uint32_t layer : {0u, 1u}) {
    auto const rows = kvmeld::rows_by_head<float const>(scores.data() + layer * 80, 1, 2, 40);
    if (brings) cache.set_scores(layer, {1}, rows);
  }
  cache.plan({1}, kvmeld::budget::entries(14), fallback);
  kvmeld::plan_ref const& plan = cache.current_plan();
  kvmeld::work_list const work = cache.planned_work();
  std::uint32_t pivots = 0;
  for (std::uint32_t item = 0; item < work.tracks(s); ++item) {
    kvmeld::track const t = work.at(s, item);
    auto const given = [&](std::uint32_t layer, std::uint32_t head, std::uint32_t i) {
      return scores[layer * 80 + head * 40 + i];
    };
    for (std::uint32_t i = 0; i < 36; ++i) {
      float const mean = scope == kvmeld::plan_scope::head
                             ? given(t.layer, t.kv_head, i)
                             : (given(t.layer, 0, i) + given(t.layer, 1, i)) / 2.0f;
      CHECK(planned_score(cache, item, i) == mean);
      slot_t const target = plan.target[plan.at(item, i)];
      pivots += plan.fates[plan.at(item, i)] == kvmeld::fate::merge && target != i ? 1 : 0;
    }
  }
  return pivots;
}

TEST_CASE("the score of an entry is its own, whether others merge into it or not") {
  using kvmeld::policy;
  kvmeld::score::given const given{};
  by_position const weights{};
  kvmeld::select::top const top{quantity::entries(1), quantity::entries(2), quantity::entries(3)};
  kvmeld::identify::chunked_bipartite<kvmeld::admit::exact_budget> const pairs{12, {}};
  kvmeld::identify::chunked_bipartite<kvmeld::admit::top_share> const few{12, {0.2}};
  kvmeld::merge::degree_weighted const by_degree{};
  kvmeld::merge::score_weighted const by_score{};
  auto const kvmerger = kvmeld::preset::kvmerger::for_budget();
  auto const ems = kvmeld::preset::ems::collapsed(quantity::entries(6), 6, 0.05f, 2.0);
  for (auto fallback : {kvmeld::shortfall::keep, kvmeld::shortfall::evict_lowest}) {
    CHECK(read_scores(policy{given, top, pairs, by_degree}, fallback) > 20);
    CHECK(read_scores(policy{weights, top, pairs, by_score}, fallback) > 20);
    CHECK(read_scores(policy{weights, top, few, kvmeld::merge::mass_preserving{}}, fallback) > 5);
    CHECK(read_scores(policy{weights, top, pairs, by_score}, fallback, kvmeld::plan_scope::layer) > 20);
    CHECK(read_scores(policy{given, top, kvmerger.identify, kvmerger.merge}, fallback) > 5);
    CHECK(read_scores(policy{weights, ems.select, ems.identify, by_degree}, fallback) > 5);
    CHECK(read_scores(kvmeld::compose::composed_of(policy{given, top, pairs, by_degree}), fallback) > 20);
  }
}

TEST_CASE("similarities of centres, and identifiers that give none") {
  kvmeld::shape const s{1, 1, 1, 1, 2, 1, 6};
  support::engine_memory<float> memory(s);
  support::rows const keys{{1, 0}, {0, 1}, {3, 4}, {-1, 0}, {4, 3}};
  memory.fill({0, 0, 0, 0}, 0, keys, support::rows(5, {2}));
  auto policy = kvmeld::preset::ems::collapsed(quantity::entries(1), 1, 0.9f, 3.0);
  auto cache = make_cache(memory, policy, one_wave(s));
  cache.open(0, 5);
  auto const& l = cache.ledger();
  for (std::uint32_t c = 0; c < l.channels.count; ++c)
    support::set_scores(l, {0, 0, 0, 0}, {9, 8, 1, 2, 0}, c);
  cache.plan({0}, kvmeld::budget::entries(3));
  std::vector<role> roles;
  for (std::uint32_t i = 0; i < 5; ++i) roles.push_back(planned_role(cache, 0, i));
  CHECK(roles ==
        std::vector<role>{role::center, role::center, role::mergeable, role::mergeable, role::pinned});
  kvmeld::candidate const near = planned_candidate(cache, 0, 2);  // values are alike: cos(k) is all there is
  CHECK(near.target == 1);
  CHECK(static_cast<double>(kvmeld::order_value(near.key)) == Approx(0.8));
  CHECK(planned_candidate(cache, 0, 3).key == 0);  // unlike either centre
  CHECK(planned_candidate(cache, 0, 0).key == 0);
  // The same parts, chosen at run time.
  auto chosen = make_cache(memory, kvmeld::compose::composed_of(policy), one_wave(s));
  chosen.open(0, 5);
  for (std::uint32_t c = 0; c < l.channels.count; ++c)
    support::set_scores(chosen.ledger(), {0, 0, 0, 0}, {9, 8, 1, 2, 0}, c);
  chosen.plan({0}, kvmeld::budget::entries(3));
  CHECK(planned_candidate(chosen, 0, 2).key == near.key);
  CHECK(planned_candidate(chosen, 0, 2).target == 1);

  auto evicting = make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(1), one_wave(s));
  evicting.open(0, 5);
  evicting.plan({0}, kvmeld::budget::entries(3));
  CHECK(planned_role(evicting, 0, 0) == role::pinned);
  CHECK(planned_role(evicting, 0, 1) == role::mergeable);
  check_text(
      refusal_of([&] { planned_candidate(evicting, 0, 1); }),
      {"planned_candidate: the policy's identifier is evict_rest", "must be one that gives similarities"});
}

TEST_CASE("sigma of a set by each of its three rules") {
  // Keys at 1, 2, 4 along a line and one across; the pivot is the entry with the highest score. One set of
  // three.
  kvmeld::shape const s{1, 1, 1, 1, 2, 1, 6};
  support::engine_memory<float> memory(s);
  memory.fill({0, 0, 0, 0}, 0, {{0, 7}, {1, 0}, {2, 0}, {4, 0}}, support::rows(4, {1}));
  using kvmeld::merge::bandwidth;
  kvmeld::select::top const nobody{quantity::entries(0), quantity::entries(0), quantity::entries(0)};
  auto const sigma = [&](bandwidth how, kvmeld::slot_t pivot) {
    kvmeld::policy const p{kvmeld::score::global{}, nobody,
                           kvmeld::identify::consecutive_threshold<kvmeld::admit::threshold>{},
                           kvmeld::merge::gaussian{how, 3.25f}};
    auto cache = make_cache(memory, p, support::with_plan());
    cache.open(0, 4);
    support::set_scores(cache.ledger(), {0, 0, 0, 0}, {1, 5, 2, 3});
    cache.plan({0}, kvmeld::budget::entries(2));
    double const got = static_cast<double>(planned_sigma(cache, 0, pivot));
    // The weights of the plan have it too: g = exp(-d^2 / (2 sigma^2)) with d = 1 and 3 from slot 1.
    kvmeld::plan_ref const& plan = cache.current_plan();
    REQUIRE(plan.target[3] == 1);
    double const ratio = static_cast<double>(plan.key_weight[3] / plan.key_weight[1]);
    if (pivot == 1) CHECK(ratio == Approx(std::exp(-9 / (2 * got * got))));
    return got;
  };
  CHECK(sigma(bandwidth::mean_l2, 1) == Approx((1.0 + 3.0) / 2));
  CHECK(sigma(bandwidth::eq7_000, 1) == Approx((1.0 + 9.0) / (std::sqrt(2.0) * 3)));
  CHECK(sigma(bandwidth::fixed, 1) == Approx(3.25));
  CHECK(sigma(bandwidth::mean_l2, 0) == 0);  // alone
  // A pair: keys 0 and 3 along the second channel, the better score in slot 0.
  support::engine_memory<float> two({1, 1, 1, 1, 2, 1, 2});
  two.fill({0, 0, 0, 0}, 0, {{1, 1}, {1, 4}}, support::rows(2, {1}));
  kvmeld::policy const p{kvmeld::score::global{}, nobody,
                         kvmeld::identify::consecutive_threshold<kvmeld::admit::threshold>{},
                         kvmeld::merge::gaussian{}};
  auto pair = make_cache(two, p, support::with_plan());
  pair.open(0, 2);
  support::set_scores(pair.ledger(), {0, 0, 0, 0}, {5, 1});
  pair.plan({0}, kvmeld::budget::entries(1));
  CHECK(planned_sigma(pair, 0, 0) == Approx(3));
  CHECK(sigma(bandwidth::mean_l2, 2) == 0);  // a member, no pivot
}

}  // namespace plan_readings_cases
