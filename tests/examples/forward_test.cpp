// The example engine against a reference in double that shares nothing with it but the weights.
#include "model_files.hpp"

#include "layers.hpp"
#include "threads.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <stdexcept>

namespace {

using row = std::vector<double>;
using matrix = std::vector<row>;  // one row per token

row times(std::vector<float> const& w, row const& x) {
  row y(w.size() / x.size(), 0.0);
  for (std::size_t i = 0; i < w.size(); ++i) {
    y[i / x.size()] += static_cast<double>(w[i]) * x[i % x.size()];
  }
  return y;
}

row normed(row const& x, std::vector<float> const& weight, double epsilon) {
  double mean = 0;
  for (double const v : x) {
    mean += v * v / static_cast<double>(x.size());
  }
  row y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = x[i] / std::sqrt(mean + epsilon) * static_cast<double>(weight[i]);
  }
  return y;
}

// Pairs (i, i + half) as complex numbers turned by position * base^(-i / half).
row turned(row const& x, std::size_t dim, double position, double base) {
  row y(x.size());
  auto const half = dim / 2;
  for (std::size_t head = 0; head < x.size(); head += dim) {
    for (std::size_t i = 0; i < half; ++i) {
      double const angle = position / std::pow(base, static_cast<double>(i) / static_cast<double>(half));
      auto const z = std::complex<double>(x[head + i], x[head + half + i]) * std::polar(1.0, angle);
      y[head + i] = z.real();
      y[head + half + i] = z.imag();
    }
  }
  return y;
}

// Causal attention of token t over all before it.
row attended(matrix const& q, matrix const& k, matrix const& v, std::size_t t, tiny_llama::config const& c) {
  auto const dim = static_cast<std::size_t>(c.head_dim);
  auto const group = static_cast<std::size_t>(c.heads / c.kv_heads);
  row out(q[t].size(), 0.0);
  for (std::size_t h = 0; h < static_cast<std::size_t>(c.heads); ++h) {
    row weight(t + 1);
    double total = 0;
    for (std::size_t s = 0; s <= t; ++s) {
      double dot = 0;
      for (std::size_t d = 0; d < dim; ++d) {
        dot += q[t][h * dim + d] * k[s][h / group * dim + d];
      }
      total += weight[s] = std::exp(dot / std::sqrt(static_cast<double>(dim)));
    }
    for (std::size_t s = 0; s <= t; ++s) {
      for (std::size_t d = 0; d < dim; ++d) {
        out[h * dim + d] += weight[s] / total * v[s][h / group * dim + d];
      }
    }
  }
  return out;
}

matrix reference(tiny_llama::config const& c, tiny_llama::model_weights const& w,
                 std::vector<int> const& tokens, int first_position) {
  auto const hidden = static_cast<std::size_t>(c.hidden), dim = static_cast<std::size_t>(c.head_dim);
  matrix x;
  for (int const token : tokens) {
    auto const at =
        w.embedding.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(token) * hidden);
    x.emplace_back(at, at + static_cast<std::ptrdiff_t>(hidden));
  }
  for (auto const& layer : w.layers) {
    matrix q, k, v;
    for (std::size_t t = 0; t < x.size(); ++t) {
      auto const h = normed(x[t], layer.attention_norm, c.norm_epsilon);
      auto const position = static_cast<double>(first_position) + static_cast<double>(t);
      q.push_back(turned(times(layer.query, h), dim, position, c.rope_base));
      k.push_back(turned(times(layer.key, h), dim, position, c.rope_base));
      v.push_back(times(layer.value, h));
    }
    for (std::size_t t = 0; t < x.size(); ++t) {
      auto const a = times(layer.output, attended(q, k, v, t, c));
      for (std::size_t i = 0; i < hidden; ++i) {
        x[t][i] += a[i];
      }
      auto const h = normed(x[t], layer.mlp_norm, c.norm_epsilon);
      auto gate = times(layer.gate, h);
      auto const up = times(layer.up, h);
      for (std::size_t i = 0; i < gate.size(); ++i) {
        gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
      }
      auto const m = times(layer.down, gate);
      for (std::size_t i = 0; i < hidden; ++i) {
        x[t][i] += m[i];
      }
    }
  }
  for (auto& state : x) {
    state = times(c.tied_embeddings ? w.embedding : w.head, normed(state, w.norm, c.norm_epsilon));
  }
  return x;
}

/// The simplest owner of a cache: everything is kept, in float.
struct full_cache {
  explicit full_cache(tiny_llama::config const& c)
      : shape(c), keys(static_cast<std::size_t>(c.layers)), values(keys.size()) {}

  void operator()(int layer, int n, float const* q, float const* k, float const* v, float* out) {
    auto const at = static_cast<std::size_t>(layer), count = static_cast<std::size_t>(n);
    auto const kv = static_cast<std::size_t>(shape.kv_heads * shape.head_dim),
               width = static_cast<std::size_t>(shape.heads * shape.head_dim);
    matrix queries;
    for (std::size_t t = 0; t < count; ++t) {
      keys[at].emplace_back(k + t * kv, k + (t + 1) * kv);
      values[at].emplace_back(v + t * kv, v + (t + 1) * kv);
    }
    queries.resize(keys[at].size() - count);
    for (std::size_t t = 0; t < count; ++t) {
      queries.emplace_back(q + t * width, q + (t + 1) * width);
      auto const y = attended(queries, keys[at], values[at], queries.size() - 1, shape);
      std::transform(y.begin(), y.end(), out + t * width,
                     [](double value) { return static_cast<float>(value); });
    }
  }

  tiny_llama::config shape;
  std::vector<matrix> keys, values;
};

double distance(matrix const& wanted, std::vector<float> const& got) {
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    most = std::max(
        most, std::abs(wanted[i / wanted[0].size()][i % wanted[0].size()] - static_cast<double>(got[i])));
  }
  return most;
}

}  // namespace

TEST_CASE("forward agrees with a reference in double") {
  for (bool const tied : {true, false}) {
    auto const shape = tiny_llama::parse_config("c", test::config_json(tied).dump());
    auto const weights = test::random_weights(tied, tied ? 11 : 12);
    tiny_llama::model model(shape, weights);
    for (int const n : {1, 2, 3, 4, 5, 8, 33, 70}) {
      for (int const first : {0, 58}) {
        CAPTURE(n);
        tiny_llama::splitmix64 random(static_cast<std::uint64_t>(n));
        std::vector<int> tokens(static_cast<std::size_t>(n));
        for (auto& token : tokens) {
          token = static_cast<int>(random.below(16));
        }
        auto const wanted = reference(shape, weights, tokens, first);
        std::vector<float> logits, last;
        model.forward(tokens.data(), n, first, full_cache(shape), logits);
        REQUIRE(logits.size() == tokens.size() * 16);
        CHECK(distance(wanted, logits) < 2e-5);
        model.forward(tokens.data(), n, first, full_cache(shape), last, true);
        REQUIRE(last.size() == 16);
        CHECK(distance({wanted.back()}, last) < 2e-5);

        full_cache cache(shape);  // token by token
        for (int t = 0; t < n; ++t) {
          model.forward(tokens.data() + t, 1, first + t, cache, last);
          CHECK(distance({wanted[static_cast<std::size_t>(t)]}, last) < 2e-5);
        }
      }
    }
  }
}

TEST_CASE("forward refuses tokens and positions outside the configuration") {
  tiny_llama::model model(tiny_llama::parse_config("c", test::config_json(true).dump()),
                          test::random_weights(true, 1));
  std::vector<float> logits;
  auto const forward = [&](int token, int n, int first) {
    std::vector<int> const tokens(4, token);
    return test::refusal<std::invalid_argument>(
        [&] { model.forward(tokens.data(), n, first, full_cache(model.shape()), logits); });
  };
  CHECK(forward(15, 4, 124).empty());
  CHECK(test::has(forward(16, 4, 0), "token 0 is 16; 0 to 15 are allowed"));
  CHECK(test::has(forward(-1, 4, 0), "token 0 is -1"));
  CHECK(test::has(forward(1, 0, 0), "n is 0; at least one token"));
  CHECK(test::has(forward(1, 4, -1), "positions -1 to 2 are asked for; 0 to 127 are allowed"));
  CHECK(test::has(forward(1, 4, 125), "positions 125 to 128"));
  CHECK(test::has(forward(1, 4, 2147483647), "positions 2147483647 to 2147483650"));
}

TEST_CASE("a row of a batch does not depend on the others, to the bit") {
  tiny_llama::model model(tiny_llama::parse_config("config.json", test::config_json(true).dump()),
                          test::random_weights(true, 11));
  tiny_llama::splitmix64 random(12);
  // "Attention" that mixes nothing: rows go through on their own, so whatever differs is the batch's doing.
  auto const pass = [&](int n) {
    return [n](int, float const* q, float const* k, float const* v, float* out) {
      for (int i = 0; i < n * 16; ++i) out[i] = q[i] + k[i / 16 * 8 + i % 8] * v[i / 16 * 8 + i % 8];
    };
  };
  auto const run = [&](std::vector<int> const& tokens, std::vector<int> const& positions) {
    std::vector<float> logits;
    auto const n = static_cast<int>(tokens.size());
    model.forward_batch(tokens.data(), positions.data(), n, pass(n), logits);
    REQUIRE(logits.size() == tokens.size() * 16);
    return logits;
  };
  for (std::size_t n = 1; n <= 70; n += n < 8 ? 1 : 31) {
    std::vector<int> tokens, positions;
    for (std::size_t i = 0; i < n; ++i) {
      tokens.push_back(static_cast<int>(random.below(16)));
      positions.push_back(static_cast<int>(random.below(128)));
    }
    std::vector<float> const together = run(tokens, positions);
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<float> const alone = run({tokens[i]}, {positions[i]});
      CHECK(std::equal(alone.begin(), alone.end(), together.begin() + static_cast<std::ptrdiff_t>(i * 16)));
    }
  }
  // The same numbers as of the call for one sequence.
  std::vector<int> const tokens{1, 2, 3, 4, 5}, positions{7, 8, 9, 10, 11};
  std::vector<float> one, batch = run(tokens, positions);
  model.forward(
      tokens.data(), 5, 7,
      [&](int layer, int n, float const* q, float const* k, float const* v, float* out) {
        pass(n)(layer, q, k, v, out);
      },
      one);
  CHECK(one == batch);
  CHECK(test::has(test::refusal<std::invalid_argument>([&] { run({1}, {128}); }),
                  "forward_batch: position 128 is asked for; 0 to 127 are allowed"));
  CHECK(test::has(test::refusal<std::invalid_argument>([&] { run({1, 16}, {1, 2}); }), "token 1 is 16"));
  CHECK(test::has(test::refusal<std::invalid_argument>([&] { run({}, {}); }),
                  "forward_batch: n is 0; at least one row is needed"));
}

TEST_CASE("matmul agrees with a reference at awkward sizes") {
  tiny_llama::splitmix64 random(5);
  for (std::size_t const n : {1u, 3u, 4u, 9u, 31u, 33u, 67u}) {
    for (std::size_t const in : {1u, 7u, 16u, 37u, 130u}) {
      for (std::size_t const out : {1u, 5u, 8u, 19u, 70u, 600u}) {
        std::vector<float> x(n * in), w(out * in), y(n * out + 1, 7.0f);
        for (auto* list : {&x, &w}) {
          for (auto& value : *list) {
            value = static_cast<float>(random.unit() - 0.5);
          }
        }
        tiny_llama::matmul(x.data(), w.data(), y.data(), n, in, out);
        double worst = 0;
        for (std::size_t t = 0; t < n; ++t) {
          auto const wanted = times(w, row(x.begin() + static_cast<std::ptrdiff_t>(t * in),
                                           x.begin() + static_cast<std::ptrdiff_t>((t + 1) * in)));
          for (std::size_t o = 0; o < out; ++o) {
            worst = std::max(worst, std::abs(wanted[o] - static_cast<double>(y[t * out + o])));
          }
        }
        CHECK(worst < 1e-5);
        CHECK(y.back() == 7.0f);  // nothing beyond the result is written
      }
    }
  }
}

TEST_CASE("matmul gives the same bits on any number of threads") {
  tiny_llama::splitmix64 random(6);
  std::size_t const in = 150, most = 70, out = 1000;
  std::vector<float> x(most * in), w(out * in);
  for (auto* list : {&x, &w})
    for (auto& value : *list) value = static_cast<float>(random.unit() - 0.5);
  for (std::size_t const n : {1u, 9u, 20u, 70u}) {
    std::vector<float> alone(n * out);
    for (int const threads :
         {1, 2, 3, 40}) {  // 40 shares of rows, which are rounded up, leave some of them empty
      tiny_llama::use_threads(threads);
      std::vector<float> y(n * out, 7.0f);
      tiny_llama::matmul(x.data(), w.data(), threads == 1 ? alone.data() : y.data(), n, in, out);
      if (threads != 1) CHECK(y == alone);
    }
  }
  tiny_llama::use_threads(0);
}

TEST_CASE("rms_norm and rotation by hand") {
  float const x[] = {3, 4, 0, 0}, weight[] = {1, 2, 1, 1};
  float y[4];
  tiny_llama::rms_norm(x, weight, y, 1, 4, 1e-9);
  CHECK(static_cast<double>(y[0]) == doctest::Approx(1.2));
  CHECK(static_cast<double>(y[1]) == doctest::Approx(3.2));
  tiny_llama::rotation turn;
  turn.prepare(
      1, [](std::size_t) { return 3; }, 4, 100.0);
  float z[] = {1, 0, 0, 1};  // pairs (1, 0) and (0, 1), turned by 3 and by 3 / 10
  turn.apply(z, 1, 1);
  CHECK(static_cast<double>(z[0]) == doctest::Approx(std::cos(3.0)));
  CHECK(static_cast<double>(z[2]) == doctest::Approx(std::sin(3.0)));
  CHECK(static_cast<double>(z[1]) == doctest::Approx(-std::sin(0.3)));
  CHECK(static_cast<double>(z[3]) == doctest::Approx(std::cos(0.3)));
}
