// Scores of keys and values: against plain loops in double precision, their identities, rows that are no
// number, and what a policy with such a score asks for.
#include <doctest/doctest.h>

#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing/lane_executor.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "reference/row_scores.hpp"
#include "scores_of.hpp"
#include "support/random_cache.hpp"
#include "support/test_layouts.hpp"
#include "support/track_view.hpp"

namespace row_score_cases {

using score_test::scores_of;
using score_test::tuned;
using support::dice;

namespace {

kvmeld::shape random_shape(dice& d) {
  return {d.between(1, 2),   1, d.between(1, 2), 1, d.between(1, 3) * d.between(1, 12), d.between(1, 20),
          d.between(70, 200)};
}

void check_close(std::vector<float> const& got, std::vector<double> const& wanted, double tolerance) {
  REQUIRE(got.size() == wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(static_cast<double>(got[i]) - wanted[i]) <= tolerance);
  }
}

template <class T> void check_key_scores(dice& d) {
  kvmeld::shape const s = random_shape(d);
  CAPTURE(s.key_dim);
  support::engine_memory<T> memory(s, d.chance(0.5) ? "LSHTC" : d.chance(0.5) ? "LSTHC" : "LSHCT");
  auto cache = support::make_cache(memory, kvmeld::preset::keydiff::for_budget());
  std::uint32_t const n = d.between(1, s.capacity);
  cache.open(0, n);
  memory.fill_sequence(d, 0, 0, n, support::texture::walk);
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    auto const ref = cache.ref();
    if (d.chance(0.5)) {  // some entries stand for several tokens
      for (std::uint32_t i = 0; i < n; ++i)
        ref.ledger.degree[ref.ledger.at(t, i)] = static_cast<float>(d.between(1, 4));
    }
    if (d.chance(0.3)) {  // a key of zeros
      memory.fill(t, d.below(n), support::rows(1, std::vector<float>(s.key_dim)),
                  support::rows(1, std::vector<float>(s.value_dim)));
    }
    reference::track_state const track = support::read_track(ref, t);
    float const ridge = d.chance(0.5) ? 0.1f : 0.5f;
    for (auto const* kernels : {static_cast<kvmeld::host_kernels const*>(nullptr), tuned()}) {
      check_close(scores_of(kvmeld::score::key_difference{}, ref, t, kernels),
                  reference::key_difference(track), 2e-5);
      check_close(scores_of(kvmeld::score::key_norm{}, ref, t, kernels), reference::key_norm(track), 1e-4);
      check_close(scores_of(kvmeld::score::leverage{ridge}, ref, t, kernels),
                  reference::leverage(track, ridge), 2e-4);
    }
  });
}

// The ranks of lag_relative, as far as the numbers that are ranked lie far enough apart.
void check_lag(dice& d) {
  kvmeld::shape const s = random_shape(d);
  kvmeld::score::lag_relative const score{d.below(6), d.between(1, 40)};
  CAPTURE(score.sinks);
  CAPTURE(score.lag);
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::lagkv::with_lag(score.lag, score.sinks));
  std::uint32_t const n = d.between(1, s.capacity);
  CAPTURE(n);
  cache.open(0, n);
  memory.fill_sequence(d, 0, 0, n, support::texture::walk);
  auto const ref = cache.ref();
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    reference::track_state const track = support::read_track(ref, t);
    std::vector<float> const got = scores_of(score, ref, t);
    std::uint32_t const chunks = n > score.sinks ? (n - score.sinks) / score.lag : 0;
    std::uint32_t const ranked_end = chunks > 1 ? score.sinks + (chunks - 1) * score.lag : score.sinks;
    for (std::uint32_t i = 0; i < n; ++i) {
      if (i < score.sinks || i >= ranked_end) {
        CHECK(static_cast<double>(got[i]) == doctest::Approx(1.0 + i / static_cast<double>(n)));
      }
    }
    for (std::uint32_t first = score.sinks; first < ranked_end && chunks > 1; first += score.lag) {
      auto const k = reference::lag_spread(track.keys, track.bad, first, score.lag);
      auto const v = reference::lag_spread(track.values, track.bad, first, score.lag);
      std::vector<float> ranks(got.begin() + first, got.begin() + first + score.lag);
      for (std::uint32_t i = 0; i < score.lag; ++i) {
        for (std::uint32_t j = 0; j < score.lag; ++j) {
          if (k[i] + v[i] > (k[j] + v[j]) * (1 + 1e-4)) CHECK(ranks[i] > ranks[j]);
        }
      }
      std::sort(ranks.begin(), ranks.end());  // every rank once
      for (std::uint32_t i = 0; i < score.lag; ++i)
        CHECK(ranks[i] == static_cast<float>(i) / static_cast<float>(score.lag));
    }
  });
}

// The largest element of an entry's value.
struct largest_value {
  static constexpr kvmeld::score_facts facts{&kvmeld::score_facts::reads_rows};

  template <class Team, class Rows>
  void evaluate(Team const& team, kvmeld::score_view const&, Rows const& rows, float* out) const {
    rows.values.for_each(team, [&](kvmeld::slot_t s, kvmeld::row_ref const& v) {
      out[s] = v[0];
      for (std::uint32_t c = 1; c < v.size(); ++c) out[s] = std::max(out[s], v[c]);
    });
  }
};

// Positions that a track keeps.
template <class Cache> std::vector<std::uint32_t> kept(Cache const& cache, kvmeld::track t) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t i = 0; i < cache.ref().length(t); ++i)
    out.push_back(static_cast<std::uint32_t>(cache.ref().position(t, i)));
  return out;
}

// The best `count` of entries by score, ascending; ties to the lower one.
std::vector<std::uint32_t> best(std::vector<float> const& scores, std::uint32_t count) {
  std::vector<std::uint32_t> order(scores.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return scores[a] > scores[b]; });
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace

TEST_CASE(
    "KeyDiff, Knorm and leverage are what plain loops compute, for any shape, order of tensors and type") {
  dice d(2101);
  for (int i = 0; i < 40; ++i) {
    check_key_scores<float>(d);
    check_key_scores<kvmeld::bfloat16>(d);
    check_key_scores<kvmeld::float16>(d);
  }
}

TEST_CASE("LagKV keeps the newest entries of its last chunk longest") {
  kvmeld::shape const s{1, 1, 1, 1, 4, 4, 24};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::lagkv::with_lag(8, 2));
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  dice d(2140);
  for (std::uint32_t n : {20u, 8u}) {  // with a chunk that is ranked, and without
    cache.open(0, n);
    memory.fill_sequence(d, 0, 0, n, support::texture::noise);
    cache.compress({0}, kvmeld::budget::entries(6));
    CHECK(kept(cache, t) == std::vector<std::uint32_t>{0, 1, n - 4, n - 3, n - 2, n - 1});
    cache.close(0);
  }
}

TEST_CASE("LagKV ranks chunks as plain loops do") {
  dice d(2102);
  for (int i = 0; i < 60; ++i) check_lag(d);
}

TEST_CASE("KeyDiff by hand") {
  // Keys (1, 0), (1, 0), (0, 2): the mean direction is (2, 1) / sqrt 5.
  kvmeld::shape const s{1, 1, 1, 1, 2, 1, 4};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::keydiff::for_budget());
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  memory.fill(t, 0, {{1, 0}, {1, 0}, {0, 2}}, {{0}, {0}, {0}});
  cache.open(0, 3);
  auto const got = scores_of(kvmeld::score::key_difference{}, cache.ref(), t);
  CHECK(got[0] == doctest::Approx(-2 / std::sqrt(5.0)));
  CHECK(got[1] == got[0]);
  CHECK(got[2] == doctest::Approx(-1 / std::sqrt(5.0)));
  CHECK(scores_of(kvmeld::score::key_norm{}, cache.ref(), t) == std::vector<float>{-1, -1, -2});
}

TEST_CASE("KeyDiff does not depend on how long keys are") {
  dice d(2103);
  kvmeld::shape const s{1, 1, 1, 1, 16, 8, 90};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::keydiff::for_budget());
  cache.open(0, 90);
  memory.fill_sequence(d, 0, 0, 90, support::texture::clusters);
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  auto const before = scores_of(kvmeld::score::key_difference{}, cache.ref(), t);
  for (std::uint32_t i = 0; i < 90; ++i) {  // powers of two, so that nothing rounds
    float const factor = std::ldexp(1.0f, static_cast<int>(d.below(20)) - 10);
    for (std::uint32_t c = 0; c < 16; ++c) memory.keys[i * 16 + c] *= factor;
  }
  CHECK(scores_of(kvmeld::score::key_difference{}, cache.ref(), t) == before);
}

namespace {

// Leverage of the keys of one track; entry i has degrees[i], where there is one.
std::vector<float> leverage_of(support::rows const& keys, float ridge,
                               std::vector<float> const& degrees = {}) {
  std::uint32_t const n = static_cast<std::uint32_t>(keys.size());
  kvmeld::shape const s{1, 1, 1, 1, static_cast<std::uint32_t>(keys[0].size()), 1, n};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::leverage::for_budget());
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  memory.fill(t, 0, keys, support::rows(n, {0}));
  cache.open(0, n);
  for (std::size_t i = 0; i < degrees.size(); ++i) cache.ref().ledger.degree[i] = degrees[i];
  return scores_of(kvmeld::score::leverage{ridge}, cache.ref(), t);
}

}  // namespace

TEST_CASE("leverage by hand") {
  // Centred keys (3, 0), (-3, 0), (0, 1), (0, -1): G is diagonal, 18 and 2, and the ridge adds 0.1 * 10.
  auto const got = leverage_of({{8, 2}, {2, 2}, {5, 3}, {5, 1}}, 0.1f);
  CHECK(got[0] == doctest::Approx(9.0 / 19));
  CHECK(got[1] == doctest::Approx(9.0 / 19));
  CHECK(got[2] == doctest::Approx(1.0 / 3));
  CHECK(got[3] == doctest::Approx(1.0 / 3));
  CHECK(leverage_of({{4, 4}}, 0.1f) == std::vector<float>{0});
  CHECK(leverage_of({{4, 4}, {4, 4}, {4, 4}}, 0.1f) == std::vector<float>{0, 0, 0});
  CHECK(leverage_of({{1e30f, 4}, {4, 4}, {4, 5}}, 0.1f) == std::vector<float>{0, 0, 0});  // squares overflow
}

TEST_CASE(
    "leverage adds up to the number of directions, and does not see where keys lie or how long they are") {
  dice d(2108);
  for (int i = 0; i < 20; ++i) {
    std::uint32_t const c = d.between(1, 40), n = d.between(3 * c + 2, 150);
    support::rows keys = support::random_rows(d, n, c, support::texture::noise);
    auto const tiny = leverage_of(keys, 1e-4f);
    double sum = 0;
    for (float x : tiny) {
      sum += static_cast<double>(x);
      CHECK((x >= 0.0f && x < 1.0f));
    }
    CHECK(sum == doctest::Approx(c).epsilon(2e-3));
    auto const before = leverage_of(keys, 0.1f);
    support::rows longer = keys, moved = keys;
    for (auto& k : longer) {  // by a power of two, so that nothing rounds
      for (float& x : k) x *= 0x1p-9f;
    }
    for (auto& k : moved) {
      for (float& x : k) x += 3.0f;
      std::reverse(k.begin(), k.end());
    }
    CHECK(leverage_of(longer, 0.1f) == before);
    auto const after = leverage_of(moved, 0.1f);
    for (std::uint32_t j = 0; j < n; ++j) CHECK(after[j] == doctest::Approx(before[j]).epsilon(1e-3));
  }
}

TEST_CASE("an entry of degree n counts in leverage as n equal entries do") {
  dice d(2109);
  support::rows keys = support::random_rows(d, 40, 12, support::texture::walk);
  support::rows repeated = keys;
  std::vector<float> degrees(40, 1.0f);
  for (std::uint32_t i = 0; i < 40; i += 3) {
    degrees[i] = 3.0f;
    repeated.push_back(keys[i]);
    repeated.push_back(keys[i]);
  }
  auto const one = leverage_of(keys, 0.1f, degrees), all = leverage_of(repeated, 0.1f);
  for (std::uint32_t i = 0; i < 40; ++i) CHECK(one[i] == doctest::Approx(all[i]).epsilon(1e-4));
}

TEST_CASE("blended scores are both standardised, then added") {
  using kvmeld::score::blended;
  dice d(2110);
  for (int round = 0; round < 30; ++round) {
    kvmeld::shape const s = random_shape(d);
    CAPTURE(s.key_dim);
    support::engine_memory<float> memory(s);
    blended<kvmeld::score::leverage, kvmeld::score::global> const score(
        {}, {}, static_cast<float>(d.between(0, 4)) * 0.5f);
    CAPTURE(score.weight);
    auto evicting = kvmeld::preset::leverage::for_budget();
    auto cache = support::make_cache(
        memory, kvmeld::policy{score, evicting.select, evicting.identify, evicting.merge});
    CHECK(cache.needs_observation().when == kvmeld::observation::every_step);
    std::uint32_t const n = d.between(2, s.capacity);
    cache.open(0, n);
    memory.fill_sequence(d, 0, 0, n, support::texture::noise);
    bool const flat = d.chance(0.2);  // attention that does not vary adds nothing
    support::for_tracks(s, 0, [&](kvmeld::track t) {
      auto const ref = cache.ref();
      reference::track_state track = support::read_track(ref, t);
      std::vector<double> given(n);
      for (std::uint32_t i = 0; i < n; ++i) {
        float const x = flat ? 0.25f : static_cast<float>(d.uniform());
        ref.ledger.channel_data[0][ref.ledger.at(t, i)] = x;
        given[i] = static_cast<double>(x);
      }
      if (!flat && d.chance(0.3)) {  // no number, and in nobody's mean
        std::uint32_t const i = d.below(n);
        ref.ledger.channel_data[0][ref.ledger.at(t, i)] = std::numeric_limits<float>::quiet_NaN();
        track.bad[i] = 1;
      }
      auto const a = reference::standardised(reference::leverage(support::read_track(ref, t), 0.1),
                                             std::vector<char>(n, 0));
      auto const b = reference::standardised(given, track.bad);
      auto const got = scores_of(score, ref, t);
      for (std::uint32_t i = 0; i < n; ++i) {
        CAPTURE(i);
        if (track.bad[i]) {
          CHECK_FALSE(kvmeld::is_finite(got[i]));
        } else {
          double const wanted = static_cast<double>(score.weight) * a[i] + b[i];
          CHECK(std::abs(static_cast<double>(got[i]) - wanted) <= 5e-3);
        }
      }
    });
  }
}

TEST_CASE("blended scores: what they say of themselves") {
  using kvmeld::score::blended;
  blended<kvmeld::score::leverage, kvmeld::score::local> score;
  CHECK(kvmeld::full_name_of(score) == "leverage+local");
  CHECK(kvmeld::detail::need_of_score(score).when == kvmeld::observation::prefill_window);
  CHECK(kvmeld::detail::need_of_score(score).rows == 32);
  CHECK(kvmeld::problem_of(score) == "");
  score.window = 0;
  CHECK(kvmeld::problem_of(score) == "policy: score::local.window is 0; it must be at least 1");
  score.first.ridge = 0.0f;
  CHECK(kvmeld::problem_of(score) == "policy: score::leverage.ridge is 0; it must be above 0 and finite");
  score.weight = -1.0f;
  CHECK(kvmeld::problem_of(score) == "policy: score::blended.weight is -1; it must be at least 0 and finite");
  // Scores without attention blend too, and blends nest.
  blended<kvmeld::score::key_norm, blended<kvmeld::score::leverage, kvmeld::score::key_difference>> const
      rows;
  CHECK(kvmeld::full_name_of(rows) == "key_norm+leverage+key_difference");
  CHECK_FALSE(kvmeld::detail::need_of_score(rows));
  static_assert(!kvmeld::detail::reads_rows<blended<kvmeld::score::none, kvmeld::score::local>>);
  static_assert(kvmeld::is_score<blended<kvmeld::score::none, kvmeld::score::local>>::value);
}

TEST_CASE("scores by chunk are means over chunks, of scores by attention and by rows") {
  dice d(2111);
  for (int round = 0; round < 30; ++round) {
    kvmeld::shape const s = random_shape(d);
    support::engine_memory<float> memory(s);
    std::uint32_t const chunk = d.between(1, 40), n = d.between(1, s.capacity);
    CAPTURE(chunk);
    CAPTURE(n);
    auto const attending = kvmeld::preset::chunkkv::over(kvmeld::preset::snapkv::with_window(), chunk);
    CHECK(kvmeld::detail::need_of_score(attending.score).rows == 32);
    auto cache = support::make_cache(memory, attending);
    cache.open(0, n);
    memory.fill_sequence(d, 0, 0, n, support::texture::walk);
    support::for_tracks(s, 0, [&](kvmeld::track t) {
      auto const ref = cache.ref();
      for (std::uint32_t i = 0; i < n; ++i) {
        for (int c = 0; c < 2; ++c)
          ref.ledger.channel_data[c][ref.ledger.at(t, i)] = static_cast<float>(d.uniform());
      }
      std::uint32_t const odd = d.below(n);  // no number: not in its chunk's mean
      bool const has_odd = d.chance(0.3);
      if (has_odd) ref.ledger.channel_data[1][ref.ledger.at(t, odd)] = std::numeric_limits<float>::infinity();
      auto const check = [&](auto const& by_chunk, bool skips) {
        auto const single = scores_of(by_chunk.of(), ref, t), got = scores_of(by_chunk, ref, t);
        for (std::uint32_t i = 0; i < n; ++i) {
          double sum = 0, count = 0;
          for (std::uint32_t j = i / chunk * chunk; j < std::min(n, i / chunk * chunk + chunk); ++j) {
            if (skips && !kvmeld::is_finite(single[j])) continue;
            sum += static_cast<double>(single[j]);
            count += 1;
          }
          if (count == 0) continue;
          CHECK(static_cast<double>(got[i]) == doctest::Approx(sum / count).epsilon(1e-5));
        }
      };
      kvmeld::score::by_chunk<kvmeld::score::local> plain = attending.score;
      plain.pooling.kernel = 1;  // pooling spreads what is no number
      check(plain, true);
      check(kvmeld::preset::chunkkv::over(kvmeld::preset::knorm::for_budget(), chunk).score, false);
    });
  }
  kvmeld::score::by_chunk<kvmeld::score::local> none({}, 0);
  CHECK(kvmeld::full_name_of(none) == "local/chunk");
  CHECK(kvmeld::problem_of(none) == "policy: score::by_chunk.chunk is 0; it must be at least 1");
  none.chunk = 1;
  none.window = 0;
  CHECK(kvmeld::problem_of(none) == "policy: score::local.window is 0; it must be at least 1");
}

TEST_CASE("ChunkKV keeps whole chunks") {
  dice d(2112);
  kvmeld::shape const s{1, 1, 1, 1, 8, 8, 100};
  support::engine_memory<float> memory(s);
  using kvmeld::quantity;
  auto const policy = kvmeld::preset::chunkkv::over(
      kvmeld::preset::keydiff::for_budget(quantity::entries(0), quantity::entries(0)), 10);
  auto cache = support::make_cache(memory, policy);
  cache.open(0, 95);
  memory.fill_sequence(d, 0, 0, 95, support::texture::walk);
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  CHECK(cache.compress({0}, kvmeld::budget::entries(30)).ok());
  std::vector<int> entries(10);
  for (std::uint32_t p : kept(cache, t)) ++entries[p / 10];
  int whole = 0;
  for (std::size_t c = 0; c < entries.size(); ++c) whole += entries[c] == (c == 9 ? 5 : 10) ? 1 : 0;
  CHECK(whole >= 3);
  CHECK(std::count(entries.begin(), entries.end(), 0) >= 6);
}

TEST_CASE("CriticalKV: half by attention, the rest by attention times what values add to the output") {
  dice d(2120);
  for (int round = 0; round < 40; ++round) {
    kvmeld::shape s = random_shape(d);
    s.queries_per_kv_head = d.between(1, 3);
    CAPTURE(s.value_dim);
    support::engine_memory<float> memory(s);
    bool const projects = d.chance(0.7);
    std::uint32_t const rows = d.between(1, 150), heads = s.kv_heads * s.queries_per_kv_head;
    // Row r of a layer's W_O is [channel of head 0, head 1, ...] with gaps, in half precision.
    std::int64_t const head_stride = s.value_dim + d.below(3), row_stride = head_stride * heads + d.below(5);
    std::vector<std::vector<kvmeld::float16>> w(s.layers);
    std::vector<kvmeld::float16 const*> layers;
    for (auto& layer : w) {
      for (std::int64_t i = 0; i < row_stride * rows; ++i)
        layer.push_back(kvmeld::element_traits<kvmeld::float16>::from_float(
            static_cast<float>(d.between(0, 16)) / 8.0f - 1.0f));
      layers.push_back(layer.data());
    }
    kvmeld::output_projection<kvmeld::float16> const projection{layers.data(), rows, row_stride, head_stride};
    auto policy = kvmeld::preset::criticalkv::over(kvmeld::preset::h2o::defaults(),
                                                   projects ? projection
                                                            : kvmeld::output_projection<kvmeld::float16>{});
    policy.score.first = d.below(5) * 0.25;
    std::uint32_t const sinks = d.below(4), recents = d.below(12), observed = d.below(3) * 7;
    policy.score.sinks = kvmeld::quantity::entries(sinks);
    policy.score.recents = kvmeld::quantity::entries(recents);
    auto cache = support::make_cache(memory, policy);
    CHECK(cache.needs_observation().when == kvmeld::observation::every_step);
    std::uint32_t const n = d.between(1, s.capacity), limit = d.between(1, n);
    CAPTURE(n);
    std::uint32_t const frozen = d.chance(0.4) ? d.below(limit) : 0;
    cache.open(0, n, frozen);
    memory.fill_sequence(d, 0, 0, n, support::texture::noise);
    support::for_tracks(s, 0, [&](kvmeld::track t) {
      auto const ref = cache.ref();
      std::vector<double> base(n);
      for (std::uint32_t i = 0; i < n; ++i) {
        float const x = static_cast<float>(d.below(40)) / 32.0f;  // some equal
        ref.ledger.channel_data[0][ref.ledger.at(t, i)] = x;
        base[i] = static_cast<double>(x);
      }
      std::vector<std::vector<reference::row>> heads_w(projects ? s.queries_per_kv_head : 0);
      for (std::size_t h = 0; h < heads_w.size(); ++h) {
        for (std::uint32_t r = 0; r < rows; ++r) {
          reference::row one;
          std::int64_t const head = t.kv_head * s.queries_per_kv_head + static_cast<std::int64_t>(h);
          for (std::uint32_t c = 0; c < s.value_dim; ++c) {
            std::size_t const at = static_cast<std::size_t>(r * row_stride + head * head_stride + c);
            one.push_back(
                static_cast<double>(kvmeld::element_traits<kvmeld::float16>::to_float(w[t.layer][at])));
          }
          heads_w[h].push_back(one);
        }
      }
      // Frozen entries stay and are not counted.
      std::size_t const first =
          frozen + static_cast<std::size_t>(policy.score.first * (limit - frozen) + 1e-9);
      ref.ledger.word(t, kvmeld::track_word::observed_rows) = observed;
      std::size_t const begin = std::max(frozen, std::min(n, sinks)),
                        end = n - std::min<std::size_t>(n - begin, recents);
      auto const wanted =
          reference::critical(support::read_track(ref, t), base, first, begin, end, std::max(1u, observed),
                              static_cast<double>(policy.score.epsilon), heads_w);
      for (auto const* kernels : {static_cast<kvmeld::host_kernels const*>(nullptr), tuned()}) {
        auto const got = scores_of(policy.score, ref, t, kernels, limit);
        for (std::uint32_t i = 0; i < n; ++i) {
          CAPTURE(i);
          if (wanted[i] == reference::first_of_all) {
            CHECK(got[i] == std::numeric_limits<float>::max());
          } else {
            CHECK(static_cast<double>(got[i]) == doctest::Approx(wanted[i]).epsilon(1e-4));
          }
        }
      }
    });
  }
}

TEST_CASE("CriticalKV: what it keeps, and what it refuses") {
  kvmeld::shape const s{1, 1, 1, 1, 1, 1, 8};
  support::engine_memory<float> memory(s);
  auto policy = kvmeld::preset::criticalkv::over(kvmeld::preset::h2o::defaults());
  policy.select.recents = policy.score.recents = kvmeld::quantity::entries(0);
  auto cache = support::make_cache(memory, policy);
  cache.open(0, 6);
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  memory.fill(t, 0, {{1}, {1}, {1}, {1}, {1}, {1}}, {{1}, {1}, {-9}, {2}, {0}, {4}});
  support::set_scores(cache.ledger(), t, {9, 8, 1, 2, 7, 1});
  // Of four, 0 and 1 have the highest scores; of the others, 2 and then 3 or 5 by score times value: 9, 4,
  // 0, 4.
  cache.compress({0}, kvmeld::budget::entries(4));
  CHECK(kept(cache, t) == std::vector<std::uint32_t>{0, 1, 2, 5});

  policy.score.first = 1.5;
  CHECK(policy.score.problem() == "policy: score::critical.first is 1.5; it must be 0 to 1, a share");
  policy.score.first = 1.0;
  policy.score.epsilon = -1.0f;
  CHECK(policy.score.problem() == "policy: score::critical.epsilon is -1; it must be at least 0 and finite");
  policy.score.epsilon = 0.0f;
  float const* const layers[1] = {};
  policy.score.projection.layers = layers;
  CHECK(policy.score.problem() == "policy: score::critical.projection.rows is 0; it must be at least 1");
  policy.score.projection.rows = 1;
  CHECK(policy.score.problem().empty());
  CHECK(kvmeld::full_name_of(policy.score) == "global*value");
  auto refined = kvmeld::preset::criticalkv::over(kvmeld::preset::snapkv::with_window());
  CHECK(refined.score.recents.value() == refined.select.recents.value());
  CHECK(refined.score.sinks.value() == refined.select.sinks.value());
  refined.score.recents = kvmeld::quantity::of_budget(2.0);
  CHECK(refined.score.problem() == "policy: score::critical.recents is 2; it must be 0 to 1, a share");
  refined.score.recents = kvmeld::quantity::entries(0);
  refined.score.window = 0;
  CHECK(refined.score.problem() == "policy: score::local.window is 0; it must be at least 1");
}

TEST_CASE("PyramidKV's budgets fall linearly, and add up to what was asked for") {
  dice d(2121);
  for (int round = 0; round < 200; ++round) {
    kvmeld::shape const s{d.between(1, 40), d.between(1, 3), d.between(1, 4), 1, 1, 1, 100000};
    std::uint32_t const entries = d.between(1, 2000), window = d.below(65), tokens = d.between(entries, 4000);
    double const beta = d.between(2, 40);
    CAPTURE(s.layers);
    CAPTURE(entries);
    CAPTURE(tokens);
    auto const all = kvmeld::preset::pyramidkv::budgets(s, entries, tokens, window, beta);
    REQUIRE(all.size() == s.tracks());
    std::vector<double> layer(s.layers);
    for (std::uint32_t l = 0; l < s.layers; ++l) {
      for (std::uint32_t q = 0; q < s.sequences; ++q) {
        for (std::uint32_t h = 0; h < s.kv_heads; ++h)
          CHECK(all[kvmeld::make_track(s, l, q, h).index] == all[kvmeld::make_track(s, l, 0, 0).index]);
      }
      layer[l] = all[kvmeld::make_track(s, l, 0, 0).index];
      CHECK(layer[l] >= std::min(entries, window));
      CHECK(layer[l] <= tokens);
    }
    double total = 0;
    for (double x : layer) total += x;
    CHECK(total == entries * static_cast<double>(s.layers));
    if (s.layers == 1) continue;
    double const mean = entries > window ? entries - window : 0.0, last = s.layers - 1.0;
    double const ends = std::min(entries, window);
    double const first = std::min(2 * mean - mean / beta, std::max(0.0, tokens - ends));
    for (std::uint32_t l = 0; l < s.layers; ++l) {
      double const exact = ends + first - l * 2 * (first - mean) / last;
      CHECK(std::abs(layer[l] - exact) <= 1.0);
    }
    if (entries > window && first < tokens - ends)  // the paper's smallest layer
      CHECK(std::abs(layer.back() - ends - mean / beta) <= 1.0);
  }
}

TEST_CASE("TOVA keeps what the newest query looks at, and the newest entry") {
  kvmeld::shape const s{1, 1, 1, 2, 1, 1, 8};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::tova::defaults());
  CHECK(cache.needs_observation().rows == 1);
  cache.open(0, 6);
  // Two query heads, two rows each: of the older row nothing counts. Means of the newer: 0, 4, 1, 3, 2, 0.
  std::vector<float> const rows{9,      9, 9, 9, 9, 9, /**/ 0, 4, 0, 6, 2, 0,
                                /**/ 9, 9, 9, 9, 9, 9, /**/ 0, 4, 2, 0, 2, 0};
  std::uint32_t const layer = 0, sequence = 0;
  kvmeld::attention_params all;
  all.causal = false;
  cache.observe_rows({layer, sequence, 2}, kvmeld::rows_by_head<float const>(rows.data(), 2, 2, 6), all);
  CHECK(cache.compress({0}, kvmeld::budget::entries(3)).ok());
  CHECK(kept(cache, kvmeld::make_track(s, 0, 0, 0)) == std::vector<std::uint32_t>{1, 3, 5});
}

TEST_CASE("a policy by rows keeps the best entries, and is never shown attention") {
  dice d(2104);
  for (int round = 0; round < 20; ++round) {
    kvmeld::shape const s = random_shape(d);
    support::engine_memory<float> memory(s);
    auto cache = support::make_cache(memory, kvmeld::preset::keydiff::for_budget(
                                                 kvmeld::quantity::entries(0), kvmeld::quantity::entries(0)));
    CHECK_FALSE(cache.needs_observation());
    std::uint32_t const n = d.between(2, s.capacity), limit = d.between(1, n - 1);
    cache.open(0, n);
    memory.fill_sequence(d, 0, 0, n, support::texture::walk);
    std::vector<std::vector<std::uint32_t>> wanted;
    support::for_tracks(s, 0, [&](kvmeld::track t) {
      wanted.push_back(best(scores_of(kvmeld::score::key_difference{}, cache.ref(), t), limit));
    });
    CHECK(cache.compress({0}, kvmeld::budget::entries(limit)).ok());
    std::size_t at = 0;
    support::for_tracks(s, 0, [&](kvmeld::track t) { CHECK(kept(cache, t) == wanted[at++]); });
  }
}

TEST_CASE("entries whose rows are no number rank lowest, and move no other entry") {
  dice d(2105);
  float const bad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
  auto const check = [&](auto const& policy) {
    kvmeld::shape const s{1, 1, 1, 1, 8, 8, 80};
    kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
    support::rows const k = support::random_rows(d, 60, 8, support::texture::walk);
    support::rows const v = support::random_rows(d, 60, 8, support::texture::noise);
    std::uint32_t const row = 7 + d.below(20);
    // The same entries without the bad one.
    support::engine_memory<float> fewer(s), memory(s);
    support::rows k2 = k, v2 = v;
    k2.erase(k2.begin() + row);
    v2.erase(v2.begin() + row);
    fewer.fill(t, 0, k2, v2);
    auto plain = support::make_cache(fewer, policy);
    plain.open(0, 59);
    REQUIRE(plain.compress({0}, kvmeld::budget::entries(20)).ok());
    memory.fill(t, 0, k, v);
    (d.chance(0.5) ? memory.keys : memory.values)[row * 8 + d.below(8)] = bad[d.below(2)];
    auto cache = support::make_cache(memory, policy);
    cache.open(0, 60);
    REQUIRE(cache.compress({0}, kvmeld::budget::entries(20)).ok());
    std::vector<std::uint32_t> wanted = kept(plain, t);
    for (std::uint32_t& p : wanted) p += p >= row ? 1 : 0;
    CHECK(kept(cache, t) == wanted);
  };
  for (int i = 0; i < 10; ++i) {
    check(kvmeld::preset::keydiff::for_budget());
    check(kvmeld::preset::knorm::for_budget());
    check(kvmeld::preset::leverage::for_budget());
  }
}

TEST_CASE("merging keeps the sinks, recents and best entries of the eviction policy, and meets its budget") {
  dice d(2106);
  kvmeld::shape const s{2, 1, 2, 1, 16, 16, 128};
  support::engine_memory<float> memory(s);
  auto const evicting = kvmeld::preset::keydiff::for_budget(kvmeld::quantity::entries(8));
  auto const merging = kvmeld::preset::merging(evicting, kvmeld::quantity::entries(10));
  auto cache = support::make_cache(memory, merging);
  cache.open(0, 120);
  memory.fill_sequence(d, 0, 0, 120, support::texture::clusters);
  std::vector<std::vector<std::uint32_t>> whole;
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    auto scores = scores_of(kvmeld::score::key_difference{}, cache.ref(), t);
    for (std::uint32_t i = 0; i < 120; ++i) scores[i] += i < 4 || i >= 112 ? 10.0f : 0.0f;
    whole.push_back(best(scores, 22));
  });
  CHECK(cache.compress({0}, kvmeld::budget::entries(40)).ok());
  std::size_t at = 0;
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    std::vector<std::uint32_t> const left = kept(cache, t);
    CHECK(left.size() == 40);
    CHECK(std::includes(left.begin(), left.end(), whole[at].begin(), whole[at].end()));
    float tokens = 0;
    for (std::uint32_t i = 0; i < 40; ++i) tokens += cache.ref().ledger.degree[cache.ref().ledger.at(t, i)];
    CHECK(tokens == 120.0f);
    ++at;
  });
}

TEST_CASE("a set of entries that are only ordered scores as its best member") {
  dice d(2107);
  using kvmeld::quantity;
  // Consecutive sets whose pivot is the newest entry, and a budget that the fallback has to meet.
  kvmeld::identify::consecutive_threshold<kvmeld::admit::threshold> const sets{
      kvmeld::identify::anchor_rule::fixed, kvmeld::identify::pivot_rule::newest, false, {0.9f}};
  kvmeld::policy const p{kvmeld::score::key_norm{},
                         kvmeld::select::sinks_and_recents{quantity::entries(0), quantity::entries(0)}, sets,
                         kvmeld::merge::average{}};
  kvmeld::shape const s{1, 1, 1, 1, 2, 1, 8};
  support::engine_memory<float> memory(s);
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  // Sets {0, 1}, {2}, {3}: norms 1 and 9, 4, 5. The best of the first set is -1: the longest lone key goes.
  memory.fill(t, 0, {{1, 0}, {9, 0}, {0, 4}, {-5, 0}}, support::rows(4, {1}));
  auto cache = support::make_cache(memory, p);
  cache.open(0, 4);
  REQUIRE(cache.compress({0}, kvmeld::budget::entries(2)).ok());
  CHECK(kept(cache, t) == std::vector<std::uint32_t>{1, 2});
  CHECK(cache.ref().ledger.degree[0] == 2.0f);
}

TEST_CASE("scores chosen at run time: by rows, and only with parts that do not compute with them") {
  using namespace kvmeld;
  compose::any_score chosen;
  CHECK(compose::find("key_difference", chosen));
  CHECK(facts_of<score_facts>(chosen).reads_rows);
  CHECK(facts_of<score_facts>(chosen).gives == score_kind::order);
  CHECK(channels_of(chosen).count == 0);
  CHECK(chosen.need().when == observation::none);
  CHECK_FALSE(facts_of<score_facts>(compose::any_score(score::global{})).reads_rows);
  compose::composed p = compose::composed_of(preset::merging(preset::snapkv::with_window()));
  p.score = score::lag_relative{4, 16};
  CHECK(configuration_problem(p).empty());
  p.merge = merge::score_weighted{};
  CHECK(configuration_problem(p).find("is one that only orders entries; it must be one that gives weights, "
                                      "because the merge function weighs by score") != std::string::npos);
  p = compose::composed_of(preset::cam::over_h2o());
  p.score = score::key_norm{};
  CHECK(configuration_problem(p).find("is one that only orders entries; it must be one that gives weights, "
                                      "because the identifier computes rates from scores") !=
        std::string::npos);
  CHECK(configuration_problem(preset::lagkv::with_lag(0)) ==
        "policy: score::lag_relative.lag is 0; it must be between 1 and 1024");
  CHECK(configuration_problem(preset::lagkv::with_lag(1025)) ==
        "policy: score::lag_relative.lag is 1025; it must be between 1 and 1024");
  CHECK(configuration_problem(preset::lagkv::with_lag(1024)).empty());
  auto by_leverage = preset::leverage::for_budget();
  CHECK(configuration_problem(by_leverage).empty());
  for (float const bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity()}) {
    by_leverage.score.ridge = bad;
    CHECK(configuration_problem(by_leverage).find("policy: score::leverage.ridge is ") == 0);
  }
  by_leverage.score.ridge = std::numeric_limits<float>::quiet_NaN();
  CHECK(configuration_problem(by_leverage) ==
        "policy: score::leverage.ridge is nan; it must be above 0 and finite");
}

TEST_CASE("a score of one's own reads rows in any layout") {
  kvmeld::shape const s{1, 1, 1, 1, 4, 4, 40};
  std::vector<std::int8_t> k(40 * 4, 1), v(40 * 4);
  std::vector<float> ks(40, 1.0f), vs(40, 0.5f);
  for (std::uint32_t i = 0; i < 40; ++i) v[i * 4 + i % 4] = static_cast<std::int8_t>(i * 7 % 40 + 1);
  kvmeld::policy const p{largest_value{},
                         kvmeld::select::top{kvmeld::quantity::entries(0), kvmeld::quantity::entries(0)},
                         kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}};
  kvmeld::cache_options options;
  options.extent = s;
  kvmeld::merged_cache cache{kvmeld::host_executor(1), p,
                             kvmeld::kv{support::int8_rows(k.data(), ks.data(), s, 4),
                                        support::int8_rows(v.data(), vs.data(), s, 4)},
                             options};
  cache.open(0, 40);
  REQUIRE(cache.compress({0}, kvmeld::budget::entries(3)).ok());
  // i * 7 mod 40 is 39, 38, 37 for i = 17, 34, 11.
  CHECK(kept(cache, kvmeld::make_track(s, 0, 0, 0)) == std::vector<std::uint32_t>{11, 17, 34});
}

namespace {

// Compresses a track of several tiles to 400 entries, of which slot 777 holds NaN; `rank(s)` is the score.
template <class Executor, class Policy, class Rank>
void check_long_track(Executor executor, Policy const& p, bool of_values, Rank rank) {
  constexpr std::uint32_t n = 1300, left = 400;
  kvmeld::shape const s{1, 1, 1, 1, 6, 5, 1400};
  dice d(41);
  std::vector<float> k(s.slots() * s.key_dim), v(s.slots() * s.value_dim), scores(n);
  for (float& x : k) x = static_cast<float>(d.normal());
  for (float& x : v) x = static_cast<float>(d.normal());
  for (float& x : scores) x = static_cast<float>(0.5 + d.uniform());
  (of_values ? v[777 * s.value_dim] : k[777 * s.key_dim]) = std::numeric_limits<float>::quiet_NaN();
  kvmeld::cache_options options;
  options.extent = s;
  kvmeld::merged_cache cache{std::move(executor), p,
                             kvmeld::kv{kvmeld::strided<float>(k.data(), "LSHTC", s, s.key_dim),
                                        kvmeld::strided<float>(v.data(), "LSHTC", s, s.value_dim)},
                             options};
  cache.open(0, n);
  if (of_values) support::set_scores(cache.ledger(), kvmeld::make_track(s, 0, 0, 0), scores);
  std::vector<float> const& rows = of_values ? v : k;
  std::uint32_t const channels = of_values ? s.value_dim : s.key_dim;
  std::vector<std::pair<double, std::uint32_t>> order;
  for (std::uint32_t i = 0; i < n; ++i) {
    double square = 0;
    for (std::uint32_t c = 0; c < channels; ++c) {
      double const x = rows[std::size_t{i} * channels + c];
      square += x * x;
    }
    if (i != 777) order.emplace_back(rank(std::sqrt(square), static_cast<double>(scores[i])), i);
  }
  std::sort(order.rbegin(), order.rend());
  std::vector<std::uint32_t> expected;
  for (std::uint32_t i = 0; i < left; ++i) expected.push_back(order[i].second);
  std::sort(expected.begin(), expected.end());
  REQUIRE(cache.compress({0}, kvmeld::budget::entries(left)).ok());
  CHECK(kept(cache, kvmeld::make_track(s, 0, 0, 0)) == expected);
}

template <class Policy, class Rank> void check_long_tracks(Policy const& p, bool of_values, Rank rank) {
  check_long_track(kvmeld::host_executor(2), p, of_values, rank);
  check_long_track(kvmeld::testing::lane_executor(8, 2, kvmeld::testing::tile_order::descending), p,
                   of_values, rank);
}

}  // namespace

TEST_CASE("scores of single rows in a track of several tiles") {
  auto const shortest = [](double norm, double) { return -norm; };
  auto const knorm = kvmeld::preset::knorm::for_budget();
  check_long_tracks(knorm, false, shortest);
  check_long_tracks(kvmeld::compose::composed_of(knorm), false, shortest);
  kvmeld::policy const reach{kvmeld::score::max_output<float>{}, knorm.select, kvmeld::identify::evict_rest{},
                             kvmeld::merge::drop{}};
  check_long_tracks(reach, true, [](double norm, double attention) { return attention * norm; });
}

}  // namespace row_score_cases
