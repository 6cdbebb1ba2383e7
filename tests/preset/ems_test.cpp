// EMS against the double-precision reference: observations and compressions of growing sequences, each from
// what the cache holds.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "support/ems_view.hpp"
#include "support/random_cache.hpp"

namespace ems_cases {

using doctest::Approx;
using support::dice;

namespace {

namespace ems = kvmeld::preset::ems;
using kvmeld::quantity;
using kvmeld::identify::resemblance;

template <class Merge, resemblance By>
using form = kvmeld::policy<kvmeld::score::global_local, kvmeld::select::tiers,
                            kvmeld::identify::nearest_center<kvmeld::admit::threshold, By>, Merge>;

struct numbers {
  std::uint32_t budget, window, sinks, protect, members, length;
  double gamma;
  float tau;
};

numbers some_numbers(dice& d) {
  numbers n{};
  n.window = d.between(1, 12);
  n.sinks = d.chance(0.3) ? d.between(1, 3) : 0;
  n.protect = d.chance(0.3) ? d.between(1, 3) : 0;
  n.budget = n.window + n.sinks + n.protect + d.between(1, 30);
  n.gamma = d.pick({1.0, 1.5, 2.0, 4.0, 10.0});
  n.tau = d.pick({0.6f, 0.6f, 0.3f, 0.1f, 0.0f, -0.25f, 0.9f});
  n.members = std::max(1u, ems::members_for(n.budget, n.gamma));
  if (d.chance(0.2)) n.members = d.between(1, n.members);
  n.length = n.budget + d.between(1, 60);
  return n;
}

template <class Merge, resemblance By> form<Merge, By> policy_of(dice& d, numbers const& n) {
  constexpr std::uint32_t kernels[] = {7, 7, 1, 3, 15};
  return {{n.window, {d.pick(kernels), kvmeld::pooling_mode::mean}},
          {quantity::entries(n.sinks), quantity::entries(n.window), quantity::entries(n.protect), n.gamma},
          {{n.tau, true}},
          {}};
}

// Rows around few centres, so that some are alike; a few equal to others, a few zero.
support::rows alike(dice& d, std::uint32_t n, std::uint32_t channels) {
  auto const how = d.chance(0.7) ? support::texture::clusters : support::texture::walk;
  support::rows out = support::random_rows(d, n, channels, how);
  double const offset = d.chance(0.5) ? 0.5 : 0.0;
  for (auto& row : out) {
    for (float& x : row) x += static_cast<float>(offset);
    if (d.chance(0.03)) row = out[d.below(n)];
    if (d.chance(0.01)) row.assign(channels, 0.0f);
  }
  return out;
}

// Softmax rows of `queries` last tokens over slots and members; what a query does not see holds 9, to be left
// alone.
template <class Ref>
reference::matrix some_attention(dice& d, Ref const& ref, kvmeld::track t, std::uint32_t queries, float* to,
                                 std::size_t stride) {
  kvmeld::ledger_ref const& l = ref.ledger;
  std::uint32_t const n = ref.length(t), held = l.members.capacity == 0 ? 0 : l.members.count[t.index];
  reference::matrix rows;
  for (std::uint32_t q = 0; q < queries; ++q) {
    std::uint32_t const seen = n - (queries - 1 - q);
    std::vector<double> weight(n + held, 0.0);
    double total = 0;
    for (std::uint32_t i = 0; i < n + held; ++i) {
      std::uint32_t const slot = i < n ? i : l.members.owner[l.members.at(t, i - n)];
      if (slot < seen) total += weight[i] = std::exp(1.5 * d.normal());
    }
    reference::row row;
    for (std::uint32_t i = 0; i < n + held; ++i) {
      float const p = static_cast<float>(weight[i] / total);
      to[q * stride + i] = weight[i] > 0 ? p : 9.0f;
      row.push_back(static_cast<double>(p));
    }
    rows.push_back(row);
  }
  return rows;
}

reference::matrix mean_of(std::vector<reference::matrix> const& heads) {
  reference::matrix mean = heads.front();
  for (std::size_t q = 0; q < mean.size(); ++q) {
    for (std::size_t i = 0; i < mean[q].size(); ++i) {
      double sum = 0;
      for (auto const& head : heads) sum += head[q][i];
      mean[q][i] = sum / static_cast<double>(heads.size());
    }
  }
  return mean;
}

// A block of `queries` rows for all tracks of a sequence.
template <class Cache>
void observe(dice& d, Cache& cache, std::uint32_t sequence, std::uint32_t queries, std::uint32_t window) {
  kvmeld::shape const& s = cache.options().extent;
  std::size_t const stride = s.capacity + cache.options().members;
  for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
    std::vector<float> rows(s.query_heads() * queries * stride, 9.0f);
    std::vector<reference::ems_state> expected;
    for (std::uint32_t head = 0; head < s.kv_heads; ++head) {
      kvmeld::track const t = kvmeld::make_track(s, layer, sequence, head);
      expected.push_back(support::read_ems(cache.ref(), t, window));
      std::vector<reference::matrix> heads;
      for (std::uint32_t g = 0; g < s.queries_per_kv_head; ++g) {
        float* const to = rows.data() + (head * s.queries_per_kv_head + g) * queries * stride;
        heads.push_back(some_attention(d, cache.ref(), t, queries, to, stride));
      }
      reference::ems_observe(expected.back(), mean_of(heads), window);
    }
    cache.observe_rows({layer, sequence, queries},
                       kvmeld::rows_by_head<float const>(rows.data(), queries, s.query_heads(),
                                                         static_cast<std::uint32_t>(stride)));
    for (std::uint32_t head = 0; head < s.kv_heads; ++head) {
      kvmeld::track const t = kvmeld::make_track(s, layer, sequence, head);
      auto const got = support::read_ems(cache.ref(), t, window);
      CHECK(support::ledger_difference(expected[head], got) == "");
      CHECK(got.rows_in_window == expected[head].rows_in_window);
    }
  }
}

std::size_t merges = 0;  // entries that went into others where results were compared

// Compresses and compares every track that no rounding could have decided.
template <class T, class Cache>
void compress(Cache& cache, std::uint32_t sequence, std::uint32_t budget, std::uint32_t window, bool literal,
              support::tally& count) {
  kvmeld::shape const& s = cache.options().extent;
  std::vector<reference::ems_state> before(s.tracks());
  support::for_tracks(s, sequence,
                      [&](kvmeld::track t) { before[t.index] = support::read_ems(cache.ref(), t, window); });
  cache.compress({sequence}, kvmeld::budget::entries(budget));
  support::for_tracks(s, sequence, [&](kvmeld::track t) {
    auto options = support::ems_options_of(cache.policy(), budget, cache.options().members);
    options.literal_product = literal;
    auto const expected = reference::ems_compress(before[t.index], options, support::store_as<T>());
    auto const got = support::read_ems(cache.ref(), t, window);
    CHECK(got.slots.size() == budget);
    if (!support::decided(expected, before[t.index])) {
      ++count.skipped;
      return;
    }
    ++count.compared;
    CHECK(support::ems_difference<T>(expected, before[t.index], got) == "");
    for (std::size_t i = 0; i < expected.slot_target.size(); ++i)
      merges += expected.slot_target[i] >= 0 && expected.slot_target[i] != static_cast<int>(i) ? 1 : 0;
  });
}

template <class T, class Merge, resemblance By = resemblance::keys_and_values>
void live(dice& d, support::tally& count) {
  numbers n = some_numbers(d);
  if (By == resemblance::keys && !(n.tau > 0)) n.tau = 0.5f;
  auto const policy = policy_of<Merge, By>(d, n);
  // The key alone decides as key and value do where all values point one way.
  std::uint32_t const value_dim = By == resemblance::keys ? 1 : d.between(1, 64);
  kvmeld::shape const s{d.between(1, 2),  d.between(1, 2), d.between(1, 2), d.between(1, 3),
                        d.between(1, 64), value_dim,       n.length + 20};
  support::engine_memory<T> memory(s, d.chance(0.5) ? "LSHTC" : "SLTHC");
  kvmeld::cache_options options{};
  options.members = Merge::facts.shares ? n.members : 0;
  auto cache = make_cache(memory, policy, options);
  std::uint32_t const q = s.sequences - 1;
  auto const fill = [&](std::uint32_t first, std::uint32_t count_of) {
    support::for_tracks(s, q, [&](kvmeld::track t) {
      support::rows v = alike(d, count_of, s.value_dim);
      if (By == resemblance::keys)
        for (auto& row : v) row[0] = 1.0f + std::fabs(row[0]);
      memory.fill(t, first, alike(d, count_of, s.key_dim), v);
    });
  };
  cache.open(q, n.length);
  fill(0, n.length);
  bool const literal = By == resemblance::signed_product;
  observe(d, cache, q, d.chance(0.5) ? n.length : d.between(n.window, n.length), n.window);
  compress<T>(cache, q, n.budget, n.window, literal, count);
  for (int times = 0; times < 4; ++times) {
    std::uint32_t const added = d.between(1, 8);
    for (std::uint32_t i = 0; i < added; ++i) {
      fill(cache.longest(q), 1);
      cache.append({q}, {1});
      cache.commit({q}, {1});
      observe(d, cache, q, 1, n.window);
    }
    compress<T>(cache, q, n.budget, n.window, literal, count);
  }
}

void report(support::tally const& count, std::size_t least, double max_skipped) {
  MESSAGE("compared ", count.compared, " tracks, skipped ", count.skipped);
  CHECK(count.compared > least);
  CHECK(count.share() < max_skipped);
  CHECK(merges > 2 * least);
  merges = 0;
}

}  // namespace

TEST_CASE("EMS with shared entries is the reference, one compression after the other") {
  dice d(201);
  support::tally count;
  for (int i = 0; i < 120; ++i) live<float, kvmeld::merge::shared>(d, count);
  for (int i = 0; i < 60; ++i) live<kvmeld::float16, kvmeld::merge::shared>(d, count);
  for (int i = 0; i < 60; ++i) live<kvmeld::bfloat16, kvmeld::merge::shared>(d, count);
  report(count, 1000, 0.1);
}

TEST_CASE("EMS with collapsed entries is the reference, one compression after the other") {
  dice d(202);
  support::tally count;
  for (int i = 0; i < 120; ++i) live<float, kvmeld::merge::collapsed>(d, count);
  for (int i = 0; i < 60; ++i) live<kvmeld::float16, kvmeld::merge::collapsed>(d, count);
  for (int i = 0; i < 60; ++i) live<kvmeld::bfloat16, kvmeld::merge::collapsed>(d, count);
  report(count, 1000, 0.1);
}

TEST_CASE("the product as printed, and keys alone") {
  dice d(203);
  support::tally count;
  for (int i = 0; i < 60; ++i) live<float, kvmeld::merge::shared, resemblance::signed_product>(d, count);
  for (int i = 0; i < 60; ++i) live<float, kvmeld::merge::collapsed, resemblance::signed_product>(d, count);
  // Keys alone may agree below 0, where key and value together may not: positive thresholds only.
  for (int i = 0; i < 60; ++i) live<float, kvmeld::merge::shared, resemblance::keys>(d, count);
  for (int i = 0; i < 60; ++i) live<kvmeld::float16, kvmeld::merge::collapsed, resemblance::keys>(d, count);
  report(count, 1000, 0.15);
}

}  // namespace ems_cases
