// Softcap, windows and sink logits through C: attention and what is observed against naive loops in double.
#include "engine.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace {

using c_test::engine;
using c_test::entries;
using c_test::invalid;
using c_test::options;

constexpr std::uint32_t layers = 2, heads = 4, kv_heads = 2, dim = 8, tokens = 40;

std::vector<float> queries_of(std::uint32_t n, float size) {
  std::vector<float> out(std::size_t{heads} * n * dim);
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = size * (static_cast<float>(i * 48271 % 1013) / 500.0f - 1.0f);
  return out;
}

/// What the last n queries of 40 tokens see: probabilities [head][query][entry], and log-sum-exps.
struct naive {
  std::vector<double> p, lse;

  naive(engine const& e, kvmeld_attention const& a, std::uint32_t layer, std::vector<float> const& queries,
        std::uint32_t n) {
    for (std::uint32_t h = 0; h < heads; ++h) {
      for (std::uint32_t i = 0; i < n; ++i) {
        std::int64_t const at = std::int64_t{tokens} - n + i;
        double const sink = a.sinks == nullptr ? 0.0 : std::exp(double{a.sinks[layer * heads + h]});
        std::vector<double> w(tokens, 0.0);
        double sum = a.sinks == nullptr ? 0.0 : sink;
        for (std::int64_t s = 0; s <= at; ++s) {
          if (a.window != 0 && s >= a.window_sinks && s + a.window <= at) continue;
          double x = 0.0;
          for (std::uint32_t c = 0; c < dim; ++c)
            x += double{queries[(std::size_t{h} * n + i) * dim + c]} *
                 e.k[static_cast<std::size_t>(layer * engine::layer + h / 2 * engine::head + s * dim + c)];
          x /= std::sqrt(double{dim});
          if (a.softcap != 0.0f) x = a.softcap * std::tanh(x / a.softcap);
          w[static_cast<std::size_t>(s)] = std::exp(x);
          sum += w[static_cast<std::size_t>(s)];
        }
        for (double x : w) p.push_back(x / sum);
        lse.push_back(std::log(sum));
      }
    }
  }
  double operator()(std::uint32_t h, std::uint32_t i, std::uint32_t s) const {
    return p[(h * lse.size() / heads + i) * tokens + s];
  }
};

std::vector<kvmeld_attention> forms(float const* sinks) {
  return {{0.0f, 0, 0, nullptr}, {2.0f, 0, 0, nullptr}, {0.0f, 9, 0, nullptr},
          {0.0f, 9, 3, nullptr}, {0.0f, 0, 0, sinks},   {1.5f, 12, 2, sinks}};
}

std::vector<float> const some_sinks = {1.0f, -2.0f, 3.0f, 0.0f, 4.0f, 0.5f, -1.0f, 2.0f};

}  // namespace

TEST_CASE("kvmeld_attend caps, hides and sinks as the options say") {
  std::uint32_t const n = 5;
  std::vector<float> const queries = queries_of(n, 8.0f);
  for (kvmeld_attention const& a : forms(some_sinks.data())) {
    CAPTURE(a.softcap);
    CAPTURE(a.window);
    CAPTURE(a.sinks != nullptr);
    kvmeld_options o = options("streaming_llm");
    o.attention = &a;
    engine e(o);
    REQUIRE(kvmeld_open(e.cache, 0, tokens, 0) == KVMELD_OK);
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      naive const wanted(e, a, layer, queries, n);
      std::vector<float> out(queries.size()), lse(std::size_t{heads} * n);
      REQUIRE(kvmeld_attend(e.cache, layer, 0, n, KVMELD_FLOAT32, queries.data(), n * dim, dim,
                            KVMELD_FLOAT32, out.data(), n * dim, dim, lse.data(), n, 0.0f) == KVMELD_OK);
      for (std::uint32_t h = 0; h < heads; ++h) {
        for (std::uint32_t i = 0; i < n; ++i) {
          CHECK(lse[h * n + i] == doctest::Approx(wanted.lse[h * n + i]).epsilon(1e-5));
          for (std::uint32_t c = 0; c < dim; ++c) {
            double x = 0.0;
            for (std::uint32_t s = 0; s < tokens; ++s)
              x += wanted(h, i, s) *
                   e.v[static_cast<std::size_t>(layer * engine::layer + h / 2 * engine::head + s * dim + c)];
            CHECK(out[(h * n + i) * dim + c] == doctest::Approx(x).epsilon(1e-4));
          }
        }
      }
    }
  }
}

TEST_CASE(
    "kvmeld_observe counts by the attention of the options, with log-sum-exps of the engine or its own") {
  std::vector<float> const queries = queries_of(tokens, 16.0f);
  std::vector<std::vector<std::int32_t>> all;
  for (kvmeld_attention const& a : forms(some_sinks.data())) {
    for (bool const gives_sums : {false, true}) {
      CAPTURE(a.softcap);
      CAPTURE(a.window);
      CAPTURE(gives_sums);
      kvmeld_options o = options("h2o sinks=0 recents=0");
      o.attention = &a;
      engine e(o);
      REQUIRE(kvmeld_open(e.cache, 0, tokens, 0) == KVMELD_OK);
      std::vector<std::vector<double>> mass(layers * kv_heads, std::vector<double>(tokens, 0.0));
      for (std::uint32_t layer = 0; layer < layers; ++layer) {
        naive const wanted(e, a, layer, queries, tokens);
        for (std::uint32_t h = 0; h < heads; ++h) {
          for (std::uint32_t i = 0; i < tokens; ++i) {
            for (std::uint32_t s = 0; s < tokens; ++s) mass[layer * kv_heads + h / 2][s] += wanted(h, i, s);
          }
        }
        std::vector<float> const sums(wanted.lse.begin(), wanted.lse.end());
        REQUIRE(kvmeld_observe(e.cache, layer, 0, tokens, KVMELD_FLOAT32, queries.data(), tokens * dim, dim,
                               gives_sums ? sums.data() : nullptr, tokens, 0.0f) == KVMELD_OK);
      }
      std::uint32_t const sequence = 0;
      REQUIRE(kvmeld_compress(e.cache, &sequence, 1, entries(12)) == KVMELD_OK);
      std::vector<std::int32_t> kept;
      for (std::uint32_t t = 0; t < layers * kv_heads; ++t) {
        std::vector<std::int32_t> positions(12), best(tokens);
        REQUIRE(kvmeld_positions(e.cache, t / kv_heads, 0, t % kv_heads, positions.data(), 12) == KVMELD_OK);
        for (std::uint32_t s = 0; s < tokens; ++s) best[s] = static_cast<std::int32_t>(s);
        std::sort(best.begin(), best.end(), [&](std::int32_t x, std::int32_t y) {
          return mass[t][static_cast<std::size_t>(x)] > mass[t][static_cast<std::size_t>(y)];
        });
        best.resize(12);
        std::sort(best.begin(), best.end());
        CHECK(positions == best);
        kept.insert(kept.end(), positions.begin(), positions.end());
      }
      if (!gives_sums) all.push_back(kept);
    }
  }
  for (std::size_t i = 1; i < all.size(); ++i) CHECK(all[i] != all[0]);  // each option matters here
}

TEST_CASE("the options' attention is copied, and checked before there is a cache") {
  std::vector<float> sinks = some_sinks;
  kvmeld_attention a{0.0f, 0, 0, sinks.data()};
  kvmeld_options o = options("streaming_llm");
  o.attention = &a;
  engine e(o);
  std::vector<float> const queries = queries_of(1, 4.0f);
  naive const wanted(e, a, 0, queries, 1);
  sinks.assign(sinks.size(), 100.0f);
  a = {1.0f, 1, 0, nullptr};
  REQUIRE(kvmeld_open(e.cache, 0, tokens, 0) == KVMELD_OK);
  float out[heads * dim], lse[heads];
  REQUIRE(kvmeld_attend(e.cache, 0, 0, 1, KVMELD_FLOAT32, queries.data(), dim, dim, KVMELD_FLOAT32, out, dim,
                        dim, lse, 1, 0.0f) == KVMELD_OK);
  for (std::uint32_t h = 0; h < heads; ++h) CHECK(lse[h] == doctest::Approx(wanted.lse[h]).epsilon(1e-5));

  float const nan = std::numeric_limits<float>::quiet_NaN();
  auto const refuses = [&](kvmeld_attention wrong, std::string const& text) {
    o.attention = &wrong;
    kvmeld_cache made{0};
    invalid(kvmeld_create(&o, &e.keys, &e.values, 1, &made), "kvmeld_create: " + text);
    invalid(kvmeld_check(&o, nullptr, 0, nullptr), "kvmeld_check: " + text);
    std::size_t bytes = 0;
    invalid(kvmeld_bytes(&o, &bytes), "kvmeld_bytes: " + text);
    CHECK(made.id == 0);
  };
  refuses({-1.0f, 0, 0, nullptr},
          "softcap is -1; it must be 0, which means none, or a finite number above 0");
  refuses({nan, 0, 0, nullptr}, "softcap is nan; it must be 0, which means none, or a finite number above 0");
  refuses({0.0f, 0, 4, nullptr}, "window_sinks is 4; it must be 0, because there is no window");
  refuses({0.0f, 8, -1, nullptr}, "window_sinks is -1; it must be at least 0");
  sinks = some_sinks;
  sinks[5] = nan;
  refuses({0.0f, 0, 0, sinks.data()}, "options.attention.sinks[5] is nan; it must be a finite number");
}
