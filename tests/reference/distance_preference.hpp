// TriAttention as plain loops in double precision, from the paper (Mao et al., 2026): keys and queries before
// their rotation, an angle for every band and every distance.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <vector>

#include "reference/expected_attention.hpp"
#include "reference/track.hpp"

namespace reference {

struct distance_options {
  pair_rotation turn;
  double last = 0;           // position of the last token
  std::size_t farthest = 1;  // distances 1, 2, 4, ... up to it
};

// The bands of a row before rotation, as complex numbers. A channel that does not rotate is a band.
inline std::vector<std::complex<double>> bands_of(row const& x, pair_rotation const& turn) {
  std::vector<std::complex<double>> out;
  for (std::size_t p = 0; p < turn.dim / 2; ++p) out.emplace_back(x[turn.first(p)], x[turn.second(p)]);
  for (std::size_t c = turn.dim; c < x.size(); ++c) out.emplace_back(x[c], 0.0);
  return out;
}

// queries[head][query]: before their rotation, times the scale of logits. keys: before their rotation, for
// `at`.
inline std::vector<double> distance_preference(std::vector<matrix> const& queries, matrix const& keys,
                                               std::vector<double> const& at, track_state const& t,
                                               distance_options const& o) {
  std::size_t const n = t.size();
  std::vector<double> out(n, -1e300);
  for (matrix const& of_head : queries) {
    std::vector<std::complex<double>> mean(bands_of(keys[0], o.turn).size());
    std::vector<double> length(mean.size(), 0.0);
    for (row const& q : of_head) {
      auto const bands = bands_of(q, o.turn);
      for (std::size_t f = 0; f < bands.size(); ++f) {
        mean[f] += bands[f] / static_cast<double>(of_head.size());
        length[f] += std::abs(bands[f]) / static_cast<double>(of_head.size());
      }
    }
    std::vector<double> s(n, 0.0);
    double sum = 0, squares = 0, count = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (t.bad[i]) continue;
      auto const key = bands_of(keys[i], o.turn);
      double distances = 0;
      for (std::size_t x = 1; x <= o.farthest; x *= 2, ++distances) {
        for (std::size_t f = 0; f < key.size(); ++f) {
          double const w = f < o.turn.dim / 2 ? o.turn.angle(f, o.last + static_cast<double>(x) - at[i]) : 0;
          double const phi = std::arg(mean[f]) - std::arg(key[f]);
          s[i] += std::abs(mean[f]) * std::abs(key[f]) * std::cos(w + phi);
        }
      }
      s[i] /= distances;
      for (std::size_t f = 0; f < key.size(); ++f) s[i] += (length[f] - std::abs(mean[f])) * std::abs(key[f]);
      s[i] += std::log(t.degree[i]);
      sum += s[i];
      ++count;
    }
    for (std::size_t i = 0; i < n; ++i) squares += t.bad[i] ? 0 : (s[i] - sum / count) * (s[i] - sum / count);
    double const deviation = std::sqrt(squares / count);
    for (std::size_t i = 0; i < n; ++i)
      out[i] = std::max(out[i], deviation > 1e-9 ? (s[i] - sum / count) / deviation : 0);
  }
  return out;
}

}  // namespace reference
