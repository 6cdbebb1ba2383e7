// Scissorhands against the reference: counts of rows above the mean, from queries and from rows, at once and
// over a generation with evictions.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/scissorhands.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace scissorhands_cases {

using support::dice;

namespace {

namespace scissorhands = kvmeld::preset::scissorhands;

// Random rows for one sequence, multiples of 1/1024: p * visible is exact in float.
template <class Cache>
std::vector<float> observe_random(dice& d, Cache& cache, std::uint32_t q, std::uint32_t rows) {
  kvmeld::shape const s = cache.options().extent;
  std::vector<float> p(std::size_t{s.query_heads()} * rows * s.capacity);
  std::uint32_t const most = d.between(1, 200);
  for (float& x : p) x = static_cast<float>(d.below(most + 1)) / 1024.0f;
  for (std::uint32_t layer = 0; layer < s.layers; ++layer)
    cache.observe_rows({layer, q, rows},
                       kvmeld::rows_by_head<float const>(p.data(), rows, s.query_heads(), s.capacity));
  return p;
}

// The rows of one KV head as the reference wants them: the mean of its query heads.
reference::matrix rows_of(std::vector<float> const& p, kvmeld::shape const& s, std::uint32_t head,
                          std::uint32_t rows, std::size_t n) {
  reference::matrix out(rows, reference::row(n, 0.0));
  for (std::uint32_t g = 0; g < s.queries_per_kv_head; ++g)
    for (std::uint32_t r = 0; r < rows; ++r)
      for (std::size_t j = 0; j < n; ++j)
        out[r][j] +=
            static_cast<double>(p[((head * s.queries_per_kv_head + g) * rows + r) * s.capacity + j]) /
            s.queries_per_kv_head;
  return out;
}

}  // namespace

TEST_CASE("Scissorhands by hand") {
  // Five entries, three queries of the last three tokens, causal: they see 3, 4 and 5 entries; means 1/3,
  // 1/4, 1/5.
  //   row 0: .5 .25 .25       above: 0
  //   row 1: .25 .25 .3 .2    above: 2 (.25 is the mean itself)
  //   row 2: .1 .21 .3 .19 .2 above: 1, 2
  kvmeld::shape const s{1, 1, 1, 1, 1, 1, 5};
  support::engine_memory<float> memory(s);
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  memory.fill(t, 0, support::rows(5, {1}), support::rows(5, {1}));
  auto cache = make_cache(memory, scissorhands::defaults());
  cache.open(0, 5);
  float const rows[] = {.5f, .25f, .25f, 9, 9, .25f, .25f, .3f, .2f, 9, .1f, .21f, .3f, .19f, .2f};
  cache.observe_rows({0, 0, 3}, kvmeld::rows_by_head<float const>(rows, 3, 1, 5));
  CHECK(support::read_track(cache.ref(), t).score == std::vector<double>{1, 1, 2, 0, 0});
  // Budget 3: recent 4; of the rest the best two: 2, and of 0 and 1 the lower.
  cache.compress({0}, kvmeld::budget::entries(3));
  CHECK(support::read_track(cache.ref(), t).position == std::vector<long>{0, 2, 4});
  CHECK(kvmeld::name_of_policy(scissorhands::defaults()) == "above_mean x top x evict_rest x drop");
  CHECK(kvmeld::configuration_problem(scissorhands::defaults(0)) ==
        "policy: score::above_mean.window is 0; it must be at least 1");
  CHECK(kvmeld::configuration_problem(scissorhands::defaults()).empty());
}

TEST_CASE("counts from queries are those of the reference's attention") {
  dice d(51);
  std::size_t compared = 0, doubtful = 0;
  for (int i = 0; i < 30; ++i) {
    kvmeld::shape const s{1, 1, d.between(1, 2), d.between(1, 4), d.pick({8u, 24u}), 4, 120};
    support::engine_memory<kvmeld::bfloat16> memory(s);
    std::uint32_t const window = d.between(3, 60), n = d.between(20, 110), rows = d.between(1, n);
    auto cache = make_cache(memory, scissorhands::defaults(window));
    cache.open(0, n);
    memory.fill_sequence(d, 0, 0, n, support::texture::walk);
    std::vector<float> queries(std::size_t{rows} * s.query_heads() * s.key_dim), lse;
    for (float& x : queries) x = static_cast<float>(d.normal());
    std::vector<reference::matrix> per_head(s.query_heads());
    for (std::uint32_t r = 0; r < rows; ++r) {
      for (std::uint32_t h = 0; h < s.query_heads(); ++h) {
        float const* const q = queries.data() + (std::size_t{r} * s.query_heads() + h) * s.key_dim;
        per_head[h].emplace_back(q, q + s.key_dim);
      }
    }
    reference::attention_options options;
    options.scale = 1 / std::sqrt(static_cast<double>(s.key_dim));
    options.causal = true;
    std::vector<reference::matrix> probability;
    for (std::uint32_t h = 0; h < s.query_heads(); ++h) {
      auto const track =
          support::read_track(cache.ref(), kvmeld::make_track(s, 0, 0, h / s.queries_per_kv_head));
      auto const attended = reference::attend(per_head[h], track, options);
      for (double x : attended.lse) lse.push_back(static_cast<float>(x));
      probability.push_back(attended.probability);
    }
    cache.observe({0, 0, rows},
                  kvmeld::rows_by_token<float const>(queries.data(), rows, s.query_heads(), s.key_dim),
                  kvmeld::rows_by_head<float const>(lse.data(), rows, s.query_heads(), 1));
    std::uint32_t const counted = std::min(window, rows);
    for (std::uint32_t head = 0; head < s.kv_heads; ++head) {
      auto const got = support::read_track(cache.ref(), kvmeld::make_track(s, 0, 0, head)).score;
      for (std::uint32_t j = 0; j < n; ++j) {
        double expected = 0, doubts = 0;
        for (std::uint32_t r = rows - counted; r < rows; ++r) {
          std::uint32_t const visible = n - (rows - 1 - r);
          if (j >= visible) continue;
          double p = 0;
          for (std::uint32_t g = 0; g < s.queries_per_kv_head; ++g)
            p += probability[head * s.queries_per_kv_head + g][r][j] / s.queries_per_kv_head;
          reference::hit const hit = reference::hit_of(p, visible);
          expected += hit.above ? 1 : 0;
          doubts += hit.doubt < 1e-5 ? 1 : 0;
        }
        CHECK(std::fabs(got[j] - expected) <= doubts);
        ++compared;
        doubtful += doubts > 0 ? 1 : 0;
      }
    }
  }
  CHECK(compared > 2000);
  CHECK(doubtful * 50 < compared);
}

TEST_CASE("a generation with evictions keeps the reference's entries") {
  dice d(52);
  support::tally count;
  for (int round = 0; round < 8; ++round) {
    std::uint32_t const window = d.pick({1u, 5u, 16u, 400u}), budget = d.between(4, 24),
                        interval = d.between(1, 5);
    std::uint32_t const prompt = d.between(budget, 2 * budget);
    kvmeld::shape const s{1, 2, 2, d.between(1, 2), 4, 4, std::max(prompt, budget + interval)};
    support::engine_memory<float> memory(s);
    auto cache = make_cache(memory, scissorhands::defaults(window));
    std::vector<reference::hit_history> history(s.tracks());
    std::vector<std::uint32_t> both{0, 1};
    std::size_t counted = 0;  // rows in the window
    auto const seen = [&](std::uint32_t q, std::uint32_t rows) {
      auto const p = observe_random(d, cache, q, rows);
      for (std::uint32_t head = 0; head < s.kv_heads; ++head) {
        auto& own = history[kvmeld::make_track(s, 0, q, head).index];
        std::size_t const n = cache.ref().length(kvmeld::make_track(s, 0, q, head));
        own.rows.resize(n);
        auto const all = rows_of(p, s, head, rows, n);
        for (std::uint32_t r = 0; r < rows; ++r) own.add(all[r], n - (rows - 1 - r));
      }
    };
    for (std::uint32_t q : both) {
      cache.open(q, prompt);
      memory.fill_sequence(d, q, 0, prompt, support::texture::noise);
      seen(q, prompt);
    }
    counted = std::min<std::size_t>(prompt, window);
    std::size_t filled = prompt >= window ? window : prompt;  // of the current half
    for (std::uint32_t step = 0; step < 150; ++step) {
      for (std::uint32_t q : both) {
        kvmeld::trigger const when{budget, interval};
        if (cache.due(q, when)) {
          std::vector<std::vector<double>> hits(s.kv_heads);
          std::vector<reference::track_state> before(s.kv_heads);
          for (std::uint32_t head = 0; head < s.kv_heads; ++head) {
            kvmeld::track const t = kvmeld::make_track(s, 0, q, head);
            before[head] = support::read_track(cache.ref(), t);
            hits[head] = history[t.index].counts(counted);
            CHECK(before[head].score == hits[head]);
          }
          cache.compress({q}, kvmeld::budget::entries(budget));
          for (std::uint32_t head = 0; head < s.kv_heads; ++head) {
            kvmeld::track const t = kvmeld::make_track(s, 0, q, head);
            reference::selection const chosen = reference::scissorhands(hits[head], budget);
            ++count.compared;
            CHECK(support::difference<float>(reference::evict(before[head], chosen), before[head],
                                             support::read_track(cache.ref(), t)) == "");
            history[t.index].keep(chosen.kept);
          }
        }
        cache.append({q}, {1});
        memory.fill_sequence(d, q, cache.longest(q) - 1, 1, support::texture::noise);
        cache.commit({q}, {1});
        seen(q, 1);
      }
      // Both halves: a full one and the rows since (score::local).
      if (window == 1) continue;
      if (filled + 1 > window) {
        counted = window + 1;
        filled = 1;
      } else {
        ++filled;
        ++counted;
        if (filled == window) counted = window;
      }
    }
  }
  CHECK(count.compared > 500);
}

}  // namespace scissorhands_cases
