// Scores of keys and values as plain loops in double precision, from the papers. KeyDiff: section 3.2; Knorm:
// section 3; LagKV: section 3.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
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

}  // namespace reference
