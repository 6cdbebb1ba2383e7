// Scores of keys and values as plain loops in double precision, from the papers. KeyDiff: section 3.2; Knorm:
// section 3; LagKV: section 3; leverage: x^T (X^T X + r I)^-1 x, solved by elimination.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "reference/track.hpp"

namespace reference {

inline double norm_of(row const& x) {
  double sum = 0;
  for (double v : x) sum += v * v;
  return std::sqrt(sum);
}

inline std::vector<double> key_difference(track_state const& t) {
  std::size_t const n = t.keys.size(), d = n == 0 ? 0 : t.keys[0].size();
  row mean(d, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    double const norm = norm_of(t.keys[i]);
    for (std::size_t c = 0; c < d && !t.bad[i] && norm > 0; ++c) mean[c] += t.degree[i] * t.keys[i][c] / norm;
  }
  std::vector<double> out(n, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    double product = 0;
    for (std::size_t c = 0; c < d; ++c) product += mean[c] * t.keys[i][c];
    double const norms = norm_of(mean) * norm_of(t.keys[i]);
    out[i] = norms > 0 ? -product / norms : 0.0;
  }
  return out;
}

inline std::vector<double> key_norm(track_state const& t) {
  std::vector<double> out;
  for (row const& k : t.keys) out.push_back(-norm_of(k));
  return out;
}

// Solves a x = b by elimination with pivots.
inline row solved(matrix a, row b) {
  std::size_t const d = b.size();
  for (std::size_t k = 0; k < d; ++k) {
    std::size_t most = k;
    for (std::size_t i = k; i < d; ++i) most = std::abs(a[i][k]) > std::abs(a[most][k]) ? i : most;
    std::swap(a[k], a[most]);
    std::swap(b[k], b[most]);
    for (std::size_t i = k + 1; i < d; ++i) {
      double const factor = a[i][k] / a[k][k];
      for (std::size_t j = k; j < d; ++j) a[i][j] -= factor * a[k][j];
      b[i] -= factor * b[k];
    }
  }
  for (std::size_t k = d; k-- > 0;) {
    for (std::size_t j = k + 1; j < d; ++j) b[k] -= a[k][j] * b[j];
    b[k] /= a[k][k];
  }
  return b;
}

inline std::vector<double> leverage(track_state const& t, double ridge) {
  std::size_t const n = t.keys.size(), d = n == 0 ? 0 : t.keys[0].size();
  row mean(d, 0.0);
  double tokens = 0, trace = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (t.bad[i]) continue;
    tokens += t.degree[i];
    for (std::size_t c = 0; c < d; ++c) mean[c] += t.degree[i] * t.keys[i][c];
  }
  for (double& m : mean) m /= tokens > 0 ? tokens : 1;
  matrix x = t.keys, gram(d, row(d, 0.0));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t c = 0; c < d; ++c) x[i][c] -= mean[c];
    for (std::size_t a = 0; a < d && !t.bad[i]; ++a) {
      for (std::size_t b = 0; b < d; ++b) gram[a][b] += t.degree[i] * x[i][a] * x[i][b];
      trace += t.degree[i] * x[i][a] * x[i][a];
    }
  }
  for (std::size_t a = 0; a < d; ++a) gram[a][a] += ridge * trace / static_cast<double>(d);
  std::vector<double> out(n, 0.0);
  for (std::size_t i = 0; i < n && trace > 0; ++i) {
    if (t.bad[i]) continue;
    row const y = solved(gram, x[i]);
    for (std::size_t c = 0; c < d; ++c) out[i] += x[i][c] * y[c];
  }
  return out;
}

// Moved and scaled to mean 0 and standard deviation 1 over the entries that count; all 0 if they vary by no
// more than 1e-5 of the mean.
inline std::vector<double> standardised(std::vector<double> x, std::vector<char> const& bad) {
  double count = 0, mean = 0, square = 0;
  for (std::size_t i = 0; i < x.size(); ++i) count += bad[i] ? 0 : 1;
  for (std::size_t i = 0; i < x.size(); ++i) mean += bad[i] ? 0 : x[i];
  mean /= count > 0 ? count : 1;
  for (std::size_t i = 0; i < x.size(); ++i) square += bad[i] ? 0 : (x[i] - mean) * (x[i] - mean) / count;
  for (double& v : x) v = std::sqrt(square) > 1e-5 * std::abs(mean) ? (v - mean) / std::sqrt(square) : 0;
  return x;
}

// What lag_relative ranks by, before it ranks: of one chunk, from the rows of this chunk and the next.
inline std::vector<double> lag_spread(std::vector<row> const& rows, std::vector<char> const& bad,
                                      std::size_t first, std::size_t lag) {
  std::size_t const d = rows[0].size();
  std::vector<double> out(lag, 0.0);
  for (std::size_t i = 0; i < lag; ++i) {
    if (bad[first + i]) continue;
    row x(d, 0.0);
    for (std::size_t c = 0; c < d; ++c) {
      double low = 1e300, high = -1e300;
      for (std::size_t j = first + lag; j < first + 2 * lag; ++j) {
        if (bad[j]) continue;
        low = std::min(low, rows[j][c]);
        high = std::max(high, rows[j][c]);
      }
      x[c] = high > low ? (rows[first + i][c] - low) / (high - low) : 0.0;
    }
    double mean = 0, square = 0;
    for (double v : x) mean += v / static_cast<double>(d);
    for (double v : x) square += (v - mean) * (v - mean);
    out[i] = d > 1 ? std::sqrt(square / static_cast<double>(d - 1)) : 0.0;
  }
  double total = 0;
  for (double v : out) total += std::exp(v);
  for (double& v : out) v = std::exp(v) / total;
  return out;
}

inline constexpr double first_of_all = 1e300;

// CriticalKV, Algorithm 1, for one track. `base` is the score, `rows` how many rows of attention it adds up,
// `w[h][r][c]` the output projection of the query heads of the track; without one, the norm of the value
// counts. Entries before `begin` and from `end` on are kept in any case; `first` counts them.
inline std::vector<double> critical(track_state const& t, std::vector<double> const& base, std::size_t first,
                                    std::size_t begin, std::size_t end, double rows, double epsilon,
                                    std::vector<std::vector<row>> const& w) {
  std::size_t const n = t.values.size();
  std::vector<double> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    double reach = 0;
    if (w.empty()) {
      for (double x : t.values[i]) reach += std::abs(x);
    }
    for (auto const& head : w) {
      for (row const& r : head) {
        double product = 0;
        for (std::size_t c = 0; c < r.size(); ++c) product += r[c] * t.values[i][c];
        reach += std::abs(product) / static_cast<double>(w.size());
      }
    }
    bool const apart = i < begin || i >= end;
    std::size_t better = begin + (n - end);  // entries that are kept before this one
    for (std::size_t j = begin; j < end; ++j) {
      better += base[j] > base[i] || (base[j] == base[i] && j < i) ? 1 : 0;
    }
    out[i] = apart || better < first ? first_of_all : (base[i] / rows + epsilon) * reach;
  }
  return out;
}

// KVzip+'s score of the values of a track. `most` is [head][entry] the largest weighted probability, `w` is
// [head][row of the output]; empty: the value counts.
inline std::vector<double> max_output(track_state const& t, std::vector<std::vector<double>> const& most,
                                      std::vector<std::vector<row>> const& w) {
  std::vector<double> out(t.values.size(), 0.0);
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (std::size_t h = 0; h < most.size(); ++h) {
      double squares = 0;
      for (double x : t.values[i]) squares += w.empty() ? x * x : 0.0;
      for (std::size_t r = 0; !w.empty() && r < w[h].size(); ++r) {
        double product = 0;
        for (std::size_t c = 0; c < w[h][r].size(); ++c) product += w[h][r][c] * t.values[i][c];
        squares += product * product;
      }
      out[i] = std::max(out[i], most[h][i] * std::sqrt(squares));
    }
  }
  return out;
}

}  // namespace reference
