// TriAttention: against plain loops in double precision, its identities, and the life of its table.
#include <kvmeld/calibrate.hpp>
#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing/check_policy.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cache/refusal.hpp"
#include "query_talk.hpp"
#include "reference/distance_preference.hpp"
#include "scores_of.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace distance_preference_cases {

using cache_test::refusal_of;
using kvmeld::score::distance_preference;
using score_test::evicting;
using score_test::query_talk;
using score_test::rope_of;
using score_test::scores_of;
using score_test::table_bits;
using score_test::worst_of;
using support::dice;

namespace {

// Rows turned back from positions.
reference::matrix turned_back(reference::matrix const& rows, std::vector<double> const& at,
                              reference::pair_rotation const& turn) {
  reference::matrix out;
  for (std::size_t i = 0; i < rows.size(); ++i) out.push_back(turn.turned(rows[i], -at[i]));
  return out;
}

template <class T, class Q> void check_scores(dice& d, double tolerance, std::size_t& compared) {
  kvmeld::shape const s{1,
                        1,
                        d.between(1, 2),
                        d.between(1, 3),
                        d.between(1, 3) * d.between(1, 13),
                        d.between(1, 20),
                        d.between(70, 180)};
  CAPTURE(s.key_dim);
  reference::pair_rotation const turn = score_test::random_turn(d, s.key_dim);
  CAPTURE(turn.dim);
  distance_preference score{rope_of(turn), d.pick({1u, 7u, 512u, 1u << 16}), nullptr, d.chance(0.5)};
  if (!score.keys_rotated && d.chance(0.5)) score.rope.positions = kvmeld::rope_positions::slot;
  bool const by_slot = score.rope.active() && score.rope.positions == kvmeld::rope_positions::slot;
  CAPTURE(by_slot);
  support::engine_memory<T> memory(s, d.chance(0.5) ? "LSHTC" : d.chance(0.5) ? "LSTHC" : "LSHCT");
  auto cache = support::make_cache(memory, evicting(score));
  kvmeld::attention_params params;
  if (d.chance(0.3)) params.scale = 0.3f;
  kvmeld::query_sample const sample{0, d.pick({1u, 1u, 3u})};
  std::uint32_t const first = d.between(9, 40);
  query_talk<Q> talk(s);
  std::vector<std::uint32_t> shown;
  std::vector<double> turned_for;  // per token
  cache.open(0, first);
  memory.fill_sequence(d, 0, 0, first, support::texture::walk);
  talk.say(d, first);
  for (std::uint32_t i = 0; i < first; ++i) turned_for.push_back(i);
  auto const observe = [&](std::uint32_t n) {
    std::uint32_t const begin = cache.tokens(0) - n;
    cache.observe({0, 0, n}, talk.of(begin, n), {}, params, sample);
    for (std::uint32_t q = 0; q < n; ++q) {
      if ((n - 1 - q) % sample.stride == 0) shown.push_back(begin + q);
    }
  };
  observe(d.between(1, first));
  cache.compress({0}, kvmeld::budget::entries(d.between(2, first)));
  while (d.chance(0.8)) {
    std::uint32_t const n = d.pick({1u, 1u, 33u, 20u}), slot = cache.longest(0);
    if (slot + n > s.capacity) break;
    for (std::uint32_t i = 0; i < n; ++i)
      turned_for.push_back(by_slot ? slot + i : static_cast<double>(cache.tokens(0) + i));
    cache.append({0}, {n});
    memory.fill_sequence(d, 0, slot, n, support::texture::walk);
    cache.commit({0}, {n});
    talk.say(d, n);
    observe(n);
  }
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    auto const ref = cache.ref();
    for (std::uint32_t i = 0; i < ref.length(t); ++i) {
      if (d.chance(0.3)) ref.ledger.degree[ref.ledger.at(t, i)] = static_cast<float>(d.between(1, 4));
      if (!d.chance(0.05)) continue;
      std::vector<float> const bad(s.key_dim, std::numeric_limits<float>::quiet_NaN());
      support::write_row(memory.tensors().keys, t, i, bad);
      ref.ledger.flags[ref.ledger.at(t, i)] |= kvmeld::entry_flag::nonfinite;
    }
    reference::track_state const track = support::read_track(ref, t);
    reference::distance_options o;
    o.turn = turn;
    o.farthest = score.farthest;
    o.last = (by_slot ? ref.length(t) : cache.tokens(0)) - 1.0;
    std::vector<double> at;
    for (std::uint32_t i = 0; i < ref.length(t); ++i)
      at.push_back(by_slot ? i : static_cast<double>(track.position[i]));
    double const scale =
        params.scale != 0.0f ? static_cast<double>(params.scale) : 1 / std::sqrt(double(s.key_dim));
    std::vector<reference::matrix> queries;
    for (auto const& head : talk.of_heads(t, shown, scale)) {
      std::vector<double> of_queries;
      for (std::uint32_t token : shown) of_queries.push_back(turned_for[token]);
      queries.push_back(turned_back(head.rows, of_queries, turn));
    }
    auto const keys = score.keys_rotated ? turned_back(track.keys, at, turn) : track.keys;
    auto wanted = reference::distance_preference(queries, keys, at, track, o);
    ++compared;
    for (auto const* kernels : {static_cast<kvmeld::host_kernels const*>(nullptr), score_test::tuned()}) {
      auto got = scores_of(score, ref, t, kernels);
      for (std::size_t i = 0; i < track.size(); ++i) {
        if (track.bad[i]) wanted[i] = 0, got[i] = 0;
      }
      CHECK(worst_of(got, wanted) <= tolerance);
    }
  });
}

// A cache whose tables know something.
struct fixture {
  kvmeld::shape extent{2, 3, 2, 2, 10, 6, 60};
  support::engine_memory<float> memory{extent};
  distance_preference score{rope_of({8, false, 100.0, 1.0})};
  dice d{2503};
  query_talk<float> talk{extent};
  decltype(support::make_cache(memory, evicting(score))) cache = support::make_cache(memory, evicting(score));

  fixture() {
    cache.open(1, 30);
    memory.fill_sequence(d, 1, 0, 30, support::texture::walk);
    talk.say(d, 60);
    for (std::uint32_t layer = 0; layer < 2; ++layer) cache.observe({layer, 1, 20}, talk.of(10, 20), {});
  }
};

}  // namespace

TEST_CASE("TriAttention is what plain loops compute") {
  dice d(2501);
  std::size_t compared = 0;
  for (int i = 0; i < 40; ++i) {
    check_scores<float, float>(d, 3e-4, compared);
    check_scores<kvmeld::bfloat16, float>(d, 3e-4, compared);
  }
  for (int i = 0; i < 10; ++i) check_scores<float, kvmeld::float16>(d, 3e-4, compared);
  CHECK(compared > 90);
}

TEST_CASE("queries that are all equal before rotation: the logits of one future query") {
  dice d(2502);
  kvmeld::shape const s{1, 1, 1, 1, 8, 4, 50};
  support::engine_memory<float> memory(s);
  reference::pair_rotation const turn{8, true, 30.0, 1.0};
  distance_preference const score{rope_of(turn), 1};
  auto cache = support::make_cache(memory, evicting(score));
  cache.open(0, 50);
  memory.fill_sequence(d, 0, 0, 50, support::texture::noise);
  reference::row const query{1, -2, 0.5, 3, 0, 1, -1, 2};
  std::vector<float> rows;
  for (int i = 0; i < 50; ++i) {
    for (double x : turn.turned(query, i)) rows.push_back(static_cast<float>(x));
  }
  cache.observe({0, 0, 50}, kvmeld::rows_by_token<float const>(rows.data(), 50, 1, 8), {});
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  auto const track = support::read_track(cache.ref(), t);
  std::vector<double> logits;
  double mean = 0, squares = 0;
  for (auto const& key : track.keys) {
    logits.push_back(reference::dot(turn.turned(query, 50), key));
    mean += logits.back() / 50;
  }
  for (double x : logits) squares += (x - mean) * (x - mean) / 50;
  for (double& x : logits) x = (x - mean) / std::sqrt(squares);
  CHECK(worst_of(scores_of(score, cache.ref(), t), logits) <= 1e-4);
}

TEST_CASE("queries in one call or in several have the same means; those that hold no number do not count") {
  fixture f;
  auto once = support::make_cache(f.memory, evicting(f.score)),
       often = support::make_cache(f.memory, evicting(f.score));
  once.open(1, 40);
  once.observe({0, 1, 40}, f.talk.of(0, 40), {});
  often.open(1);
  for (std::uint32_t at = 0; at < 40;) {
    std::uint32_t const n = std::min(f.d.pick({1u, 5u, 33u}), 40 - at);
    often.append({1}, {n});
    often.commit({1}, {n});
    often.observe({0, 1, n}, f.talk.of(at, n), {});
    at += n;
  }
  kvmeld::track const t = kvmeld::make_track(f.extent, 0, 1, 1);
  auto const same = [&](auto const& a, auto const& b) {
    for (std::uint32_t i = 0; i < a.ledger().table_floats; ++i)
      CHECK(a.ledger().table_of(t)[i] == doctest::Approx(b.ledger().table_of(t)[i]).epsilon(1e-4));
  };
  CHECK(once.ledger().table_of(t)[0] == 40.0f);
  same(once, often);
  float const bad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
  query_talk<float> worse = f.talk;
  for (std::uint32_t i = 0; i < 10 * 4; ++i) worse.rows[i * 10 + i % 10] = bad[i % 2];
  auto spoilt = support::make_cache(f.memory, evicting(f.score)),
       fewer = support::make_cache(f.memory, evicting(f.score));
  spoilt.open(1, 40);
  spoilt.observe({0, 1, 40}, worse.of(0, 40), {});
  fewer.open(1, 40);
  fewer.observe({0, 1, 30}, f.talk.of(10, 30), {});
  CHECK(spoilt.ledger().table_of(t)[0] == 30.0f);
  same(spoilt, fewer);
}

TEST_CASE("the table goes where the sequence goes, and a shift changes no score") {
  fixture f;
  auto& cache = f.cache;
  auto const known = table_bits(cache, 1);
  CHECK(known.size() == 4 * 2 * (1 + 10 + 6));
  cache.fork(1, 0);
  CHECK(table_bits(cache, 0) == known);
  kvmeld::track const t = kvmeld::make_track(f.extent, 1, 1, 0);
  auto const before = scores_of(f.score, cache.ref(), t);
  cache.shift(1, 9, f.score.rope, 0);
  auto const after = scores_of(f.score, cache.ref(), t);
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(after[i] == doctest::Approx(before[i]).epsilon(1e-3));
  auto const bytes = cache.save(1);
  cache.resume(2, bytes);
  CHECK(table_bits(cache, 2) == known);
  CHECK(cache.save(2) == bytes);
  cache.close(2);
  cache.open(2, 10);
  CHECK(table_bits(cache, 2) == std::vector<std::uint32_t>(known.size(), 0));
}

TEST_CASE("one entry, no query, and keys that overflow") {
  fixture f;
  kvmeld::track const t = kvmeld::make_track(f.extent, 0, 1, 0);
  support::write_row(f.memory.tensors().keys, t, 9, std::vector<float>(10, 3e38f));
  auto const got = scores_of(f.score, f.cache.ref(), t);
  CHECK(got[9] == kvmeld::element_traits<float>::lowest);
  for (std::size_t i = 0; i < got.size(); ++i) CHECK((i == 9 || std::abs(got[i]) < 10));
  f.cache.open(0, 1);
  f.memory.fill_sequence(f.d, 0, 0, 1, support::texture::noise);
  CHECK(scores_of(f.score, f.cache.ref(), kvmeld::make_track(f.extent, 0, 0, 0)) == std::vector<float>{0.0f});
  f.cache.open(2, 20);
  f.memory.fill_sequence(f.d, 2, 0, 20, support::texture::noise);
  CHECK(scores_of(f.score, f.cache.ref(), kvmeld::make_track(f.extent, 0, 2, 0)) ==
        std::vector<float>(20, 0.0f));
}

TEST_CASE("means that were measured before give the scores of a table, and are joined by counts") {
  fixture f;
  kvmeld::calibrate::query_means once;
  CHECK(once.add(f.cache, 1));
  auto layers = once.layers();
  distance_preference given = f.score;
  given.means = layers.data();
  auto cache = support::make_cache(f.memory, evicting(given));
  CHECK(!cache.needs_observation());
  CHECK(cache.ledger().table_floats == 0);
  cache.open(1, 30);
  support::for_tracks(f.extent, 1, [&](kvmeld::track t) {
    CHECK(scores_of(given, cache.ref(), t) == scores_of(f.score, f.cache.ref(), t));
  });
  auto online = support::make_cache(f.memory, evicting(f.score));
  online.open(1, 30);
  for (std::uint32_t layer = 0; layer < 2; ++layer) online.observe({layer, 1, 20}, f.talk.of(10, 20), {});
  support::engine_memory<float> const before = f.memory;
  CHECK(online.compress({1}, kvmeld::budget::entries(12)).ok());
  support::engine_memory<float> const wanted = f.memory;
  f.memory = before;
  auto chosen = support::make_cache(f.memory, kvmeld::compose::composed_of(evicting(given)));
  CHECK(!chosen.needs_observation());
  chosen.open(1, 30);
  CHECK(chosen.compress({1}, kvmeld::budget::entries(12)).ok());
  CHECK(f.memory == wanted);

  // Two sequences have the means of all queries.
  f = fixture();
  kvmeld::calibrate::query_means parts, whole;
  f.cache.open(0, 30);
  f.cache.open(2, 60);
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    f.cache.observe({layer, 0, 10}, f.talk.of(20, 10), {});
    f.cache.observe({layer, 2, 60}, f.talk.of(0, 60), {});
  }
  auto longer = support::make_cache(f.memory, evicting(f.score));
  longer.open(0, 20);
  longer.open(1, 60);
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    longer.observe({layer, 0, 20}, f.talk.of(0, 20), {});
    longer.observe({layer, 1, 40}, f.talk.of(20, 40), {});
  }
  CHECK(whole.add(f.cache, 2));
  CHECK(parts.add(longer, 0));
  CHECK(parts.add(longer, 1));
  for (std::size_t i = 0; i < whole.numbers[1].size(); ++i)
    CHECK(parts.numbers[1][i] == doctest::Approx(whole.numbers[1][i]).epsilon(1e-4));

  auto none = support::make_cache(f.memory, kvmeld::preset::keydiff::for_budget());
  cache_test::check_text(refusal_of([&] { parts.add(none, 0); }),
                         {"add: number of floats that the score keeps"});
  cache_test::check_text(refusal_of([&] { parts.add(longer, 3); }),
                         {"add: sequence is 3; it must be 0 to 2"});
  kvmeld::shape const other{2, 1, 1, 2, 10, 6, 60};
  support::engine_memory<float> memory(other);
  auto smaller = support::make_cache(memory, evicting(f.score));
  cache_test::check_text(refusal_of([&] { parts.add(smaller, 0); }),
                         {"add: number of floats of a layer is 34"});
}

TEST_CASE("what cannot be is refused") {
  fixture f;
  CHECK(f.cache.needs_observation().when == kvmeld::observation::every_step);
  auto const problem = [&](auto change) {
    distance_preference score = f.score;
    change(score);
    return refusal_of([&] { support::make_cache(f.memory, evicting(score)); });
  };
  CHECK(problem([](auto& s) { s.farthest = 0; }) ==
        "merged_cache: policy: score::distance_preference.farthest is 0; it must be at least 1");
  cache_test::check_text(problem([](auto& s) { s.rope.rotary_dim = 12; }), {"rope.rotary_dim is 12"});
  kvmeld::position_t const map[] = {3};
  cache_test::check_text(problem([&](auto& s) {
                           s.rope.map = map;
                           s.rope.mapped = 1;
                         }),
                         {"rope.map is given; it must be null"});
  cache_test::check_text(problem([](auto& s) { s.rope.positions = kvmeld::rope_positions::slot; }),
                         {"rope.positions is rope_positions::slot"});
}

TEST_CASE("policies by distances do not depend on lanes, and merge what they would evict") {
  using kvmeld::testing::policy_problem;
  namespace preset = kvmeld::preset;
  kvmeld::rope_params rope;
  rope.pairing = kvmeld::rope_pairing::interleaved;
  CHECK(policy_problem(preset::triattention::with_rope(rope)) == "");
  CHECK(policy_problem(preset::merging(preset::triattention::with_rope({}))) == "");
}

}  // namespace distance_preference_cases
