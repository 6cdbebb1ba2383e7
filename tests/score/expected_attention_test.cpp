// Expected Attention: against plain loops in double precision, its identities, and the life of its table.
#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cache/refusal.hpp"
#include "query_talk.hpp"
#include "reference/expected_attention.hpp"
#include "scores_of.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace expected_attention_cases {

using cache_test::refusal_of;
using kvmeld::score::expected_attention;
using score_test::evicting;
using score_test::rope_of;
using score_test::scores_of;
using score_test::worst_of;
using support::dice;

namespace {

// The queries of one layer and sequence, token by token, before and after their rotation.
template <class Q> struct speech {
  kvmeld::shape extent;
  reference::pair_rotation turn;
  std::vector<reference::matrix> plain;  // [head][token]
  std::vector<Q> turned;                 // [token][head][channel]

  speech(kvmeld::shape const& s, reference::pair_rotation const& r)
      : extent(s), turn(r), plain(s.query_heads()) {}

  // One more token, whose queries are turned for a position.
  void say(dice& d, long position, double spread = 1) {
    for (std::uint32_t h = 0; h < extent.query_heads(); ++h) {
      reference::row q;
      for (std::uint32_t c = 0; c < extent.key_dim; ++c)
        q.push_back(0.5 * std::sin(1.0 + 3.0 * h + c) + spread * d.normal());
      plain[h].push_back(q);
      for (double x : turn.turned(q, static_cast<double>(position)))
        turned.push_back(kvmeld::element_traits<Q>::from_float(static_cast<float>(x)));
    }
  }
  // The last `n` tokens, as the engine has them.
  kvmeld::head_rows<Q const> last(std::uint32_t n) const {
    std::size_t const row = std::size_t{extent.query_heads()} * extent.key_dim;
    return kvmeld::rows_by_token(turned.data() + turned.size() - n * row, n, extent.query_heads(),
                                 extent.key_dim);
  }
};

// The observed queries of the heads of one KV head.
template <class Q>
std::vector<reference::matrix> queries_of(speech<Q> const& s, kvmeld::track t,
                                          std::vector<char> const& shown) {
  std::vector<reference::matrix> out;
  for (std::uint32_t h = 0; h < s.extent.queries_per_kv_head; ++h) {
    out.emplace_back();
    auto const& all = s.plain[t.kv_head * s.extent.queries_per_kv_head + h];
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (shown[i]) out.back().push_back(all[i]);
    }
  }
  return out;
}

template <class T, class Q> void check_scores(dice& d, double tolerance) {
  kvmeld::shape const s{1,
                        1,
                        d.between(1, 2),
                        d.pick({1u, 2u, 3u}),
                        d.between(1, 3) * d.between(1, 13),
                        d.between(1, 20),
                        d.between(70, 180)};
  CAPTURE(s.key_dim);
  reference::pair_rotation const turn = score_test::random_turn(d, s.key_dim);
  CAPTURE(turn.dim);
  expected_attention score{rope_of(turn), d.pick({1u, 7u, 512u}), d.pick({0u, 4u, 9u}),
                           d.chance(0.5) ? 0.0f : 0.02f, d.chance(0.5)};
  if (!score.keys_rotated && d.chance(0.5)) score.rope.positions = kvmeld::rope_positions::slot;
  bool const by_slot = score.rope.active() && score.rope.positions == kvmeld::rope_positions::slot;
  CAPTURE(score.keys_rotated);
  CAPTURE(by_slot);
  support::engine_memory<T> memory(s, d.chance(0.5) ? "LSHTC" : d.chance(0.5) ? "LSTHC" : "LSHCT");
  auto cache = support::make_cache(memory, evicting(score));
  kvmeld::attention_params params;
  if (d.chance(0.3)) params.scale = 0.3f;
  kvmeld::query_sample const sample{0, d.pick({1u, 1u, 3u})};
  // The sequence has lost entries before, so that slots are no positions.
  std::uint32_t const first = d.between(12, 40);
  speech<Q> spoken(s, turn);
  std::vector<char> shown;
  cache.open(0, first);
  memory.fill_sequence(d, 0, 0, first, support::texture::walk);
  for (std::uint32_t i = 0; i < first; ++i) spoken.say(d, i);
  auto const observe = [&](std::uint32_t n) {
    cache.observe({0, 0, n}, spoken.last(n), {}, params, sample);
    std::uint32_t const at = cache.tokens(0) - n;
    shown.resize(cache.tokens(0), 0);
    for (std::uint32_t q = 0; q < n; ++q) {
      if ((n - 1 - q) % sample.stride == 0 && at + q >= score.sinks) shown[at + q] = 1;
    }
  };
  observe(d.between(1, first));
  cache.compress({0}, kvmeld::budget::entries(d.between(9, first)));
  while (d.chance(0.8)) {
    std::uint32_t const n = d.pick({1u, 1u, 33u, 20u}), slot = cache.longest(0);
    if (slot + n > s.capacity) break;
    for (std::uint32_t i = 0; i < n; ++i) spoken.say(d, by_slot ? slot + i : cache.tokens(0) + i);
    cache.append({0}, {n});
    memory.fill_sequence(d, 0, slot, n, support::texture::walk);
    cache.commit({0}, {n});
    observe(n);
  }
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    auto const ref = cache.ref();
    if (d.chance(0.3)) {
      for (std::uint32_t i = 0; i < ref.length(t); ++i)
        ref.ledger.degree[ref.ledger.at(t, i)] = static_cast<float>(d.between(1, 4));
    }
    reference::track_state const track = support::read_track(ref, t);
    reference::future_options o;
    o.turn = turn;
    o.scale = params.scale != 0.0f ? static_cast<double>(params.scale) : 1 / std::sqrt(double(s.key_dim));
    o.next = by_slot ? ref.length(t) : cache.tokens(0);
    o.future = score.future;
    o.sinks = score.sinks;
    o.epsilon = static_cast<double>(score.epsilon);
    for (std::uint32_t i = 0; i < ref.length(t) && !score.keys_rotated; ++i)
      o.turned_for.push_back(by_slot ? i : static_cast<double>(track.position[i]));
    auto const wanted = reference::expected_attention(queries_of(spoken, t, shown), track, o);
    CHECK(worst_of(scores_of(score, ref, t), wanted) <= tolerance);
    CHECK(worst_of(scores_of(score, ref, t, score_test::tuned()), wanted) <= tolerance);
  });
}

// A cache whose tables know something, and its tensors.
struct fixture {
  kvmeld::shape extent{2, 3, 2, 3, 10, 6, 60};
  support::engine_memory<float> memory{extent};
  reference::pair_rotation turn{10, false, 100.0, 1.0};
  expected_attention score{rope_of(turn), 16};
  decltype(support::make_cache(memory, evicting(score))) cache = support::make_cache(memory, evicting(score));
  dice d{2203};
  speech<float> spoken{extent, turn};

  fixture() {
    cache.open(1, 30);
    memory.fill_sequence(d, 1, 0, 30, support::texture::walk);
    for (long i = 0; i < 30; ++i) spoken.say(d, i);
    for (std::uint32_t layer = 0; layer < 2; ++layer) cache.observe({layer, 1, 20}, spoken.last(20), {});
  }
};

// The tables of a sequence.
template <class Cache> std::vector<float> tables(Cache const& cache, std::uint32_t sequence) {
  std::vector<float> out;
  kvmeld::ledger_ref const& l = cache.ledger();
  support::for_tracks(l.extent, sequence, [&](kvmeld::track t) {
    out.insert(out.end(), l.table_of(t), l.table_of(t) + l.table_floats);
  });
  return out;
}

}  // namespace

TEST_CASE("Expected Attention is what plain loops compute") {
  dice d(2201);
  for (int i = 0; i < 40; ++i) {
    check_scores<float, float>(d, 3e-4);
    check_scores<kvmeld::bfloat16, float>(d, 3e-4);
  }
  for (int i = 0; i < 10; ++i) check_scores<float, kvmeld::float16>(d, 5e-3);
}

TEST_CASE("queries that are all equal: a softmax of one product, times the norm of the value") {
  dice d(2202);
  kvmeld::shape const s{1, 1, 1, 3, 8, 4, 50};
  support::engine_memory<float> memory(s);
  expected_attention const score{};  // neither queries nor keys turn
  auto cache = support::make_cache(memory, evicting(score));
  cache.open(0, 50);
  memory.fill_sequence(d, 0, 0, 50, support::texture::noise);
  speech<float> spoken(s, {});
  for (long i = 0; i < 50; ++i) spoken.say(d, i, 0);
  std::uint32_t const layer = 0, slot = 0, n = 50;
  auto const queries = spoken.last(n);
  kvmeld::attention_params const params;
  cache.observe({layer, slot, n}, queries, {}, params);
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  reference::track_state const track = support::read_track(cache.ref(), t);
  auto const got = scores_of(score, cache.ref(), t);
  std::vector<double> wanted(50, 0.0);
  for (std::uint32_t h = 0; h < 3; ++h) {
    std::vector<double> p(50, 0.0);
    double sum = 0;
    for (std::size_t i = 4; i < 50; ++i) {
      for (std::size_t c = 0; c < 8; ++c) p[i] += spoken.plain[h][0][c] * track.keys[i][c] / std::sqrt(8.0);
      sum += p[i] = std::exp(p[i]);
    }
    for (std::size_t i = 4; i < 50; ++i) wanted[i] += p[i] / sum / 3 * reference::norm_of(track.values[i]);
  }
  double const best = *std::max_element(wanted.begin(), wanted.end());
  for (std::size_t i = 0; i < 4; ++i) wanted[i] = best;
  CHECK(worst_of(got, wanted) <= 2e-5);
}

TEST_CASE("queries far from 0, observed at once or in several calls, have the same moments") {
  dice d(2204);
  kvmeld::shape const s{1, 1, 2, 3, 9, 4, 200};
  support::engine_memory<float> memory(s);
  reference::pair_rotation const turn{8, true, 50.0, 1.0};
  auto const policy = evicting(expected_attention{rope_of(turn)});
  auto once = support::make_cache(memory, policy), often = support::make_cache(memory, policy);
  speech<float> spoken(s, turn);
  for (long i = 0; i < 200; ++i) spoken.say(d, i);
  for (auto& of_head : spoken.plain) {  // means are 100 times as large as deviations
    for (auto& q : of_head) q[8] += 100;
  }
  for (std::size_t i = 8; i < spoken.turned.size(); i += 9) spoken.turned[i] += 100.0f;
  once.open(0, 200);
  once.observe({0, 0, 200}, spoken.last(200), {});
  often.open(0);
  for (std::uint32_t at = 0; at < 200;) {
    std::uint32_t const n = std::min(d.pick({1u, 5u, 40u}), 200 - at);
    often.append({0}, {n});
    often.commit({0}, {n});
    auto const block = kvmeld::rows_by_token<float const>(
        spoken.turned.data() + std::size_t{at} * s.query_heads() * 9, n, s.query_heads(), 9);
    often.observe({0, 0, n}, block, {});
    at += n;
  }
  auto const a = tables(once, 0), b = tables(often, 0);
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(b[i] == doctest::Approx(a[i]).epsilon(1e-4));
  CHECK(a[0] == 196.0f);
  double variance = 0, mean = 0;  // of the channel that does not turn, times the squared scale 1 / 9
  for (std::size_t i = 4; i < 200; ++i) mean += spoken.plain[0][i][8] / 196;
  for (std::size_t i = 4; i < 200; ++i) variance += std::pow(spoken.plain[0][i][8] - mean, 2) / 9;
  CHECK(a[1 + 9 + 80] == doctest::Approx(variance).epsilon(1e-4));
}

TEST_CASE("the table goes where the sequence goes") {
  fixture f;
  auto& cache = f.cache;
  auto const known = tables(cache, 1);
  CHECK(known.size() == 4 * 3 * 111);
  CHECK(std::count(known.begin(), known.end(), 0.0f) == 0);
  cache.fork(1, 0);
  CHECK(tables(cache, 0) == known);
  cache.shift(0, 5);
  cache.truncate(0, 31);
  CHECK(tables(cache, 0) == known);
  cache.compress({0}, kvmeld::budget::entries(20));
  CHECK(tables(cache, 0) == known);
  auto copy = support::twin_of(cache);
  CHECK(tables(copy, 1) == known);

  auto const bytes = cache.save(1);
  cache.resume(2, bytes);
  CHECK(tables(cache, 2) == known);
  CHECK(cache.save(2) == bytes);
  cache.close(2);
  cache.open(2, 10);
  CHECK(tables(cache, 2) == std::vector<float>(known.size(), 0.0f));
  CHECK(tables(cache, 1) == known);

  // More queries go to one of the copies alone.
  cache.observe({0, 0, 2}, f.spoken.last(2), {});
  CHECK(tables(cache, 0) != known);
  CHECK(tables(cache, 1) == known);
}

TEST_CASE("a sequence whose positions and keys are shifted scores its entries as before") {
  fixture f;
  kvmeld::track const t = kvmeld::make_track(f.extent, 1, 1, 1);
  auto const before = scores_of(f.score, f.cache.ref(), t);
  f.cache.shift(1, 7, f.score.rope, 4);  // the sinks stay
  auto const after = scores_of(f.score, f.cache.ref(), t);
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(after[i] == doctest::Approx(before[i]).epsilon(1e-3));
}

TEST_CASE("a cache of another table cannot resume, and caches without one save no byte more") {
  fixture f;
  auto const bytes = f.cache.save(1);
  auto none = support::make_cache(f.memory, kvmeld::preset::keydiff::for_budget());
  none.open(1, 30);
  CHECK(none.ledger().table_floats == 0);
  CHECK(none.ledger().table == nullptr);
  std::size_t const without = none.save(1).size();
  std::size_t const names = std::string("expected_attention").size() - std::string("key_difference").size();
  // And the facts that a table depends on, as a text.
  kvmeld::kept_facts facts(f.cache.options().extent,
                           [](float const*, std::size_t) { return std::vector<float>(); });
  f.cache.policy().score.tell_kept(facts);
  CHECK(bytes.size() == without + names + facts.text().size() + tables(f.cache, 1).size() * sizeof(float));
  none.close(1);
  cache_test::check_text(refusal_of([&] { none.resume(1, bytes); }),
                         {"resume: number of floats that the score keeps of a track of the saved ledger is"});
}

TEST_CASE("queries that hold no number count for nothing") {
  dice d(2205);
  kvmeld::shape const s{1, 1, 1, 2, 8, 4, 40};
  support::engine_memory<float> memory(s);
  auto const policy = evicting(expected_attention{rope_of({8, false, 100.0, 1.0})});
  auto cache = support::make_cache(memory, policy), fewer = support::make_cache(memory, policy);
  cache.open(0, 40);
  fewer.open(0, 40);
  speech<float> spoken(s, {8, false, 100.0, 1.0});
  for (long i = 0; i < 40; ++i) spoken.say(d, i);
  fewer.observe({0, 0, 10}, spoken.last(10), {});
  float const bad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
  for (std::uint32_t i = 0; i < 30 * 2; ++i) spoken.turned[i * 8 + i % 8] = bad[i % 2];
  cache.observe({0, 0, 40}, spoken.last(40), {});
  auto const a = tables(cache, 0), b = tables(fewer, 0);
  CHECK(a[0] == 10.0f);
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(1e-4));
}

TEST_CASE("keys so long that their weights overflow have no share") {
  fixture f;
  kvmeld::track const t = kvmeld::make_track(f.extent, 0, 1, 0);
  auto const before = scores_of(f.score, f.cache.ref(), t);
  auto const x = f.memory.tensors();
  support::write_row(x.keys, t, 9, std::vector<float>(10, 3e30f));
  auto const after = scores_of(f.score, f.cache.ref(), t);
  CHECK(after[9] == 0.0f);
  for (std::size_t i = 4; i < after.size(); ++i) CHECK((i == 9 || after[i] >= before[i]));
  for (std::uint32_t i = 0; i < 30; ++i) support::write_row(x.keys, t, i, std::vector<float>(10, 3e30f));
  CHECK(scores_of(f.score, f.cache.ref(), t) == std::vector<float>(30, 0.0f));
}

TEST_CASE("tracks that observed nothing are refused; sinks alone leave the norms of values") {
  fixture f;
  CHECK(f.cache.needs_observation().when == kvmeld::observation::every_step);
  f.cache.open(0, 30);
  f.memory.fill_sequence(f.d, 0, 0, 30, support::texture::walk);
  cache_test::check_text(
      refusal_of([&] { f.cache.compress({0}, kvmeld::budget::entries(9)); }),
      {"number of observed rows of track (layer 0, sequence 0, head 0) is 0; it must be at least 1"});
  f.cache.open(2, 3);
  f.cache.observe({0, 2, 3}, f.spoken.last(3), {});
  f.cache.append({2}, {9});
  f.cache.commit({2}, {9});
  f.memory.fill_sequence(f.d, 2, 0, 12, support::texture::walk);
  kvmeld::track const t = kvmeld::make_track(f.extent, 0, 2, 0);
  CHECK(f.cache.ledger().table_of(t)[0] == 0.0f);
  auto const got = scores_of(f.score, f.cache.ref(), t);
  auto const track = support::read_track(f.cache.ref(), t);
  for (std::uint32_t i = 4; i < 12; ++i)
    CHECK(got[i] == doctest::Approx(reference::norm_of(track.values[i]) / 8).epsilon(1e-4));
}

TEST_CASE("what cannot be is refused") {
  fixture f;
  std::vector<float> numbers(f.extent.slots() * f.extent.query_heads());
  auto const rows = kvmeld::rows_by_head<float const>(numbers.data(), 1, f.extent.query_heads(), 60);
  cache_test::refused(
      f.cache, f.memory,
      [&](auto& c) {
        c.observe_rows({0, 1, 1}, rows);
      },
      {"observe_rows: policy is one whose score absorbs queries; it must be one that needs attention only"});
  cache_test::refused(f.cache, f.memory,
                      [&](auto& c) {
                        c.observe_logits({0, 1, 1}, rows, rows);
                      },
                      {"observe_logits: policy is one whose score absorbs queries"});
  cache_test::refused(f.cache, f.memory,
                      [&](auto& c) {
                        c.observe({0, 1, 1}, kvmeld::head_rows<float const>{}, {});
                      },
                      {"query.data is null"});
  auto const problem = [&](auto change) {
    expected_attention score = f.score;
    change(score);
    return refusal_of([&] { support::make_cache(f.memory, evicting(score)); });
  };
  CHECK(problem([](auto& s) { s.future = 0; }) ==
        "merged_cache: policy: score::expected_attention.future is 0; it must be at least 1");
  cache_test::check_text(problem([](auto& s) { s.epsilon = -1.0f; }),
                         {"epsilon is -1; it must be at least 0"});
  cache_test::check_text(problem([](auto& s) { s.rope.rotary_dim = 12; }), {"rope.rotary_dim is 12"});
  kvmeld::position_t const map[] = {3};
  cache_test::check_text(problem([&](auto& s) {
                           s.rope.map = map;
                           s.rope.mapped = 1;
                         }),
                         {"rope.map is given; it must be null"});
  cache_test::check_text(problem([](auto& s) { s.rope.positions = kvmeld::rope_positions::slot; }),
                         {"rope.positions is rope_positions::slot"});
  kvmeld::shape const wide{1, 1, 1, 1, 1u << 14, 1, 1};
  support::engine_memory<float> memory(wide);
  cache_test::check_text(refusal_of([&] { support::make_cache(memory, evicting(expected_attention{})); }),
                         {"number of floats that the score keeps of each track is 268451841"});
}

TEST_CASE("attention that feeds the table, and a score chosen at run time, do what observe does") {
  fixture f;
  using kvmeld::compose::composed_of;
  auto const policy = evicting(f.score);
  auto chosen = support::make_cache(f.memory, composed_of(policy));
  auto plain = support::make_cache(f.memory, policy);
  chosen.open(1, 30);
  plain.open(1, 30);
  std::uint32_t const heads = f.extent.query_heads();
  std::vector<float> out(std::size_t{20} * heads * f.extent.value_dim),
      memory(kvmeld::attention::observed_floats(f.extent, 1, 20));
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    kvmeld::attention::attend_and_observe(plain, {layer, 1, 20}, f.spoken.last(20),
                                          kvmeld::rows_by_token(out.data(), 20, heads, f.extent.value_dim),
                                          {memory.data(), memory.size()});
    chosen.observe({layer, 1, 20}, f.spoken.last(20), {});
  }
  CHECK(tables(plain, 1) == tables(f.cache, 1));
  CHECK(tables(chosen, 1) == tables(f.cache, 1));
  CHECK(chosen.compress({1}, kvmeld::budget::entries(12)).ok());
  support::engine_memory<float> const merged = f.memory;
  f = fixture();
  CHECK(f.cache.compress({1}, kvmeld::budget::entries(12)).ok());
  CHECK(f.memory == merged);
}

}  // namespace expected_attention_cases
