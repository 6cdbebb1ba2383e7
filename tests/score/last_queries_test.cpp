// The scores of the last queries, R-KV and DropKV: against plain loops in double precision, their identities,
// and the life of the table of queries.
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
#include "reference/last_queries.hpp"
#include "scores_of.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace last_queries_cases {

using cache_test::refusal_of;
using kvmeld::score::drop_error;
using kvmeld::score::redundancy;
using score_test::evicting;
using score_test::query_talk;
using score_test::scores_of;
using score_test::table_bits;
using score_test::worst_of;
using support::dice;

namespace {

// A cache with a past: prompt, compression, more tokens. `shown` are the tokens whose queries are kept.
template <class T, class Q, class Score> struct life {
  kvmeld::shape extent;
  Score score;
  support::engine_memory<T> memory;
  query_talk<Q> talk;
  kvmeld::attention_params params;
  std::vector<std::uint32_t> shown;
  decltype(support::make_cache(memory, evicting(score))) cache;

  life(dice& d, kvmeld::shape const& s, Score const& by)
      : extent(s),
        score(by),
        memory(s, d.chance(0.5)   ? "LSHTC"
                  : d.chance(0.5) ? "LSTHC"
                                  : "LSHCT"),
        talk(s),
        cache(support::make_cache(memory, evicting(by))) {
    if (d.chance(0.3)) params.scale = 0.3f;
    kvmeld::query_sample const sample{0, d.pick({1u, 1u, 3u})};
    std::uint32_t const first = d.between(1, s.capacity / 2);
    cache.open(0, first);
    memory.fill_sequence(d, 0, 0, first, support::texture::clusters);
    talk.say(d, first);
    observe(d.between(1, first), sample);
    if (d.chance(0.5)) cache.compress({0}, kvmeld::budget::entries(d.between(1, first)));
    while (d.chance(0.7)) {
      std::uint32_t const n = d.pick({1u, 1u, 9u, 33u}), slot = cache.longest(0);
      if (slot + n > s.capacity) break;
      cache.append({0}, {n});
      memory.fill_sequence(d, 0, slot, n, support::texture::clusters);
      cache.commit({0}, {n});
      talk.say(d, n);
      observe(n, sample);
    }
  }
  void observe(std::uint32_t n, kvmeld::query_sample sample) {
    std::uint32_t const begin = cache.tokens(0) - n;
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer)
      cache.observe({layer, 0, n}, talk.of(begin, n), {}, params, sample);
    for (std::uint32_t q = 0; q < n; ++q) {
      if ((n - 1 - q) % sample.stride == 0) shown.push_back(begin + q);
    }
    if (shown.size() > score.window)
      shown.erase(shown.begin(), shown.end() - static_cast<std::ptrdiff_t>(score.window));
  }
  // A track as queries meet it, with degrees and with rows that hold no number.
  reference::track_state track(dice& d, kvmeld::track t, bool unrotated) {
    auto const ref = cache.ref();
    for (std::uint32_t i = 0; i < ref.length(t); ++i) {
      if (d.chance(0.3)) ref.ledger.degree[ref.ledger.at(t, i)] = static_cast<float>(d.between(1, 4));
      if (!d.chance(0.05)) continue;
      std::vector<float> const bad(extent.value_dim, std::numeric_limits<float>::quiet_NaN());
      support::write_row(memory.tensors().values, t, i, bad);
      ref.ledger.flags[ref.ledger.at(t, i)] |= kvmeld::entry_flag::nonfinite;
    }
    reference::track_state out = support::read_track(ref, t);
    for (std::size_t i = 0; i < out.size() && unrotated; ++i)
      out.keys[i] = turn.turned(out.keys[i], static_cast<double>(out.position[i]));
    return out;
  }
  double scale() const {
    return params.scale != 0.0f ? static_cast<double>(params.scale) : 1 / std::sqrt(double(extent.key_dim));
  }
  reference::pair_rotation turn;
};

kvmeld::shape random_shape(dice& d) {
  return {1,
          1,
          d.between(1, 2),
          d.between(1, 3),
          d.between(1, 3) * d.between(1, 13),
          d.between(1, 20),
          d.between(40, 120)};
}

// What a compression makes of a score for rows that hold no number does not count.
void leave_out(std::vector<float>& got, std::vector<double>& wanted, reference::track_state const& t) {
  for (std::size_t i = 0; i < t.size(); ++i) {
    if (t.bad[i]) wanted[i] = 0, got[i] = 0;
  }
}

template <class T, class Q> void check_redundancy(dice& d, double tolerance, std::size_t& compared) {
  kvmeld::shape const s = random_shape(d);
  CAPTURE(s.key_dim);
  redundancy score;
  score.window = d.pick({1u, 3u, 8u, 40u});
  score.lambda = d.pick({0.0f, 0.1f, 0.6f, 1.0f});
  score.alike = d.pick({0.5f, 0.8f, -0.2f});
  score.pool.kernel = d.pick({1u, 3u, 7u});
  reference::pair_rotation const turn = score_test::random_turn(d, s.key_dim);
  bool const unrotated = turn.dim != 0 && d.chance(0.5);
  if (unrotated) score.rope = score_test::rope_of(turn);
  life<T, Q, redundancy> l(d, s, score);
  l.turn = turn;
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    auto const track = l.track(d, t, unrotated);
    double margin = 1;
    auto const plain = support::read_track(l.cache.ref(), t);
    auto wanted = reference::redundancy(l.talk.of_heads(t, l.shown, l.scale()), track, plain.keys,
                                        static_cast<double>(score.lambda), static_cast<double>(score.alike),
                                        score.pool.kernel, margin);
    if (margin < 1e-5) return;
    ++compared;
    for (auto const* kernels : {static_cast<kvmeld::host_kernels const*>(nullptr), score_test::tuned()}) {
      auto got = scores_of(score, l.cache.ref(), t, kernels);
      leave_out(got, wanted, track);
      CHECK(worst_of(got, wanted) <= tolerance);
    }
  });
}

template <class T, class Q> void check_drop_error(dice& d, double tolerance) {
  kvmeld::shape const s = random_shape(d);
  CAPTURE(s.key_dim);
  drop_error score;
  score.window = d.pick({1u, 3u, 8u, 40u});
  score.pool.kernel = d.pick({1u, 3u, 11u});
  reference::pair_rotation const turn = score_test::random_turn(d, s.key_dim);
  bool const unrotated = turn.dim != 0 && d.chance(0.5);
  if (unrotated) score.rope = score_test::rope_of(turn);
  life<T, Q, drop_error> l(d, s, score);
  l.turn = turn;
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    auto const track = l.track(d, t, unrotated);
    auto const changes = reference::change_without(l.talk.of_heads(t, l.shown, l.scale()), track);
    auto wanted = reference::pooled(changes, score.pool.kernel, false);
    for (auto const* kernels : {static_cast<kvmeld::host_kernels const*>(nullptr), score_test::tuned()}) {
      auto got = scores_of(score, l.cache.ref(), t, kernels);
      leave_out(got, wanted, track);
      CHECK(worst_of(got, wanted) <= tolerance);
    }
  });
}

// A cache of one layer and sequence, all of whose tokens are shown.
template <class Score> struct fixture {
  kvmeld::shape extent{1, 3, 1, 2, 8, 6, 60};
  support::engine_memory<float> memory{extent};
  Score score;
  query_talk<float> talk{extent};
  dice d;
  decltype(support::make_cache(memory, evicting(score))) cache;

  explicit fixture(std::uint64_t seed, Score const& by = {})
      : score(by), d(seed), cache(support::make_cache(memory, evicting(by))) {
    cache.open(1, 40);
    memory.fill_sequence(d, 1, 0, 40, support::texture::walk);
    talk.say(d, 60);
    cache.observe({0, 1, 40}, talk.of(0, 40), {});
  }
  kvmeld::track track(std::uint32_t sequence = 1) const { return kvmeld::make_track(extent, 0, sequence, 0); }
};

}  // namespace

TEST_CASE("R-KV is what plain loops compute") {
  dice d(2401);
  std::size_t compared = 0;
  for (int i = 0; i < 60; ++i) {
    check_redundancy<float, float>(d, 2e-5, compared);
    check_redundancy<kvmeld::bfloat16, float>(d, 2e-5, compared);
  }
  for (int i = 0; i < 10; ++i) check_redundancy<float, kvmeld::float16>(d, 2e-5, compared);
  CHECK(compared > 100);
}

TEST_CASE("DropKV is the change of the outputs, computed once more without each entry") {
  dice d(2402);
  for (int i = 0; i < 60; ++i) {
    check_drop_error<float, float>(d, 2e-5);
    check_drop_error<kvmeld::bfloat16, float>(d, 2e-5);
  }
  for (int i = 0; i < 10; ++i) check_drop_error<float, kvmeld::float16>(d, 2e-5);
}

TEST_CASE("of equal keys, the newest is the least redundant") {
  fixture<redundancy> f(2403);
  f.score.lambda = 0;
  // Three equal keys, at right angles to all others, which are at right angles to each other or zero.
  for (std::uint32_t i = 0; i < 40; ++i) {
    std::vector<float> key(8, 0.0f);
    if (i < 4) key[4 + i] = 1;
    if (i == 5 || i == 11 || i == 27) key = {1, 2, 3, 4, 0, 0, 0, 0};
    support::write_row(f.memory.tensors().keys, f.track(), i, key);
  }
  auto const got = scores_of(f.score, f.cache.ref(), f.track());
  // The first two strike out the last, and the last strikes out the second.
  double const sum = 38 + std::exp(1.0 / 40) + std::exp(2.0 / 40);
  CHECK(got[27] == doctest::Approx(-1 / sum).epsilon(1e-5));
  CHECK(got[11] == doctest::Approx(-std::exp(1.0 / 40) / sum).epsilon(1e-5));
  CHECK(got[5] == doctest::Approx(-std::exp(2.0 / 40) / sum).epsilon(1e-5));
}

TEST_CASE("keys of zeros resemble none, and nothing that a query sees") {
  fixture<redundancy> f(2404);
  for (std::uint32_t i = 0; i < 40; ++i)
    support::write_row(f.memory.tensors().keys, f.track(), i, std::vector<float>(8, 0.0f));
  auto const got = scores_of(f.score, f.cache.ref(), f.track());
  for (float x : got) CHECK(x == doctest::Approx(0.1 / 32 - 0.9 / 40).epsilon(1e-5));
}

TEST_CASE("one entry, and no query") {
  fixture<redundancy> f(2405);
  f.cache.open(0, 1);
  f.memory.fill_sequence(f.d, 0, 0, 1, support::texture::noise);
  auto const alone = scores_of(f.score, f.cache.ref(), f.track(0));
  REQUIRE(alone.size() == 1);
  CHECK(alone[0] == doctest::Approx(-0.9).epsilon(1e-6));
  f.cache.observe({0, 0, 1}, f.talk.of(0, 1), {});
  CHECK(scores_of(f.score, f.cache.ref(), f.track(0)) == std::vector<float>{0.0f});
  fixture<drop_error> g(2406);
  g.cache.open(0, 1);
  g.memory.fill_sequence(g.d, 0, 0, 1, support::texture::noise);
  CHECK(scores_of(g.score, g.cache.ref(), g.track(0)) == std::vector<float>{0.0f});
  g.cache.observe({0, 0, 1}, g.talk.of(0, 1), {});
  double norm = 0;  // nothing is left without it
  for (double x : support::read_row(g.memory.tensors().values, g.track(0), 0)) norm += x * x;
  CHECK(scores_of(g.score, g.cache.ref(), g.track(0))[0] == doctest::Approx(norm / 11));
}

TEST_CASE("queries that hold no number, and logits that overflow, count for nothing") {
  fixture<drop_error> f(2407);
  drop_error fewer = f.score;
  fewer.window = 5;
  auto few = support::make_cache(f.memory, evicting(fewer));
  few.open(1, 40);
  few.observe({0, 1, 5}, f.talk.of(35, 5), {});
  float const bad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                       3e38f};
  for (std::uint32_t token = 32; token < 35; ++token) {
    for (std::size_t i = 0; i < f.talk.floats_of_token(); ++i)
      f.talk.rows[token * f.talk.floats_of_token() + i] = bad[token - 32];
  }
  for (std::uint32_t i = 0; i < 40; ++i)  // so that every product with 3e38 overflows
    support::write_row(f.memory.tensors().keys, f.track(), i,
                       {9, static_cast<float>(i % 7), 9, 9, static_cast<float>(i % 5), 9, 9, 9});
  f.cache.observe({0, 1, 8}, f.talk.of(32, 8), {});
  CHECK(scores_of(f.score, f.cache.ref(), f.track()) == scores_of(fewer, few.ref(), f.track()));
}

TEST_CASE("the table has the same bits for queries in one call and token by token") {
  dice d(2408);
  for (int turn = 0; turn < 20; ++turn) {
    fixture<redundancy> once(2409);
    redundancy score;
    score.window = d.pick({1u, 5u, 8u, 39u, 50u});
    auto a = support::make_cache(once.memory, evicting(score)),
         b = support::make_cache(once.memory, evicting(score));
    a.open(1, 40);
    a.observe({0, 1, 40}, once.talk.of(0, 40), {});
    b.open(1);
    for (std::uint32_t at = 0; at < 40;) {
      std::uint32_t const n = std::min(d.pick({1u, 1u, 4u, 13u}), 40 - at);
      b.append({1}, {n});
      b.commit({1}, {n});
      b.observe({0, 1, n}, once.talk.of(at, n), {});
      at += n;
    }
    CHECK(table_bits(a, 1) == table_bits(b, 1));
    // The newest queries are enough, if there are as many.
    auto c = support::make_cache(once.memory, evicting(score));
    c.open(1, 40);
    std::uint32_t const n = std::min(score.window, 40u);
    c.observe({0, 1, n}, once.talk.of(40 - n, n), {});
    CHECK(scores_of(score, c.ref(), once.track()) == scores_of(score, a.ref(), once.track()));
  }
}

TEST_CASE("the table goes where the sequence goes, and truncation forgets queries") {
  fixture<redundancy> f(2410);
  auto& cache = f.cache;
  auto const known = table_bits(cache, 1);
  CHECK(known.size() == 2 * (2 + 8 * 9));
  cache.fork(1, 0);
  CHECK(table_bits(cache, 0) == known);
  auto const bytes = cache.save(1);
  cache.resume(2, bytes);
  CHECK(table_bits(cache, 2) == known);
  CHECK(cache.save(2) == bytes);
  cache.close(2);
  cache.open(2, 10);
  CHECK(table_bits(cache, 2) == std::vector<std::uint32_t>(known.size(), 0));

  // Three tokens go, with their queries; two others come.
  cache.truncate(0, 37);
  auto shorter = support::make_cache(f.memory, evicting(f.score));
  shorter.open(1, 37);
  shorter.observe({0, 1, 5}, f.talk.of(32, 5), {});
  auto const scores = [&](auto& of, std::uint32_t sequence) {
    return scores_of(f.score, of.ref(), f.track(sequence));
  };
  auto const x = f.memory.tensors();
  for (std::uint32_t i = 0; i < 40; ++i) {
    std::vector<float> key, value;
    for (double v : support::read_row(x.keys, f.track(1), i)) key.push_back(static_cast<float>(v));
    for (double v : support::read_row(x.values, f.track(1), i)) value.push_back(static_cast<float>(v));
    support::write_row(x.keys, f.track(0), i, key);
    support::write_row(x.values, f.track(0), i, value);
  }
  CHECK(scores(cache, 0) == scores(shorter, 1));
  for (auto* of : {&cache, &shorter}) {
    std::uint32_t const sequence = of == &cache ? 0 : 1;
    of->append({sequence}, {2});
    of->commit({sequence}, {2});
    of->observe({0, sequence, 2}, f.talk.of(50, 2), {});
  }
  CHECK(scores(cache, 0) == scores(shorter, 1));
  CHECK(table_bits(cache, 1) == known);
}

TEST_CASE("once positions have moved back, new queries replace those from before") {
  fixture<redundancy> f(2412);
  auto newest = evicting(f.score);
  newest.select.recents = kvmeld::quantity::rest_of_budget();
  newest.select.heavy = kvmeld::quantity::entries(0);
  auto cache = support::make_cache(f.memory, newest);
  cache.open(1, 40);
  cache.observe({0, 1, 40}, f.talk.of(0, 40), {});
  cache.compress({1}, kvmeld::budget::entries(10));
  cache.shift(1, -25, {}, 30);
  cache.append({1}, {1});
  cache.commit({1}, {1});
  CHECK(cache.tokens(1) == 16);
  cache.observe({0, 1, 1}, f.talk.of(55, 1), {});
  CHECK(kvmeld::float_bits(cache.ledger().table_of(f.track())[0]) == 1);
}

TEST_CASE("scores of the last queries ask for the window, and are refused without it") {
  fixture<redundancy> f(2411);
  CHECK(f.cache.needs_observation().when == kvmeld::observation::prefill_window);
  CHECK(f.cache.needs_observation().rows == 8);
  f.cache.open(0, 30);
  f.memory.fill_sequence(f.d, 0, 0, 30, support::texture::walk);
  cache_test::check_text(refusal_of([&] { f.cache.compress({0}, kvmeld::budget::entries(9)); }),
                         {"number of observed rows of track (layer 0, sequence 0, head 0) is 0"});
  auto const problem = [&](auto score, auto change) {
    change(score);
    return refusal_of([&] { support::make_cache(f.memory, evicting(score)); });
  };
  CHECK(problem(redundancy{}, [](auto& s) { s.window = 0; }) ==
        "merged_cache: policy: score::last_queries.window is 0; it must be at least 1");
  CHECK(problem(drop_error{}, [](auto& s) { s.window = 0; }) ==
        "merged_cache: policy: score::last_queries.window is 0; it must be at least 1");
  cache_test::check_text(problem(redundancy{}, [](auto& s) { s.lambda = 1.5f; }), {"lambda is 1.5"});
  cache_test::check_text(
      problem(redundancy{}, [](auto& s) { s.alike = std::numeric_limits<float>::quiet_NaN(); }),
      {"redundancy.alike is"});
  cache_test::check_text(problem(redundancy{}, [](auto& s) { s.pool.kernel = 2; }), {"kernel is 2"});
  cache_test::check_text(problem(drop_error{}, [](auto& s) { s.pool.kernel = 4; }), {"kernel is 4"});
  auto const odd = [](auto& s) {
    s.rope.pairing = kvmeld::rope_pairing::half_split;
    s.rope.rotary_dim = 12;
  };
  cache_test::check_text(problem(redundancy{}, odd), {"rope.rotary_dim is 12"});
  cache_test::check_text(problem(drop_error{}, [](auto& s) { s.window = 1u << 26; }),
                         {"number of floats that the score keeps of each track"});
}

TEST_CASE("a long answer is compressed after every period") {
  kvmeld::shape const s{1, 1, 1, 2, 8, 6, 200};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::rkv::for_budget());
  query_talk<float> talk(s);
  dice d(2413);
  kvmeld::attention_params const params;
  auto const budget = kvmeld::budget::entries(60);
  std::uint32_t const layer = 0, slot = 0;
  cache.open(slot);
  for (std::uint32_t i = 0; i < 300; ++i) {
    talk.say(d, 1);
    auto const query = talk.of(i, 1);
    std::uint32_t const end = cache.longest(slot);
    cache.append({slot}, {1});
    memory.fill_sequence(d, slot, end, 1, support::texture::noise);
    cache.commit({slot}, {1});
    cache.observe({layer, slot, 1}, query, {}, params);  // in every layer
    if (cache.tokens(slot) % kvmeld::preset::rkv::period == 0) cache.compress({slot}, budget);
  }
  CHECK(cache.longest(slot) == 60 + 300 - 256);
}

TEST_CASE("policies by these scores do not depend on lanes, and merge what they would evict") {
  using kvmeld::testing::policy_problem;
  namespace preset = kvmeld::preset;
  CHECK(policy_problem(preset::rkv::for_budget()) == "");
  CHECK(policy_problem(preset::dropkv::with_window(4)) == "");
  CHECK(policy_problem(preset::merging(preset::rkv::for_budget())) == "");
  CHECK(policy_problem(preset::merging(preset::dropkv::with_window())) == "");
}

}  // namespace last_queries_cases
