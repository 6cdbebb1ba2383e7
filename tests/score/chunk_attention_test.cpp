// Attention inside chunks: against plain loops in double precision, chunks that calls cut, its identities,
// and Compactor, which adds leverage.
#include <kvmeld/compose/any_cache.hpp>
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
#include "reference/chunk_attention.hpp"
#include "reference/expected_attention.hpp"
#include "scores_of.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace chunk_attention_cases {

using cache_test::refusal_of;
using kvmeld::score::chunk_attention;
using score_test::evicting;
using score_test::query_talk;
using score_test::scores_of;
using support::dice;

namespace {

template <class T, class Q> void check_scores(dice& d, double tolerance) {
  kvmeld::shape const s{2,
                        1,
                        d.between(1, 2),
                        d.pick({1u, 2u, 3u}),
                        2 * d.between(1, 20),
                        d.between(1, 20),
                        d.between(70, 300)};
  chunk_attention score{d.pick({1u, 7u, 64u, 100u, 256u}), d.pick({0u, 3u, 8u})};
  score.pooling.kernel = d.pick({1u, 3u, 5u});
  CAPTURE(score.chunk);
  CAPTURE(score.sinks);
  support::engine_memory<T> memory(s, d.chance(0.5) ? "LSHTC" : d.chance(0.5) ? "LSTHC" : "LSHCT");
  auto cache = support::make_cache(memory, evicting(score));
  kvmeld::merged_cache generic(kvmeld::host_executor(2, kvmeld::tuning::off), evicting(score),
                               memory.tensors(), kvmeld::cache_options{s});
  kvmeld::attention_params params;
  if (d.chance(0.3)) params.scale = 0.7f;
  if (d.chance(0.3)) params.softcap = 3.0f;
  params.use_degree = d.chance(0.7);
  params.causal = d.chance(0.7);  // does not matter
  reference::pair_rotation turn;
  if (d.chance(0.4)) {  // keys lie unrotated
    turn.dim = s.key_dim;
    params.rope.pairing = kvmeld::rope_pairing::half_split;
  }
  kvmeld::query_sample const sample{0, d.pick({1u, 1u, 3u})};
  query_talk<Q> spoken(s);
  cache.open(0);
  generic.open(0);
  std::uint32_t const layer = 1, n = d.between(1, s.capacity);
  std::vector<std::vector<double>> sums(s.kv_heads);
  // A prompt in one to three calls, each with the queries of its tokens. Entries stand for several tokens.
  std::uint32_t length = 0;
  while (length < n) {
    std::uint32_t const more = d.chance(0.5) ? n - length : d.between(1, n - length);
    for (auto* c : {&cache}) c->append({0}, {more}), c->commit({0}, {more});
    generic.append({0}, {more}), generic.commit({0}, {more});
    memory.fill_sequence(d, 0, length, more, support::texture::walk);
    spoken.say(d, more, 2);
    length += more;
    std::vector<std::size_t> shown;
    for (std::uint32_t q = 0; q < more; ++q) {
      if ((more - 1 - q) % sample.stride == 0) shown.push_back(length - more + q);
    }
    for (std::uint32_t h = 0; h < s.kv_heads; ++h) {
      kvmeld::track const t = kvmeld::make_track(s, layer, 0, h);
      for (std::uint32_t i = length - more; i < length && d.chance(0.5); ++i) {
        float const degree = static_cast<float>(d.between(1, 4));
        cache.ref().ledger.degree[cache.ref().ledger.at(t, i)] = degree;
        generic.ref().ledger.degree[generic.ref().ledger.at(t, i)] = degree;
      }
      reference::track_state track = support::read_track(cache.ref(), t);
      for (std::uint32_t i = 0; i < length && turn.dim != 0; ++i)
        track.keys[i] = turn.turned(track.keys[i], static_cast<double>(i));
      reference::chunk_options o;
      o.chunk = score.chunk;
      o.sinks = score.sinks;
      o.scale = params.scale != 0.0f ? static_cast<double>(params.scale) : 1 / std::sqrt(double(s.key_dim));
      o.softcap = static_cast<double>(params.softcap);
      o.degrees = params.use_degree;
      sums[h].resize(length, 0.0);
      reference::add_chunk_attention(sums[h], track, spoken.rows_of_heads(t, shown), shown, o);
    }
    cache.observe({layer, 0, more}, spoken.last(more), {}, params, sample);
    generic.observe({layer, 0, more}, spoken.last(more), {}, params, sample);
  }
  for (std::uint32_t h = 0; h < s.kv_heads; ++h) {
    kvmeld::track const t = kvmeld::make_track(s, layer, 0, h);
    reference::track_state const track = support::read_track(cache.ref(), t);
    auto const wanted = reference::chunk_scores(sums[h], track, score.sinks, score.pooling.kernel);
    double most = 1e-9;
    for (double x : wanted) most = std::max(most, x);
    auto const check = [&](std::vector<float> const& got) {
      REQUIRE(got.size() == wanted.size());
      double worst = 0;
      for (std::size_t i = 0; i < got.size(); ++i)
        worst = std::max(worst, std::abs(static_cast<double>(got[i]) - wanted[i]));
      CHECK(worst <= tolerance * most);
    };
    check(scores_of(score, cache.ref(), t));
    check(scores_of(score, cache.ref(), t, score_test::tuned()));
    check(scores_of(score, generic.ref(), t));
  }
}

// What the channel holds of one track.
template <class Cache> std::vector<float> sums_of(Cache const& cache, kvmeld::track t) {
  auto const& l = cache.ledger();
  float const* const from = l.channel_data[0] + l.at(t, 0);
  return {from, from + l.length[t.index]};
}

}  // namespace

TEST_CASE("attention inside chunks is what plain loops compute, in one call or in several") {
  dice d(2501);
  for (int i = 0; i < 40; ++i) {
    check_scores<float, float>(d, 1e-4);
    check_scores<kvmeld::bfloat16, float>(d, 1e-4);
  }
  for (int i = 0; i < 10; ++i) check_scores<kvmeld::float16, kvmeld::bfloat16>(d, 1e-4);
}

TEST_CASE("a chunk's sums add up to the queries of the chunk, and see later entries") {
  dice d(2502);
  kvmeld::shape const s{1, 1, 1, 3, 8, 4, 100};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, evicting(chunk_attention{20, 8}));
  cache.open(0, 100);
  memory.fill_sequence(d, 0, 0, 100, support::texture::walk);
  query_talk<float> spoken(s);
  spoken.say(d, 100);
  cache.observe({0, 0, 100}, spoken.last(100), {});
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  auto const sums = sums_of(cache, t);
  for (std::size_t i = 0; i < 8; ++i) CHECK(sums[i] == 0.0f);
  for (std::size_t begin = 8; begin < 100; begin += 20) {
    double total = 0;
    std::size_t const end = std::min<std::size_t>(100, begin + 20);
    for (std::size_t i = begin; i < end; ++i) total += static_cast<double>(sums[i]);
    CHECK(total == doctest::Approx(static_cast<double>(end - begin)).epsilon(1e-5));
    CHECK(sums[end - 1] > 0.0f);
  }

  // Calls that end where chunks end give the same sums; a cut chunk has those of the entries then present.
  auto parts = support::make_cache(memory, evicting(chunk_attention{20, 8}));
  auto cut = support::make_cache(memory, evicting(chunk_attention{20, 8}));
  auto const tell = [&](auto& other, std::vector<std::uint32_t> const& calls) {
    other.open(0);
    std::uint32_t at = 0;
    for (std::uint32_t n : calls) {
      other.append({0}, {n});
      other.commit({0}, {n});
      other.observe({0, 0, n}, spoken.of(at, n), {});
      at += n;
    }
  };
  tell(parts, {8, 40, 52});
  for (std::size_t i = 0; i < 100; ++i) CHECK(sums_of(parts, t)[i] == doctest::Approx(sums[i]).epsilon(1e-5));
  tell(cut, {38, 62});
  double early = 0, late = 0;
  for (std::size_t i = 28; i < 48; ++i) (i < 38 ? early : late) += static_cast<double>(sums_of(cut, t)[i]);
  CHECK(early + late == doctest::Approx(20.0).epsilon(1e-5));
  CHECK(early > 10.0);  // ten queries looked at ten entries alone
  for (std::size_t i = 8; i < 28; ++i) CHECK(sums_of(cut, t)[i] == doctest::Approx(sums[i]).epsilon(1e-5));
}

TEST_CASE("attention inside chunks: rows that are no number, one entry, none, and sinks alone") {
  dice d(2503);
  kvmeld::shape const s{1, 1, 1, 2, 8, 4, 40};
  support::engine_memory<float> memory(s);
  chunk_attention const score{16, 4};
  auto cache = support::make_cache(memory, evicting(score));
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  cache.open(0, 40);
  memory.fill_sequence(d, 0, 0, 40, support::texture::walk);
  memory.keys[10 * 8 + 3] = std::numeric_limits<float>::quiet_NaN();
  memory.keys[12 * 8] = std::numeric_limits<float>::infinity();
  query_talk<float> spoken(s);
  spoken.say(d, 40);
  std::fill_n(spoken.rows.begin() + static_cast<std::ptrdiff_t>(25 * spoken.floats_of_token()),
              spoken.floats_of_token(), NAN);  // of one query
  cache.observe({0, 0, 40}, spoken.last(40), {});
  auto const sums = sums_of(cache, t);
  double total[3] = {};
  for (std::size_t i = 4; i < 40; ++i) {
    CHECK(kvmeld::is_finite(sums[i]));
    total[(i - 4) / 16] += static_cast<double>(sums[i]);
  }
  CHECK(sums[10] == 0.0f);
  CHECK(sums[12] == 0.0f);
  CHECK(total[0] == doctest::Approx(16.0));
  CHECK(total[1] == doctest::Approx(15.0));  // the query that is no number counts for nothing
  CHECK(total[2] == doctest::Approx(4.0));
  REQUIRE(cache.compress({0}, kvmeld::budget::entries(20)).ok());

  for (std::uint32_t n : {1u, 4u, 5u}) {
    cache.close(0);
    cache.open(0, n);
    memory.fill_sequence(d, 0, 0, n, support::texture::walk);
    cache.observe({0, 0, n}, spoken.of(0, n), {});
    auto const got = sums_of(cache, t);
    for (std::uint32_t i = 0; i < n; ++i) CHECK(got[i] == (i < 4 ? 0.0f : 1.0f));
  }
  cache.close(0);
  cache.open(0);
  CHECK(cache.observe({0, 0, 0}, spoken.of(0, 0), {}).ok());
}

TEST_CASE("the sums go where the entries go: fork, save, resume, compression") {
  dice d(2504);
  kvmeld::shape const s{1, 3, 1, 2, 8, 4, 60};
  support::engine_memory<float> memory(s);
  auto const score = chunk_attention{16, 4};
  auto cache = support::make_cache(memory, evicting(score));
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  cache.open(0, 50);
  memory.fill_sequence(d, 0, 0, 50, support::texture::walk);
  query_talk<float> spoken(s);
  spoken.say(d, 50);
  cache.observe({0, 0, 50}, spoken.last(50), {});
  auto const sums = sums_of(cache, t);
  cache.fork(0, 1);
  CHECK(sums_of(cache, kvmeld::make_track(s, 0, 1, 0)) == sums);
  auto const bytes = cache.save(1);
  cache.resume(2, bytes);
  CHECK(sums_of(cache, kvmeld::make_track(s, 0, 2, 0)) == sums);
  CHECK(cache.save(2) == bytes);

  // The best twenty stay, with their sums.
  auto const scores = scores_of(score, cache.ref(), t);
  REQUIRE(cache.compress({0}, kvmeld::budget::entries(20)).ok());
  auto const left = sums_of(cache, t);
  REQUIRE(left.size() == 20);
  float lowest = 1e30f;
  for (std::uint32_t i = 0; i < 20; ++i) {
    auto const p = static_cast<std::size_t>(cache.ref().position(t, i));
    CHECK(left[i] == sums[p]);
    lowest = std::min(lowest, scores[p]);
  }
  CHECK(std::count_if(scores.begin(), scores.end(), [&](float x) { return x > lowest; }) <= 19);
}

TEST_CASE("only queries can feed attention inside chunks") {
  kvmeld::shape const s{1, 1, 1, 1, 8, 4, 40};
  support::engine_memory<float> memory(s);
  auto const check = [&](auto cache) {
    cache.open(0, 20);
    CHECK(cache.needs_observation().queries);
    CHECK(cache.needs_observation().when == kvmeld::observation::every_step);
    std::vector<float> rows(20 * 40, 0.5f);
    auto const given = kvmeld::rows_by_head<float const>(rows.data(), 20, 1, 40);
    char const* const why = "one of the engine's own attention, because its softmax is over all entries";
    cache_test::check_text(refusal_of([&] {
                             cache.observe_rows({0, 0, 20}, given);
                           }),
                           {"observe_rows: policy is one whose score is of attention inside chunks", why});
    cache_test::check_text(refusal_of([&] {
                             cache.observe_logits({0, 0, 20}, given, given);
                           }),
                           {"observe_logits: policy", why});
    cache_test::check_text(refusal_of([&] { cache.compress({0}, kvmeld::budget::entries(10)); }),
                           {"number of observed rows"});
    // Attention and the score in one call: the score has the bits of observe.
    dice d(2505);
    memory.fill_sequence(d, 0, 0, 20, support::texture::walk);
    auto twin = support::twin_of(cache);
    std::vector<float> out(20 * 4), lse(20), room(kvmeld::attention::observed_floats(s, 1, 20));
    auto const queries = kvmeld::rows_by_token<float const>(rows.data(), 20, 1, 8);
    REQUIRE(kvmeld::attention::attend_and_observe(cache, {0, 0, 20}, queries,
                                                  kvmeld::rows_by_token(out.data(), 20, 1, 4),
                                                  {room.data(), room.size()})
                .ok());
    twin.observe({0, 0, 20}, queries, {});
    kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
    CHECK(sums_of(cache, t) == sums_of(twin, t));
    CHECK(sums_of(cache, t)[10] > 0.0f);
  };
  check(support::make_cache(memory, evicting(chunk_attention{})));
  check(support::make_cache(memory, kvmeld::preset::compactor::with_rope({})));
  check(support::make_cache(memory, kvmeld::compose::composed_of(evicting(chunk_attention{}))));
  auto const ordinary = support::make_cache(memory, kvmeld::preset::kvzip::for_budget());
  CHECK_FALSE(ordinary.needs_observation().queries);
  CHECK(kvmeld::need_of(kvmeld::preset::expected_attention::with_rope({})).queries);
}

TEST_CASE("attention inside chunks refuses numbers that cannot be") {
  chunk_attention score;
  CHECK(kvmeld::problem_of(score).empty());
  score.chunk = 0;
  CHECK(kvmeld::problem_of(score) == "policy: score::chunk_attention.chunk is 0; it must be 1 to 4096");
  score.chunk = 4097;
  CHECK(kvmeld::problem_of(score) == "policy: score::chunk_attention.chunk is 4097; it must be 1 to 4096");
  score.chunk = 16;
  score.pooling.kernel = 2;
  CHECK(kvmeld::problem_of(score) ==
        "policy: pooling.kernel is 2; it must be an odd number (1 means no pooling)");
}

TEST_CASE("Compactor: leverage by the share removed, plus attention inside chunks") {
  dice d(2506);
  for (int round = 0; round < 20; ++round) {
    kvmeld::shape const s{1, 1, 1, d.between(1, 2), 2 * d.between(2, 10), 6, d.between(80, 300)};
    support::engine_memory<float> memory(s);
    reference::pair_rotation const turn{s.key_dim, false, 10000.0, 1.0};
    kvmeld::rope_params rope;
    rope.pairing = kvmeld::rope_pairing::half_split;
    auto const policy = kvmeld::preset::compactor::with_rope(rope);
    CHECK(kvmeld::name_of_policy(policy) == "leverage+chunk_attention x top x evict_rest x drop");
    auto cache = support::make_cache(memory, policy);
    std::uint32_t const n = s.capacity, limit = d.between(20, n - 1);
    cache.open(0, n);
    memory.fill_sequence(d, 0, 0, n, support::texture::walk);
    query_talk<float> spoken(s);
    spoken.say(d, n);
    cache.observe({0, 0, n}, spoken.last(n), {});
    kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
    reference::track_state const track = support::read_track(cache.ref(), t);
    reference::track_state before = track;
    std::vector<std::size_t> all;
    for (std::uint32_t i = 0; i < n; ++i) {
      all.push_back(i);
      before.keys[i] = turn.turned(track.keys[i], -static_cast<double>(i));
    }
    std::vector<double> sums(n, 0.0);
    reference::chunk_options o;
    o.scale = 1 / std::sqrt(double(s.key_dim));
    reference::add_chunk_attention(sums, track, spoken.rows_of_heads(t, all), all, o);
    auto const by_key = reference::standardised(reference::leverage(before, 0.1), track.bad);
    auto const by_query = reference::standardised(reference::chunk_scores(sums, track, 8, 3), track.bad);
    double const removed = 1 - static_cast<double>(limit) / n;
    auto const got = scores_of(policy.score, cache.ref(), t, nullptr, limit);
    std::vector<double> wanted(n);
    for (std::uint32_t i = 0; i < n; ++i) {
      wanted[i] = removed * by_key[i] + by_query[i];
      CHECK(std::abs(static_cast<double>(got[i]) - wanted[i]) <= 5e-3);
    }
    // The first eight and the last four stay, and the best of the others.
    REQUIRE(cache.compress({0}, kvmeld::budget::entries(limit)).ok());
    std::vector<char> kept(n, 0);
    for (std::uint32_t i = 0; i < cache.ref().length(t); ++i)
      kept[static_cast<std::size_t>(cache.ref().position(t, i))] = 1;
    std::uint32_t const first = std::min(8u, limit / 4), last = std::min(4u, limit / 4);
    double least = 1e300, most = -1e300;
    for (std::uint32_t i = 0; i < n; ++i) {
      bool const end = i < first || i >= n - last;
      if (end) CHECK(kept[i] == 1);
      if (!end && kept[i]) least = std::min(least, wanted[i]);
      if (!kept[i]) most = std::max(most, wanted[i]);
    }
    CHECK(std::count(kept.begin(), kept.end(), 1) == static_cast<std::ptrdiff_t>(limit));
    CHECK(least >= most - 1e-2);
  }
}

}  // namespace chunk_attention_cases
