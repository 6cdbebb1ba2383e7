// Softmax attention over entries that stand for several tokens each: the logit of an entry is
// softcap(scale * q.k) + log(degree) (Chelsea, Algorithm 1: softmax(qK^T/sqrt d + log N) V).
#pragma once

#include "track.hpp"

namespace reference {

// The natural log-sum-exp of a query that sees nothing.
inline constexpr double empty_lse = -1e300;

struct attention_options {
  double scale = 1;
  double softcap = 0;   // 0: none; otherwise cap * tanh(s / cap), before the bias
  bool causal = false;  // query i of m sees the entries 0 .. n - m + i
};

struct attention_result {
  matrix output;            // [query][value channel]
  std::vector<double> lse;  // natural logarithm, bias included
  matrix probability;       // [query][entry], 0 where the query does not see it
};

inline double logit(row const& query, row const& key, double degree, attention_options const& options) {
  double s = options.scale * dot(query, key);
  if (options.softcap > 0) s = options.softcap * std::tanh(s / options.softcap);
  return s + std::log(degree);
}

// Does query i of m see entry j of n? An entry of degree 0 is an empty slot.
inline bool sees(std::size_t i, std::size_t m, std::size_t j, std::size_t n, double degree,
                 attention_options const& options) {
  if (!(degree > 0)) return false;
  return !options.causal || j + m < n + i + 1;  // j < n - m + i + 1
}

inline attention_result attend(matrix const& queries, matrix const& keys, matrix const& values,
                               std::vector<double> const& degree, attention_options const& options = {}) {
  std::size_t const m = queries.size(), n = keys.size();
  std::size_t const channels = values.empty() ? 0 : values.front().size();
  attention_result result;
  for (std::size_t i = 0; i < m; ++i) {
    double largest = empty_lse;
    for (std::size_t j = 0; j < n; ++j)
      if (sees(i, m, j, n, degree[j], options))
        largest = std::max(largest, logit(queries[i], keys[j], degree[j], options));
    row probability(n, 0.0), output(channels, 0.0);
    double total = 0;
    for (std::size_t j = 0; j < n; ++j) {
      if (!sees(i, m, j, n, degree[j], options)) continue;
      probability[j] = std::exp(logit(queries[i], keys[j], degree[j], options) - largest);
      total += probability[j];
    }
    for (std::size_t j = 0; j < n; ++j) {
      if (!(probability[j] > 0)) continue;
      probability[j] /= total;
      for (std::size_t c = 0; c < channels; ++c) output[c] += probability[j] * values[j][c];
    }
    result.output.push_back(output);
    result.probability.push_back(probability);
    result.lse.push_back(total > 0 ? largest + std::log(total) : empty_lse);
  }
  return result;
}

inline attention_result attend(matrix const& queries, track_state const& track,
                               attention_options const& options = {}) {
  return attend(queries, track.keys, track.values, track.degree, options);
}

// Grouped queries: query head h reads the track h / group, group = query heads / KV heads.
inline std::vector<attention_result> attend_heads(std::vector<matrix> const& queries,
                                                  std::vector<track_state> const& tracks,
                                                  attention_options const& options = {}) {
  std::size_t const group = queries.size() / tracks.size();
  std::vector<attention_result> result;
  for (std::size_t h = 0; h < queries.size(); ++h)
    result.push_back(attend(queries[h], tracks[h / group], options));
  return result;
}

}  // namespace reference
