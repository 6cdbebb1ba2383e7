// What guarded merging promises, in naive double loops: the error of attention over merged entries, how a query makes it
// worse, and what a set's certificate and bound are by definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "track.hpp"

namespace reference {

struct token_set {
  matrix keys, values;
  row degree;
  [[nodiscard]] std::size_t size() const { return keys.size(); }
};

struct guarded_logits {
  double scale = 1;
  double softcap = 0;
  bool has_sink = false;
  double sink = 0;
};

struct guarded_output {
  row output;
  row probability;
  row slope;  // of the capped logit by the uncapped one
};

inline guarded_output guarded_attention(row const& q, token_set const& x, guarded_logits const& how) {
  guarded_output r;
  double most = how.has_sink ? how.sink : -1e300, total = 0;
  for (std::size_t j = 0; j < x.size(); ++j) {
    double l = how.scale * dot(q, x.keys[j]), slope = 1;
    if (how.softcap > 0) {
      double const t = std::tanh(l / how.softcap);
      l = how.softcap * t;
      slope = 1 - t * t;
    }
    r.slope.push_back(slope);
    r.probability.push_back(l + std::log(x.degree[j]));
    most = std::max(most, r.probability.back());
  }
  if (how.has_sink) total = std::exp(how.sink - most);
  for (double& p : r.probability) total += p = std::exp(p - most);
  r.output.assign(x.values.front().size(), 0.0);
  for (std::size_t j = 0; j < x.size(); ++j) {
    r.probability[j] /= total;
    for (std::size_t c = 0; c < r.output.size(); ++c) r.output[c] += r.probability[j] * x.values[j][c];
  }
  return r;
}

// ||O - O*|| for a query, and by what direction of the query it grows.
struct attack_point {
  double error;
  row gradient;  // of the squared error
};

inline attack_point attacked(row const& q, token_set const& tokens, token_set const& merged,
                             guarded_logits const& how, bool wants_gradient) {
  guarded_output const a = guarded_attention(q, tokens, how), b = guarded_attention(q, merged, how);
  row e = a.output;
  double square = 0;
  for (std::size_t c = 0; c < e.size(); ++c) {
    e[c] -= b.output[c];
    square += e[c] * e[c];
  }
  attack_point out{std::sqrt(square), row(q.size(), 0.0)};
  auto const add = [&](token_set const& x, guarded_output const& o, double sign) {
    for (std::size_t j = 0; j < x.size(); ++j) {
      double pull = 0;
      for (std::size_t c = 0; c < e.size(); ++c) pull += e[c] * (x.values[j][c] - o.output[c]);
      double const factor = sign * 2 * how.scale * o.slope[j] * o.probability[j] * pull;
      for (std::size_t c = 0; c < q.size(); ++c) out.gradient[c] += factor * x.keys[j][c];
    }
  };
  if (wants_gradient) {
    add(tokens, a, 1);
    add(merged, b, -1);
  }
  return out;
}

inline double length_of(row const& x) { return std::sqrt(dot(x, x)); }

// Tokens about a stored row, by definition.
struct true_certificate {
  double key_reach = 0, key_spread = 0, key_bias = 0, value_spread = 0, value_bias = 0;
};

inline true_certificate certificate_of(token_set const& tokens, indices const& members, row const& key,
                                       row const& value) {
  true_certificate t;
  double total = 0;
  row key_off(key.size(), 0.0), value_off(value.size(), 0.0);
  for (std::size_t i : members) total += tokens.degree[i];
  for (std::size_t i : members) {
    double const share = tokens.degree[i] / total;
    double k = 0, v = 0;
    for (std::size_t c = 0; c < key.size(); ++c) {
      double const x = tokens.keys[i][c] - key[c];
      k += x * x;
      key_off[c] += share * x;
    }
    for (std::size_t c = 0; c < value.size(); ++c) {
      double const x = tokens.values[i][c] - value[c];
      v += x * x;
      value_off[c] += share * x;
    }
    t.key_reach = std::max(t.key_reach, std::sqrt(k));
    t.key_spread += share * k;
    t.value_spread += share * v;
  }
  t.key_bias = length_of(key_off);
  t.value_bias = length_of(value_off);
  return t;
}

// The bound of docs/guarded.md for one entry, with an exponential where the library has a series.
inline double bound_of(true_certificate const& t, double steepness, double softcap, double radius) {
  double const widest = steepness * t.key_reach, square = steepness * steepness * t.key_spread;
  double const phi = widest > 1e-3 ? 2 * (std::expm1(widest) - widest) / (widest * widest) : 1 + widest / 3;
  double const curve = softcap > 0 ? 0.77 / softcap : 0;
  double const beta = steepness * t.key_bias + 0.5 * curve * square;
  double const alpha = beta + 0.5 * phi * square;
  double const growth = widest > 0 ? std::expm1(widest) / widest : 1;
  double const c = growth * std::sqrt(square * t.value_spread) + t.value_bias;
  double low = 0,
         high = 1e6;  // the least epsilon with alpha^2 radius^2 / epsilon + c + epsilon beta <= 3/4 epsilon
  for (int i = 0; i < 200; ++i) {
    double const e = 0.5 * (low + high);
    bool const holds = alpha * alpha * radius * radius / e + c + e * beta <= 0.75 * e;
    (holds ? high : low) = e;
  }
  return high;
}

}  // namespace reference
