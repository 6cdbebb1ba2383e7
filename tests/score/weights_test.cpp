// Weights of observed queries: what each query gives alone, times its weight, adds up to what they give
// together, whatever holds the entries. fold_test compares with naive loops.
#include <doctest/doctest.h>

#include <kvmeld/kvmeld.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "attention/ragged_call.hpp"
#include "attention/shared_cache.hpp"
#include "cache/refusal.hpp"
#include "support/random_cache.hpp"

namespace weights_cases {

using cache_test::refusal_of;
using support::dice;

namespace {

// All channels of all entries and members.
template <class Cache> std::vector<float> numbers_of(Cache const& cache) {
  kvmeld::ledger_ref const& l = cache.ledger();
  std::vector<float> out;
  for (std::uint32_t sequence = 0; sequence < l.extent.sequences; ++sequence) {
    support::for_tracks(l.extent, sequence, [&](kvmeld::track t) {
      for (std::uint32_t c = 0; c < l.channels.count; ++c) {
        for (std::uint32_t i = 0; i < l.length[t.index]; ++i) out.push_back(l.channel_data[c][l.at(t, i)]);
        for (std::uint32_t i = 0; Cache::shares && i < l.members.count[t.index]; ++i)
          out.push_back(l.members.channel_data[c][l.members.at(t, i)]);
      }
    });
  }
  return out;
}

// observe(sample) gives the numbers that an observation of `sequences` listed sequences with up to `queries`
// queries each leaves, from nothing.
template <class Observe>
void check_sums(dice& d, std::size_t sequences, std::uint32_t queries, Observe observe) {
  float const nan = std::numeric_limits<float>::quiet_NaN(),
              infinite = std::numeric_limits<float>::infinity();
  std::size_t const stride = queries + 3;
  std::vector<float> weights(sequences * stride), ones(weights.size(), 1.0f);
  for (float& x : weights) {
    x = static_cast<float>(3 * d.uniform());
    if (d.chance(0.3)) x = d.pick({0.0f, -1.0f, nan, infinite, -infinite});  // each of them gives nothing
  }
  kvmeld::query_sample sample;
  sample.weight_stride = static_cast<std::int64_t>(stride);
  std::vector<float> const plain = observe(sample);
  sample.weights = ones.data();
  CHECK(observe(sample) == plain);
  std::vector<double> wanted(plain.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!kvmeld::is_finite(weights[i]) || weights[i] <= 0) continue;
    std::vector<float> alone(weights.size());
    alone[i] = 1;
    sample.weights = alone.data();
    std::vector<float> const one = observe(sample);
    for (std::size_t k = 0; k < one.size(); ++k)
      wanted[k] += static_cast<double>(weights[i]) * static_cast<double>(one[k]);
  }
  sample.weights = weights.data();
  std::vector<float> const got = observe(sample);
  double worst = 0, sum = 0;
  for (std::size_t k = 0; k < got.size(); ++k) {
    worst = std::max(worst, std::abs(static_cast<double>(got[k]) - wanted[k]) / (1 + wanted[k]));
    sum += wanted[k];
  }
  CHECK(worst < 1e-5);
  CHECK((sum > 0 || plain.empty()));
}

}  // namespace

TEST_CASE("weights of queries of several sequences, whose entries may be shared") {
  dice d(91);
  for (int i = 0; i < 6; ++i) {
    kvmeld::shape const s{1, 3, d.between(1, 2), d.between(1, 3), 8, 4, 90};
    auto const check = [&](auto& from) {
      attention_test::call<float, float> c(s, d, 6);
      for (std::uint32_t& n : c.counts) n = kvmeld::max_of(n, 1u);
      c.fit(from.ledger());
      kvmeld::attention_params params;
      if (d.chance(0.5)) params.window = 40;
      kvmeld::attention::attend(from.executor(), c.batch(0), c.queries(), from.ref(), c.outputs(), c.sums(),
                                params);
      check_sums(d, c.sequences.size(), c.most, [&](kvmeld::query_sample const& sample) {
        auto cache = support::twin_of(from);
        cache.observe(c.batch(0), c.queries(), c.sums(), params, sample);
        return numbers_of(cache);
      });
    };
    attention_test::shared_cache<float> shared(s, d, 20, 0);
    check(shared.cache);
    support::engine_memory<float> memory(s);
    auto plain = support::make_cache(memory, kvmeld::preset::snapkv::with_window(4));
    for (std::uint32_t q : {0u, 1u}) memory.fill_sequence(d, q, 0, 90, support::texture::clusters);
    for (std::uint32_t q : {0u, 1u, 2u}) plain.open(q, q == 2 ? 0 : d.between(10, 90));
    check(plain);
  }
}

TEST_CASE("weights of queries that look inside chunks") {
  dice d(92);
  for (int i = 0; i < 6; ++i) {
    std::uint32_t const n = d.between(10, 30);
    kvmeld::shape const s{1, 1, d.between(1, 2), d.between(1, 3), 8, 4, n};
    support::engine_memory<float> memory(s);
    memory.fill_sequence(d, 0, 0, n, support::texture::noise);
    std::vector<float> q(std::size_t{n} * s.query_heads() * s.key_dim);
    for (float& x : q) x = static_cast<float>(d.normal());
    kvmeld::score::chunk_attention score{d.pick({5u, 64u}), 2};
    check_sums(d, 1, n, [&](kvmeld::query_sample const& sample) {
      auto cache =
          support::make_cache(memory, kvmeld::policy{score, kvmeld::select::top{},
                                                     kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}});
      cache.open(0, n);
      cache.observe({0, 0, n}, kvmeld::rows_by_token<float const>(q.data(), n, s.query_heads(), s.key_dim),
                    {}, {}, sample);
      return numbers_of(cache);
    });
  }
}

TEST_CASE("a weight counts before what a score makes of a probability") {
  kvmeld::shape const s{1, 1, 1, 1, 1, 1, 2};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::scissorhands::defaults(8));  // p above the mean
  cache.open(0, 2);
  std::vector<float> const p{0.7f, 0.3f, 0.6f, 0.4f}, weights{1.0f, 0.5f};
  kvmeld::attention_params all;
  all.causal = false;
  cache.observe_rows({0, 0, 2}, kvmeld::rows_by_head(p.data(), 2, 1, 2), all, {0, 1, weights.data()});
  kvmeld::ledger_ref const& l = cache.ledger();
  CHECK(l.channel_data[l.channels.find(kvmeld::channel_tag::hits_current)][0] == 1.0f);
  CHECK(l.word(kvmeld::make_track(s, 0, 0, 0), kvmeld::track_word::observed_rows) == 2);
}

TEST_CASE("scores that absorb queries refuse weights") {
  kvmeld::shape const s{1, 1, 1, 1, 4, 4, 16};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::attention_matching::for_budget());
  cache.open(0, 16);
  std::vector<float> q(16), out(16), lse(4), weights(4, 1.0f), room(4 * 64);
  auto const rows = kvmeld::rows_by_token<float const>(q.data(), 4, 1, 4);
  kvmeld::query_sample const sample{0, 1, weights.data()};
  std::string const text = "observe: sample.weights is given; it must be null, because the policy's score "
                           "absorbs queries, which have no weights";
  auto const before = support::ledger_bytes(cache);
  CHECK(refusal_of([&] {
          cache.observe({0, 0, 4}, rows, kvmeld::rows_by_head<float const>(lse.data(), 4, 1, 1), {}, sample);
        }) == text);
  CHECK(refusal_of([&] {
          kvmeld::attention::attend_and_observe(cache, {0, 0, 4}, rows,
                                                kvmeld::rows_by_token(out.data(), 4, 1, 4),
                                                {room.data(), room.size()}, {}, {}, sample);
        }) == text);
  CHECK(support::ledger_bytes(cache) == before);
}

}  // namespace weights_cases
