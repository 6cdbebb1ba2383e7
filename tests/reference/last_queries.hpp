// Scores of the last queries as plain loops in double precision, from the papers: R-KV (Cai et al., 2025,
// section 3, and the authors' code) and DropKV (Zhang et al., 2026, as outputs that are computed once more
// without the entry).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "reference/track.hpp"

namespace reference {

// Queries of one head, times the scale of logits, and their positions.
struct shown_queries {
  matrix rows;
  std::vector<long> position;
};

// exp(logit) of every entry for a query, relative to the largest; 0 for what it does not see.
inline std::vector<double> weights_of(row const& query, long position, track_state const& t) {
  std::vector<double> logit(t.size(), 0.0), out(t.size(), 0.0);
  double top = -1e300;
  for (std::size_t i = 0; i < t.size(); ++i) {
    if (t.bad[i] || t.position[i] > position) continue;
    logit[i] = dot(query, t.keys[i]) + std::log(t.degree[i]);
    top = std::max(top, logit[i]);
  }
  for (std::size_t i = 0; i < t.size(); ++i) {
    if (!t.bad[i] && t.position[i] <= position) out[i] = std::exp(logit[i] - top);
  }
  return out;
}

// The output of attention with these weights, without entry `without`; 0 if nothing is left.
inline row output_of(std::vector<double> const& weight, track_state const& t, std::size_t without) {
  row out(t.values[0].size(), 0.0);
  double sum = 0;
  for (std::size_t i = 0; i < t.size(); ++i) sum += i == without ? 0 : weight[i];
  for (std::size_t i = 0; i < t.size(); ++i) {
    if (i == without || weight[i] == 0 || sum == 0) continue;
    for (std::size_t c = 0; c < out.size(); ++c) out[c] += weight[i] / sum * t.values[i][c];
  }
  return out;
}

// The squared change of the output, summed over queries and averaged over heads, if an entry is dropped.
inline std::vector<double> change_without(std::vector<shown_queries> const& heads, track_state const& t) {
  std::vector<double> out(t.size(), 0.0);
  for (shown_queries const& head : heads) {
    for (std::size_t q = 0; q < head.rows.size(); ++q) {
      auto const weight = weights_of(head.rows[q], head.position[q], t);
      row const all = output_of(weight, t, t.size());
      for (std::size_t i = 0; i < t.size(); ++i) {
        if (weight[i] > 0)
          out[i] += squared_distance(output_of(weight, t, i), all) / static_cast<double>(heads.size());
      }
    }
  }
  return out;
}

// A centred window of `kernel` numbers: their maximum, or their mean with zeros beyond the ends.
inline std::vector<double> pooled(std::vector<double> const& x, long kernel, bool largest) {
  std::vector<double> out;
  for (long i = 0; i < static_cast<long>(x.size()); ++i) {
    double sum = 0, most = -1e300;
    for (long j = i - kernel / 2; j <= i + kernel / 2; ++j) {
      if (j < 0 || j >= static_cast<long>(x.size())) continue;
      sum += x[static_cast<std::size_t>(j)];
      most = std::max(most, x[static_cast<std::size_t>(j)]);
    }
    out.push_back(largest ? most : sum / static_cast<double>(kernel));
  }
  return out;
}

// How much every key resembles the others: a whole matrix of cosines. `compared` are the keys as they lie.
// `margin`: how near a cosine came to `alike`.
inline std::vector<double> likeness(matrix const& compared, std::vector<char> const& bad, double alike,
                                    double& margin) {
  std::size_t const n = compared.size();
  matrix cos(n, row(n, 0.0));
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t last = n;
    for (std::size_t j = 0; j < n; ++j) {
      if (i == j || bad[i] || bad[j]) continue;
      cos[i][j] = cosine(compared[i], compared[j]);
      margin = std::min(margin, std::fabs(cos[i][j] - alike));
      if (cos[i][j] > alike) last = j;
    }
    if (last < n) cos[i][last] = 0;
  }
  std::vector<double> out(n, 0.0);
  double sum = 0;
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t i = 0; i < n; ++i) out[j] += cos[i][j] / static_cast<double>(n);
    sum += bad[j] ? 0 : std::exp(out[j]);
  }
  for (std::size_t j = 0; j < n; ++j) out[j] = bad[j] ? 0 : std::exp(out[j]) / sum;
  return out;
}

// lambda z - (1 - lambda) r. `t` has the keys as queries meet them.
inline std::vector<double> redundancy(std::vector<shown_queries> const& heads, track_state const& t,
                                      matrix const& compared, double lambda, double alike, long kernel,
                                      double& margin) {
  std::size_t const n = t.size(), count = heads[0].rows.size();
  std::vector<double> out = likeness(compared, t.bad, alike, margin), z(n, 0.0);
  for (double& x : out) x *= lambda - 1;
  if (count == 0) return out;
  long const first = heads[0].position[0];
  auto const before = [&](std::size_t i) { return !t.bad[i] && t.position[i] < first; };
  for (std::size_t q = 0; q < count; ++q) {
    std::vector<double> logit(n, -1e300);
    double top = -1e300, sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (!before(i)) continue;
      for (shown_queries const& head : heads)
        logit[i] = std::max(logit[i], dot(head.rows[q], t.keys[i]) + std::log(t.degree[i]));
      top = std::max(top, logit[i]);
    }
    for (std::size_t i = 0; i < n; ++i) sum += before(i) ? std::exp(logit[i] - top) : 0;
    for (std::size_t i = 0; i < n; ++i)
      z[i] += before(i) ? std::exp(logit[i] - top) / sum / static_cast<double>(count) : 0;
  }
  z = pooled(z, kernel, true);
  double best = -1e300;
  for (std::size_t i = 0; i < n; ++i) {
    out[i] += lambda * z[i];
    if (before(i)) best = std::max(best, out[i]);
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (t.position[i] >= first) out[i] = best == -1e300 ? 0 : best;
  }
  return out;
}

}  // namespace reference
