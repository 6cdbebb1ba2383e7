// Thresholds per layer for a ratio: what they keep, and that layers are told apart.
#include <doctest/doctest.h>

#include <kvmeld/calibrate/thresholds.hpp>
#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/random_cache.hpp"

namespace {

using support::dice;

struct model {
  kvmeld::shape s{3, 1, 2, 1, 16, 4, 300};
  std::uint32_t tokens = 280;
  std::vector<float> k, v, rows;

  explicit model(std::uint64_t seed)
      : k(s.slots() * s.key_dim), v(s.slots() * s.value_dim, 1.0f), rows(s.kv_heads * s.capacity) {
    dice d(seed);
    for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
      for (std::uint32_t head = 0; head < s.kv_heads; ++head) {
        float* const at =
            k.data() + std::size_t{kvmeld::make_track(s, layer, 0, head).index} * s.capacity * s.key_dim;
        double const keep = 0.7 + 0.1 * layer;  // neighbours resemble each other more in higher layers
        for (std::uint32_t i = 0; i < tokens * s.key_dim; ++i) {
          double const before = i < s.key_dim ? 0.0 : static_cast<double>(at[i - s.key_dim]);
          at[i] = static_cast<float>(keep * before + std::sqrt(1 - keep * keep) * d.normal());
        }
      }
    }
    for (float& x : rows) x = static_cast<float>(d.uniform());
  }
  kvmeld::strided<float> keys() { return {k.data(), "LSHTC", s, s.key_dim}; }
  kvmeld::strided<float> values() { return {v.data(), "LSHTC", s, s.value_dim}; }
  auto fill() {
    return [this](auto& cache) {
      cache.open(0, tokens);
      for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
        kvmeld::attention_params all;
        all.causal = false;
        cache.observe_rows({layer, 0, 1}, kvmeld::rows_by_head(rows.data(), 1, s.kv_heads, s.capacity), all);
      }
    };
  }
};

// Sets of KVMerger's scan from the newest entry to the oldest, protected entries set aside.
std::uint32_t kept(model& m, std::uint32_t layer, std::uint32_t head, double theta) {
  float const* const at =
      m.k.data() + std::size_t{kvmeld::make_track(m.s, layer, 0, head).index} * m.s.capacity * m.s.key_dim;
  std::uint32_t const recents = static_cast<std::uint32_t>(0.17 * m.tokens + 1e-9);
  std::uint32_t const heavy = static_cast<std::uint32_t>(0.12 * m.tokens + 1e-9);
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i + recents < m.tokens; ++i) order.push_back(i);
  float const* const score = m.rows.data() + std::size_t{head} * m.s.capacity;
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return score[a] > score[b]; });
  order.erase(order.begin(), order.begin() + heavy);
  std::sort(order.rbegin(), order.rend());
  std::uint32_t sets = 0, anchor = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    double ab = 0, aa = 0, bb = 0;
    for (std::uint32_t c = 0; c < m.s.key_dim && i > 0; ++c) {
      auto const x = static_cast<double>(at[order[i] * m.s.key_dim + c]);
      auto const y = static_cast<double>(at[anchor * m.s.key_dim + c]);
      ab += x * y, aa += x * x, bb += y * y;
    }
    if (i > 0 && ab > theta * std::sqrt(aa * bb)) continue;
    ++sets;
    anchor = order[i];
  }
  return sets + recents + heavy;
}

}  // namespace

TEST_CASE("a layer's threshold keeps the ratio that was asked for, and the sets are those of a plain scan") {
  for (std::uint64_t seed : {1u, 2u, 3u}) {
    model m(seed);
    auto const policy = kvmeld::preset::kvmerger::paper_50();
    for (double ratio : {0.45, 0.6, 0.8}) {
      auto const theta = kvmeld::calibrate::thresholds_for(
          kvmeld::host_executor(1), policy, kvmeld::kv{m.keys(), m.values()}, m.s, ratio, m.fill());
      REQUIRE(theta.size() == m.s.layers);
      for (std::uint32_t layer = 0; layer < m.s.layers; ++layer) {
        // At the threshold enough is kept, a little below it less; one entry at a time, but for coincidences.
        double const wanted = ratio * 2 * m.tokens;
        CHECK(kept(m, layer, 0, theta[layer]) + kept(m, layer, 1, theta[layer]) >= wanted);
        CHECK(kept(m, layer, 0, theta[layer]) + kept(m, layer, 1, theta[layer]) <= wanted + 4);
        if (layer > 0) CHECK(theta[layer] > theta[layer - 1]);
      }
      // A cache given these thresholds keeps what they were found for, layer by layer.
      std::vector<float> const table(theta.begin(), theta.end());
      auto calibrated = policy;
      calibrated.identify.admission.per_layer = table.data();
      kvmeld::cache_options options{m.s};
      kvmeld::merged_cache cache{kvmeld::host_executor(2), calibrated, kvmeld::kv{m.keys(), m.values()},
                                 options};
      m.fill()(cache);
      std::vector<float> const k = m.k, v = m.v;
      cache.compress({0}, kvmeld::budget::ratio(0.4), kvmeld::shortfall::keep);
      m.k = k, m.v = v;  // the loops below look at the keys before
      for (std::uint32_t layer = 0; layer < m.s.layers; ++layer) {
        for (std::uint32_t head = 0; head < 2; ++head) {
          CHECK(cache.length(layer, 0, head) == kept(m, layer, head, static_cast<double>(table[layer])));
        }
      }
    }
  }
}

TEST_CASE("thresholds for no ratio or no text are refused") {
  model m(4);
  auto const call = [&](double ratio, auto fill) -> std::string {
    try {
      kvmeld::calibrate::thresholds_for(kvmeld::host_executor(1), kvmeld::preset::kvmerger::paper_50(),
                                        kvmeld::kv{m.keys(), m.values()}, m.s, ratio, fill);
    } catch (kvmeld::invalid_argument const& problem) {
      return problem.what();
    }
    return "none";
  };
  CHECK(call(0.0, m.fill()) == "thresholds_for: ratio is 0; it must be above 0 and at most 1");
  CHECK(call(0.5, [](auto& cache) { cache.open(0, 1); }) ==
        "thresholds_for: number of tokens of the sample is 1; it must be at least 2");
}
