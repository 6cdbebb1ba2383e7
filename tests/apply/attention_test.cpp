// What merging does to attention: nothing, where members are equal; O or O / (1 - A), where CaM says so.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "hand_made.hpp"
#include "reference/attention.hpp"
#include "reference/cam.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

using doctest::Approx;
using hand_made::send;
using kvmeld::fate;
using support::dice;

namespace {

struct attended {
  std::vector<float> out, lse;
};

// Queries [query][head][channel] of sequence 0, layer 0.
template <class Cache> attended attend(Cache& cache, std::vector<float> const& queries, std::uint32_t count) {
  kvmeld::shape const& s = cache.options().extent;
  attended a{std::vector<float>(std::size_t{count} * s.query_heads() * s.value_dim),
             std::vector<float>(std::size_t{count} * s.query_heads())};
  std::uint32_t const listed[] = {0}, counts[] = {count};
  kvmeld::attention_params all;
  all.causal = false;
  kvmeld::attention::attend(cache.executor(), kvmeld::query_batch{0, {listed, 1}, {counts, 1}},
                            kvmeld::rows_by_token(queries.data(), count, s.query_heads(), s.key_dim),
                            cache.ref(),
                            kvmeld::rows_by_token(a.out.data(), count, s.query_heads(), s.value_dim),
                            kvmeld::rows_by_head(a.lse.data(), count, s.query_heads(), 1), all);
  return a;
}

std::vector<float> random_queries(dice& d, kvmeld::shape const& s, std::uint32_t count) {
  std::vector<float> q(std::size_t{count} * s.query_heads() * s.key_dim);
  for (float& x : q) x = static_cast<float>(2 * d.normal());
  return q;
}

void check_same(attended const& a, attended const& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.out.size(); ++i)
    worst = std::max(worst, std::fabs(static_cast<double>(a.out[i]) - static_cast<double>(b.out[i])));
  for (std::size_t i = 0; i < a.lse.size(); ++i)
    worst = std::max(worst, std::fabs(static_cast<double>(a.lse[i]) - static_cast<double>(b.lse[i])));
  CHECK(worst < 2e-5);
}

// Entries in runs of `copies` equal ones; a policy that brings them to one each must not show in attention.
template <class Policy>
void equal_entries(dice& d, Policy const& policy, std::uint32_t copies, bool interleaved) {
  std::uint32_t const distinct = d.between(2, 12), n = distinct * copies;
  kvmeld::shape const s{1, 1, d.between(1, 2), d.between(1, 3), d.between(4, 40), d.between(1, 20), n};
  support::engine_memory<float> memory(s);
  auto cache = make_cache(memory, policy);
  cache.open(0, n);
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    auto const k = support::random_rows(d, distinct, s.key_dim, support::texture::noise);
    auto const v = support::random_rows(d, distinct, s.value_dim, support::texture::noise);
    for (std::uint32_t i = 0; i < n; ++i) {
      std::uint32_t const which = interleaved ? i % (2 * distinct) / 2 : i / copies;
      memory.fill(t, i, {k[which]}, {v[which]});
    }
    if (cache.ledger().channels.count != 0)
      support::set_scores(cache.ledger(), t, support::random_scores(d, n));
  });
  auto const queries = random_queries(d, s, 3);
  attended const before = attend(cache, queries, 3);
  cache.compress({0}, kvmeld::budget::entries(interleaved ? n - distinct : distinct));
  CHECK(cache.longest(0) == (interleaved ? n - distinct : distinct));
  check_same(before, attend(cache, queries, 3));
}

}  // namespace

TEST_CASE("entries that coincide merge without a trace in attention, under every preset that keeps degrees") {
  dice d(81);
  auto const zero = kvmeld::quantity::entries(0);
  for (int i = 0; i < 40; ++i) {
    std::uint32_t const copies = d.between(2, 6);
    equal_entries(d, kvmeld::preset::kvmerger::for_budget(zero, zero), copies, false);
    auto paper = kvmeld::preset::kvmerger::paper_50();
    paper.select = {zero, zero, zero};
    paper.merge.degrees = true;
    paper.identify.admission.theta = 0.999f;
    equal_entries(d, paper, copies, false);
    // Chelsea's A and B: pairs of equal neighbours, in one round and in several.
    equal_entries(d, kvmeld::preset::chelsea::with_schedule({0.5, 0, 0, 0.05}, zero, zero), 2, false);
    equal_entries(d, kvmeld::preset::chelsea::with_schedule({0.2, 0.1, 2, 0.05}, zero, zero), 4, true);
    auto averaged = kvmeld::policy{kvmeld::score::none{}, kvmeld::select::sinks_and_recents{zero, zero},
                                   kvmeld::identify::chunked_bipartite<kvmeld::admit::exact_budget>{},
                                   kvmeld::merge::average{}};
    equal_entries(d, averaged, 2, false);
  }
  // As printed, without degrees, it does show: two equal entries against one other.
  kvmeld::shape const s{1, 1, 1, 1, 1, 1, 3};
  support::engine_memory<float> memory(s);
  memory.fill({0, 0, 0, 0}, 0, {{1}, {1}, {-1}}, {{1}, {1}, {0}});
  auto policy = kvmeld::preset::kvmerger::paper_50();
  policy.select = {zero, zero, zero};
  auto cache = make_cache(memory, policy);
  cache.open(0, 3);
  support::set_scores(cache.ledger(), {0, 0, 0, 0}, {1, 1, 1});
  CHECK(attend(cache, {0}, 1).out[0] == Approx(2.0 / 3));
  cache.compress({0}, kvmeld::budget::entries(2));
  CHECK(attend(cache, {0}, 1).out[0] == Approx(1.0 / 2));
}

TEST_CASE("CaM by hand-made plans: O / (1 - A) as printed, exactly O when the mass is corrected") {
  // All logits 0, values 8 1 2 3: O = 3.5, A = 1/4. Slot 0 spreads over 2 and 3 with 1/2 each: 6 and 7; of 1,
  // 6, 7 the mean is 14/3 = 3.5 / (1 - 1/4). Corrected: 6 / 1.5 and 7 / 1.5 of degree 1.5: (1 + 6 + 7) / 4
  // = 3.5.
  auto const output = [](bool corrected) {
    support::engine_memory<float> memory({1, 1, 1, 1, 1, 1, 4});
    memory.fill({0, 0, 0, 0}, 0, {{1}, {1}, {1}, {1}}, {{8}, {1}, {2}, {3}});
    auto cache = make_cache(memory, hand_made::policy(), support::with_plan());
    cache.open(0, 4);
    cache.plan({0}, kvmeld::budget::entries(4));
    kvmeld::plan_ref const& p = cache.current_plan();
    send(p, 0, 0, fate::spread, 2, 1, 0.5f, corrected ? 0.5f : 0.0f, 2);
    if (corrected) p.value_weight[2] = p.value_weight[3] = 1 / 1.5f;
    hand_made::dump::renumber(p, 0);
    cache.apply();
    CHECK(cache.ref().degree({0, 0, 0, 0}, 1) == (corrected ? 1.5f : 1.0f));
    return attend(cache, {0}, 1).out[0];
  };
  CHECK(output(false) == Approx(3.5 / 0.75));
  CHECK(output(true) == Approx(3.5));
}

TEST_CASE("CaM's lossless case at random: mean attention of the targets equals the evicted entry's") {
  dice d(82);
  for (int i = 0; i < 100; ++i) {
    // One channel, query 1: the key is the log of the attention. The targets' attention averages to the
    // evicted one's.
    std::uint32_t const n = d.between(4, 20), evicted = d.below(2), m = d.between(1, n - 2),
                        first = d.between(2, n - m);
    std::vector<double> a(n);
    for (double& x : a) x = 0.1 + d.uniform();
    double mean = 0;
    for (std::uint32_t k = first; k < first + m; ++k) mean += a[k] / m;
    a[evicted] = mean;
    double total = 0;
    for (double x : a) total += x;
    for (bool corrected : {false, true}) {
      kvmeld::shape const s{1, 1, 1, 1, 1, 5, n};
      support::engine_memory<float> memory(s);
      support::rows keys;
      for (double x : a) keys.push_back({static_cast<float>(std::log(x))});
      memory.fill({0, 0, 0, 0}, 0, keys, support::random_rows(d, n, 5, support::texture::noise));
      auto cache = make_cache(memory, hand_made::policy(), support::with_plan());
      cache.open(0, n);
      attended const before = attend(cache, {1}, 1);
      auto const track = support::read_track(cache.ref(), {0, 0, 0, 0});
      cache.plan({0}, kvmeld::budget::entries(n));
      kvmeld::plan_ref const& p = cache.current_plan();
      float const share = 1 / static_cast<float>(m);
      send(p, 0, evicted, fate::spread, first, 1, share, corrected ? share : 0, m);
      for (std::uint32_t k = first; corrected && k < first + m; ++k) p.value_weight[k] = 1 / (1 + share);
      hand_made::dump::renumber(p, 0);
      cache.apply();
      reference::indices targets;
      for (std::uint32_t k = first; k < first + m; ++k) targets.push_back(k);
      auto const variant = corrected ? reference::cam_variant::mass_corrected : reference::cam_variant::paper;
      auto const expected = reference::cam_merge(track, {evicted}, {1}, targets, variant);
      auto const got = support::read_track(cache.ref(), {0, 0, 0, 0});
      REQUIRE(got.size() == n - 1);
      for (std::size_t k = 0; k < got.size(); ++k) {
        CHECK(got.degree[k] == Approx(expected.after.degree[k]));
        for (std::size_t c = 0; c < 5; ++c)
          CHECK(std::fabs(got.values[k][c] - expected.after.values[k][c]) < 1e-5);
      }
      attended const after = attend(cache, {1}, 1);
      double const factor = corrected ? 1 : 1 / (1 - a[evicted] / total);
      for (std::size_t c = 0; c < 5; ++c) {
        CHECK(std::fabs(static_cast<double>(after.out[c]) - factor * static_cast<double>(before.out[c])) <
              3e-5);
      }
    }
  }
}
