// Non-causal attention inside chunks as plain loops in double precision, from the paper (Chari and Van Durme,
// "Compactor", 2025) and kvpress 0.5.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "reference/row_scores.hpp"
#include "reference/track.hpp"

namespace reference {

struct chunk_options {
  std::size_t chunk = 256, sinks = 8;
  double scale = 1, softcap = 0;
  bool degrees = true;
};

// sums[i] += what the queries [head][query] give entry i of the track. Query q is that of slot slots[q].
inline void add_chunk_attention(std::vector<double>& sums, track_state const& t,
                                std::vector<matrix> const& queries, std::vector<std::size_t> const& slots,
                                chunk_options const& o) {
  std::size_t const n = t.keys.size();
  for (std::size_t q = 0; q < slots.size(); ++q) {
    if (slots[q] < o.sinks) continue;
    std::size_t const begin = o.sinks + (slots[q] - o.sinks) / o.chunk * o.chunk;
    std::size_t const end = std::min(n, begin + o.chunk);
    for (matrix const& head : queries) {
      std::vector<double> weight(n, 0.0);
      double total = 0, highest = -1e300;
      std::vector<double> logit(n, 0.0);
      for (std::size_t i = begin; i < end; ++i) {
        for (std::size_t c = 0; c < t.keys[i].size(); ++c) logit[i] += o.scale * head[q][c] * t.keys[i][c];
        if (o.softcap > 0) logit[i] = o.softcap * std::tanh(logit[i] / o.softcap);
        if (o.degrees) logit[i] += std::log(t.degree[i]);
        if (!t.bad[i]) highest = std::max(highest, logit[i]);
      }
      for (std::size_t i = begin; i < end; ++i)
        total += weight[i] = t.bad[i] ? 0 : std::exp(logit[i] - highest);
      for (std::size_t i = begin; i < end && total > 0; ++i)
        sums[i] += weight[i] / total / static_cast<double>(queries.size());
    }
  }
}

// Times the norms of the values, and pooled with zeros beyond the ends.
inline std::vector<double> chunk_scores(std::vector<double> const& sums, track_state const& t,
                                        std::size_t sinks, std::size_t kernel) {
  std::size_t const n = sums.size();
  std::vector<double> out(n, 0.0);
  for (std::size_t i = sinks; i < n; ++i) {
    for (std::size_t j = sinks; j < n; ++j) {
      if (i + kernel / 2 < j || j + kernel / 2 < i || t.bad[j]) continue;
      out[i] += sums[j] * norm_of(t.values[j]) / static_cast<double>(kernel);
    }
  }
  return out;
}

}  // namespace reference
