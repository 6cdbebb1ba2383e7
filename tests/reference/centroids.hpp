// k-means over the entries of a track that may merge, as loops over all pairs in double precision.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "reference/track.hpp"

namespace reference {

// Where the stretches of n entries that become m clusters begin, and which clusters they hold.
struct stretch {
  std::size_t begin, end, clusters;
};

inline std::vector<stretch> stretches(std::size_t n, std::size_t m, std::size_t chunk, std::size_t most) {
  std::size_t const at_once = std::min(chunk, most);
  std::size_t parts = std::max((n + chunk - 1) / chunk, (m + at_once - 1) / at_once);
  parts = std::min(parts, m);
  std::vector<stretch> out;
  std::size_t begin = 0, clusters = 0;
  for (std::size_t i = 1; i <= parts; ++i) {
    std::size_t const upto = i * m / parts, end = (upto * n + m - 1) / m;
    out.push_back({begin, end, upto - clusters});
    begin = end;
    clusters = upto;
  }
  return out;
}

// The cluster of each of `rows`, and the smallest gap between a distance that decided and the next one.
inline std::vector<std::size_t> nearest_means(matrix const& rows, matrix const& means, double& margin) {
  std::vector<std::size_t> out;
  for (row const& x : rows) {
    double best = std::numeric_limits<double>::infinity(), next = best;
    std::size_t at = 0;
    for (std::size_t j = 0; j < means.size(); ++j) {
      double const distance = squared_distance(x, means[j]);
      if (distance < best) {
        next = best;
        best = distance;
        at = j;
      } else {
        next = std::min(next, distance);
      }
    }
    if (means.size() > 1) margin = std::min(margin, next - best);
    out.push_back(at);
  }
  return out;
}

// The target of each of the entries in `list`: the pivot of its cluster, an index into `list`.
inline std::vector<std::size_t> centroid_targets(track_state const& track, indices const& list, std::size_t m,
                                                 std::size_t chunk, std::size_t most, std::size_t steps,
                                                 double& margin) {
  std::vector<std::size_t> target(list.size());
  for (stretch const& part : stretches(list.size(), m, chunk, most)) {
    std::size_t const n = part.end - part.begin;
    matrix rows, means;
    for (std::size_t i = 0; i < n; ++i) rows.push_back(track.keys[list[part.begin + i]]);
    for (std::size_t j = 0; j < part.clusters; ++j) means.push_back(rows[j * n / part.clusters]);
    for (std::size_t step = 0; step < steps; ++step) {
      auto const of = nearest_means(rows, means, margin);
      for (std::size_t j = 0; j < means.size(); ++j) {
        row sum(means[j].size(), 0.0);
        double weight = 0;
        for (std::size_t i = 0; i < n; ++i) {
          if (of[i] != j) continue;
          double const w = track.degree[list[part.begin + i]];
          for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += w * rows[i][c];
          weight += w;
        }
        for (std::size_t c = 0; weight > 0 && c < sum.size(); ++c) means[j][c] = sum[c] / weight;
      }
    }
    auto of = nearest_means(rows, means, margin);
    std::vector<double> distance(n);
    for (std::size_t i = 0; i < n; ++i) distance[i] = squared_distance(rows[i], means[of[i]]);
    auto const members = [&](std::size_t j) { return std::count(of.begin(), of.end(), j); };
    for (std::size_t j = 0; j < means.size(); ++j) {
      if (members(j) != 0) continue;
      std::size_t farthest = n;
      for (std::size_t i = 0; i < n; ++i) {
        if (members(of[i]) >= 2 && (farthest == n || distance[i] > distance[farthest])) farthest = i;
      }
      for (std::size_t i = 0; i < n; ++i) {
        if (i != farthest && members(of[i]) >= 2)
          margin = std::min(margin, std::abs(distance[farthest] - distance[i]));
      }
      of[farthest] = j;
      distance[farthest] = 0;
    }
    for (std::size_t j = 0; j < means.size(); ++j) {
      double least = std::numeric_limits<double>::infinity();
      std::size_t pivot = n;
      for (std::size_t i = 0; i < n; ++i) least = of[i] == j ? std::min(least, distance[i]) : least;
      for (std::size_t i = 0; i < n; ++i) {
        if (of[i] == j && pivot == n && distance[i] <= 1.001 * least) pivot = i;
      }
      for (std::size_t i = 0; i < n; ++i) {
        if (of[i] != j) continue;
        if (least > 0) margin = std::min(margin, std::abs(distance[i] - 1.001 * least));
        target[part.begin + i] = part.begin + pivot;
      }
    }
  }
  return target;
}

}  // namespace reference
