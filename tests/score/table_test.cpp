// A score of one's own that keeps a table per track: what it is shown, and what it may keep besides.
#include <kvmeld/kvmeld.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/refusal.hpp"
#include "query_talk.hpp"
#include "support/random_cache.hpp"

namespace table_cases {

using score_test::evicting;

namespace {

// Attention as score::global sums it up, and per query head: how many queries came, their positions, their
// slots, and the sum of their first channels.
struct witness : kvmeld::score::global {
  std::size_t table_floats(kvmeld::shape const& s) const { return std::size_t{4} * s.queries_per_kv_head; }
  template <class Team, class Queries>
  void absorb(Team const& team, float* table, std::uint32_t head, Queries const& queries) const {
    std::vector<float> row(queries.channels());
    for (std::uint32_t i = 0; i < queries.count(); ++i) {
      queries.load(team, i, 1, row.data());
      table[4 * head] += 1;
      table[4 * head + 1] += static_cast<float>(queries.position(i));
      table[4 * head + 2] += static_cast<float>(queries.slot(i));
      table[4 * head + 3] += row[0];
    }
  }
};

}  // namespace

TEST_CASE("a score with channels and a table is shown attention and queries") {
  support::dice d(2301);
  kvmeld::shape const s{2, 2, 2, 3, 8, 4, 60};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, evicting(witness{}));
  auto plain = support::make_cache(memory, evicting(kvmeld::score::global{}));
  CHECK(cache.needs_observation().when == kvmeld::observation::every_step);
  memory.fill_sequence(d, 1, 0, 50, support::texture::walk);
  std::uint32_t const heads = s.query_heads(), n = 10;
  std::vector<float> q(std::size_t{n} * heads * s.key_dim), out(std::size_t{n} * heads * s.value_dim),
      lse(n * heads);
  for (float& x : q) x = static_cast<float>(d.normal());
  auto const queries = kvmeld::rows_by_token<float const>(q.data(), n, heads, s.key_dim);
  auto const norms = kvmeld::rows_by_head<float const>(lse.data(), n, heads, 1);
  kvmeld::attention_params params;
  params.scale = 0.25f;
  for (auto* c : {&cache.ledger(), &plain.ledger()}) CHECK(c->channels.count == 1);
  cache.open(1, 40);
  plain.open(1, 40);
  kvmeld::attention::attend(plain.executor(), {0, 1, n}, queries, plain.ref(),
                            kvmeld::rows_by_token(out.data(), n, heads, s.value_dim),
                            kvmeld::rows_by_head(lse.data(), n, heads, 1), params);
  kvmeld::query_sample const third = kvmeld::every_nth(3);  // queries 0, 3, 6, 9 at positions 30, 33, 36, 39
  plain.observe({0, 1, n}, queries, norms, params, third);
  cache.observe({0, 1, n}, queries, norms, params, third);
  support::for_tracks(s, 1, [&](kvmeld::track t) {
    for (std::uint32_t i = 0; i < 40; ++i)
      CHECK(cache.ledger().channel_data[0][cache.ledger().at(t, i)] ==
            plain.ledger().channel_data[0][plain.ledger().at(t, i)]);
    for (std::uint32_t h = 0; h < 3; ++h) {
      float const* const seen = cache.ledger().table_of(t) + 4 * h;
      CHECK(seen[0] == (t.layer == 0 ? 4.0f : 0.0f));
      if (t.layer != 0) continue;
      float sum = 0;
      for (std::uint32_t i : {0u, 3u, 6u, 9u})
        sum += 0.25f * q[(std::size_t{i} * heads + 3 * t.kv_head + h) * s.key_dim];
      CHECK(seen[3] == doctest::Approx(sum));
      CHECK(seen[1] == 30.0f + 33.0f + 36.0f + 39.0f);
      CHECK(seen[2] == seen[1]);
    }
  });

  // Once entries are gone, slots are no positions. Queries of the last two tokens.
  cache.observe({1, 1, n}, queries, norms, params);
  cache.compress({1}, kvmeld::budget::entries(25));
  kvmeld::track const t = kvmeld::make_track(s, 0, 1, 1);
  float const before[] = {cache.ledger().table_of(t)[1], cache.ledger().table_of(t)[2]};
  cache.append({1}, {3});
  cache.commit({1}, {3});
  auto const two = kvmeld::rows_by_token<float const>(q.data(), 2, heads, s.key_dim);
  cache.observe({0, 1, 2}, two, norms, params);
  CHECK(cache.ledger().table_of(t)[1] - before[0] == 41.0f + 42.0f);
  CHECK(cache.ledger().table_of(t)[2] - before[1] == 26.0f + 27.0f);

  // Attention takes log-sum-exps.
  cache_test::refused(cache, memory,
                      [&](auto& c) {
                        c.observe({0, 1, 2}, two, {}, params);
                      },
                      {"observe: lse.data is null"});
  auto const rows = kvmeld::rows_by_head<float const>(q.data(), 1, heads, 28);
  cache_test::refused(cache, memory,
                      [&](auto& c) {
                        c.observe_rows({0, 1, 1}, rows);
                      },
                      {"one whose score absorbs queries"});
}

}  // namespace table_cases
