// Attention Matching as plain loops in double precision: which queries are kept, what attention gave them,
// and values and degrees fitted to that by normal equations over the entries (the paper's form, with a
// ridge).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "track.hpp"

namespace reference {

// Of queries at the given positions, ascending, those that a table of `count` rows keeps: every stride-th
// position, where the stride is the least power of two for which they fit.
inline indices spread_sample(std::vector<long> const& position, std::size_t count) {
  long stride = 1;
  while (!position.empty() && position.back() / stride >= static_cast<long>(count)) stride *= 2;
  indices out;
  for (std::size_t i = 0; i < position.size(); ++i) {
    if (position[i] % stride == 0) out.push_back(i);
  }
  return out;
}

struct attended {
  double log_sum;
  row output;
};

// Softmax attention of a query, which is scaled already, over the entries that are not bad.
inline attended attend_all(row const& query, track_state const& t) {
  double most = -1e300, sum = 0;
  row logit(t.size()), out(t.values[0].size(), 0.0);
  for (std::size_t i = 0; i < t.size(); ++i) {
    logit[i] = t.bad[i] ? -1e300 : dot(query, t.keys[i]) + std::log(t.degree[i]);
    most = std::max(most, logit[i]);
  }
  for (std::size_t i = 0; i < t.size(); ++i) {
    if (t.bad[i]) continue;
    double const p = std::exp(logit[i] - most);
    sum += p;
    for (std::size_t c = 0; c < out.size(); ++c) out[c] += p * t.values[i][c];
  }
  for (double& x : out) x /= sum;
  return {most + std::log(sum), out};
}

// The entries of a track that stay.
inline track_state kept_of(track_state const& t, indices const& kept) {
  track_state out;
  for (std::size_t s : kept) {
    out.keys.push_back(t.keys[s]);
    out.values.push_back(t.values[s]);
    out.degree.push_back(t.degree[s]);
    out.position.push_back(t.position[s]);
    out.score.push_back(t.score[s]);
    out.bad.push_back(t.bad[s]);
  }
  return out;
}

// a x = b, by elimination with pivots; b has several columns.
inline matrix solved(matrix a, matrix b) {
  std::size_t const n = a.size();
  for (std::size_t k = 0; k < n; ++k) {
    std::size_t best = k;
    for (std::size_t i = k; i < n; ++i) {
      if (std::fabs(a[i][k]) > std::fabs(a[best][k])) best = i;
    }
    std::swap(a[k], a[best]);
    std::swap(b[k], b[best]);
    for (std::size_t i = 0; i < n; ++i) {
      if (i == k) continue;
      double const f = a[i][k] / a[k][k];
      for (std::size_t j = k; j < n; ++j) a[i][j] -= f * a[k][j];
      for (std::size_t c = 0; c < b[i].size(); ++c) b[i][c] -= f * b[k][c];
    }
  }
  for (std::size_t k = 0; k < n; ++k) {
    for (double& x : b[k]) x /= a[k][k];
  }
  return b;
}

struct fit_settings {
  bool values = true, degrees = false;
  double ridge = 0.1;
  std::size_t iterations = 16;
  double least_factor = std::pow(2.0, -10);
};

// sum over q of (1 - sum_j a_qj u_j)^2 + r sum_j (u_j - 1)^2.
inline double mass_error(matrix const& a, row const& u, double r) {
  double sum = 0;
  for (row const& of_query : a) sum += std::pow(1 - dot(of_query, u), 2);
  for (double x : u) sum += r * (x - 1) * (x - 1);
  return sum;
}

// What fitting makes of the entries that stay. `writable`: which entries of `all` may change.
inline track_state fitted(matrix const& queries, track_state const& all, indices const& kept,
                          std::vector<char> const& writable, fit_settings const& o) {
  track_state t = kept_of(all, kept);
  std::size_t const n = t.size(), m = queries.size(), d = t.values[0].size();
  if (m == 0) return t;
  matrix a(m, row(n, 0.0)), output;
  double squares = 0;
  for (std::size_t q = 0; q < m; ++q) {
    attended const before = attend_all(queries[q], all);
    output.push_back(before.output);
    for (std::size_t j = 0; j < n; ++j) {
      if (!t.bad[j]) a[q][j] = t.degree[j] * std::exp(dot(queries[q], t.keys[j]) - before.log_sum);
      squares += a[q][j] * a[q][j];
    }
  }
  auto const free = [&](std::size_t j) { return writable[kept[j]] != 0 && t.bad[j] == 0; };
  row u(n, 1.0);
  double const r = o.ridge * squares;
  for (std::size_t step = 0; o.degrees && step < o.iterations; ++step) {
    row mass(m, 0.0), next = u;
    for (std::size_t q = 0; q < m; ++q) mass[q] = dot(a[q], u);
    for (std::size_t j = 0; j < n; ++j) {
      if (!free(j)) continue;
      double up = r, down = r * u[j];
      for (std::size_t q = 0; q < m; ++q) {
        up += a[q][j];
        down += a[q][j] * mass[q];
      }
      next[j] = std::min(std::max(u[j] * up / down, o.least_factor), 1 / o.least_factor);
    }
    u = next;
  }
  for (std::size_t j = 0; j < n; ++j) t.degree[j] *= u[j];
  if (!o.values) return t;
  double normal_squares = 0;
  for (row& of_query : a) {
    double const mass = dot(of_query, u);
    for (std::size_t j = 0; j < n; ++j) {
      of_query[j] *= u[j] / mass;
      normal_squares += of_query[j] * of_query[j];
    }
  }
  double const s = o.ridge * normal_squares;
  matrix gram(n, row(n, 0.0)), right(n, row(d, 0.0));
  for (std::size_t i = 0; i < n; ++i) gram[i][i] = s;
  for (std::size_t q = 0; q < m; ++q) {
    row missing = output[q];
    for (std::size_t j = 0; j < n; ++j) {
      for (std::size_t c = 0; c < d && !t.bad[j]; ++c) missing[c] -= a[q][j] * t.values[j][c];
    }
    for (std::size_t i = 0; i < n; ++i) {
      if (!free(i)) continue;
      for (std::size_t j = 0; j < n; ++j) gram[i][j] += free(j) ? a[q][i] * a[q][j] : 0.0;
      for (std::size_t c = 0; c < d; ++c) right[i][c] += a[q][i] * missing[c];
    }
  }
  matrix const change = solved(gram, right);
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t c = 0; c < d; ++c) t.values[j][c] += change[j][c];
  }
  return t;
}

// The squared distance of outputs, over all queries.
inline double output_error(matrix const& queries, track_state const& a, track_state const& b) {
  double sum = 0;
  for (row const& q : queries) sum += squared_distance(attend_all(q, a).output, attend_all(q, b).output);
  return sum;
}

}  // namespace reference
