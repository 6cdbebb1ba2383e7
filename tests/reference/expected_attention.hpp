// Expected Attention as plain loops in double precision, from the paper (Devoto et al., 2025, section 3) and
// kvpress 0.5: whole matrices, and a mean over every future position.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "reference/row_scores.hpp"
#include "reference/track.hpp"

namespace reference {

// Rotation of the first `dim` channels.
struct pair_rotation {
  std::size_t dim = 0;  // 0: none
  bool interleaved = false;
  double base = 10000, factor = 1;

  std::size_t first(std::size_t pair) const { return interleaved ? 2 * pair : pair; }
  std::size_t second(std::size_t pair) const { return interleaved ? 2 * pair + 1 : pair + dim / 2; }
  double angle(std::size_t pair, double position) const {
    return position / factor * std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(dim));
  }
  // The matrix that turns a row of d channels.
  matrix at(double position, std::size_t d) const {
    matrix r(d, row(d, 0.0));
    for (std::size_t c = 0; c < d; ++c) r[c][c] = 1;
    for (std::size_t p = 0; p < dim / 2; ++p) {
      double const a = angle(p, position);
      r[first(p)][first(p)] = r[second(p)][second(p)] = std::cos(a);
      r[second(p)][first(p)] = std::sin(a);
      r[first(p)][second(p)] = -std::sin(a);
    }
    return r;
  }
  // A row at a position.
  row turned(row const& x, double position) const {
    row out(x);
    for (std::size_t p = 0; p < dim / 2; ++p) {
      double const a = angle(p, position), u = x[first(p)], v = x[second(p)];
      out[first(p)] = u * std::cos(a) - v * std::sin(a);
      out[second(p)] = u * std::sin(a) + v * std::cos(a);
    }
    return out;
  }
};

inline matrix product(matrix const& a, matrix const& b) {
  matrix out(a.size(), row(b[0].size(), 0.0));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < b.size(); ++k) {
      for (std::size_t j = 0; j < b[0].size(); ++j) out[i][j] += a[i][k] * b[k][j];
    }
  }
  return out;
}
inline row product(matrix const& a, row const& x) {
  row out(a.size(), 0.0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < x.size(); ++j) out[i] += a[i][j] * x[j];
  }
  return out;
}

struct future_options {
  pair_rotation turn;
  double scale = 1;          // of logits
  double next = 0;           // position of the next query
  std::size_t future = 512;  // positions from there on
  long sinks = 4;            // tokens that stay apart
  double epsilon = 0;
  std::vector<double> turned_for;  // of keys that lie unrotated; empty: keys lie rotated
};

// queries[head][query]: as they are before their rotation, without those of sinks.
inline std::vector<double> expected_attention(std::vector<matrix> const& queries, track_state const& t,
                                              future_options const& o) {
  std::size_t const n = t.size(), d = t.keys[0].size();
  matrix mean_turn(d, row(d, 0.0));
  for (std::size_t j = 0; j < o.future; ++j) {
    matrix const r = o.turn.at(o.next + static_cast<double>(j), d);
    for (std::size_t a = 0; a < d; ++a) {
      for (std::size_t b = 0; b < d; ++b) mean_turn[a][b] += r[a][b] / static_cast<double>(o.future);
    }
  }
  matrix transposed = mean_turn;
  for (std::size_t a = 0; a < d; ++a) {
    for (std::size_t b = 0; b < d; ++b) transposed[a][b] = mean_turn[b][a];
  }
  std::vector<double> out(n, 0.0);
  for (matrix const& of_head : queries) {
    row mean(d, 0.0);
    matrix covariance(d, row(d, 0.0));
    double const count = static_cast<double>(of_head.size());
    for (row const& q : of_head) {
      for (std::size_t c = 0; c < d; ++c) mean[c] += q[c] / count;
    }
    for (row const& q : of_head) {
      for (std::size_t a = 0; a < d; ++a) {
        for (std::size_t b = 0; b < d; ++b) covariance[a][b] += (q[a] - mean[a]) * (q[b] - mean[b]) / count;
      }
    }
    mean = product(mean_turn, mean);
    covariance = product(product(mean_turn, covariance), transposed);
    std::vector<double> logit(n, 0.0);
    double top = -1e300, sum = 0;
    auto const counts = [&](std::size_t i) { return !t.bad[i] && t.position[i] >= o.sinks; };
    for (std::size_t i = 0; i < n; ++i) {
      if (!counts(i)) continue;
      row const k = o.turned_for.empty() ? t.keys[i] : o.turn.turned(t.keys[i], o.turned_for[i]);
      row const spread = product(covariance, k);
      for (std::size_t c = 0; c < d; ++c)
        logit[i] += o.scale * mean[c] * k[c] + o.scale * o.scale * k[c] * spread[c] / 2;
      logit[i] += std::log(t.degree[i]);
      top = std::max(top, logit[i]);
    }
    for (std::size_t i = 0; i < n; ++i) sum += counts(i) ? std::exp(logit[i] - top) : 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (counts(i)) out[i] += std::exp(logit[i] - top) / sum / static_cast<double>(queries.size());
    }
  }
  double best = 0;
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = (out[i] + o.epsilon) * norm_of(t.values[i]);
    if (!t.bad[i] && t.position[i] >= o.sinks) best = std::max(best, out[i]);
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (t.position[i] < o.sinks) out[i] = best;
  }
  return out;
}

}  // namespace reference
