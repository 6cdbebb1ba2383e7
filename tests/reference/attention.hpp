// Softmax attention over entries that stand for several tokens each: the logit of an entry is
// softcap(scale * q.k) + log(degree) (Chelsea, Algorithm 1: softmax(qK^T/sqrt d + log N) V).
#pragma once

#include "track.hpp"

namespace reference {

// The natural log-sum-exp of a query that sees nothing.
inline constexpr double empty_lse = -1e300;

enum class rotation { none, half_split, interleaved };

struct attention_options {
  double scale = 1;
  double softcap = 0;   // 0: none; otherwise cap * tanh(s / cap), before the bias
  bool causal = false;  // query i of m sees the entries 0 .. n - m + i

  bool has_sink = false;  // exp(sink) is one more term of the denominator, and of nothing else
  double sink = 0;

  // Window and rotation look at the entries' positions; the last query is at last_position.
  std::vector<long> position;
  long last_position = 0;
  long window = 0;  // 0: none; otherwise a query at P sees positions P - window + 1 and later ones,
  long always = 0;  // and those below this

  rotation rope = rotation::none;  // of the keys; the queries have been rotated already
  bool rope_by_slot = false;       // an entry's index instead of its position
  std::size_t rotary = 0;          // channels that rotate, counted from the first
  double rope_base = 10000, rope_factor = 1;
  std::vector<double> frequencies;  // per pair, instead of base and factor
  std::vector<long> map;            // what a position or index becomes; behind the end one more each
};

// What the key of entry `index`, stored at `position`, is rotated for.
inline long rope_position(std::size_t index, long position, attention_options const& o) {
  long const p = o.rope_by_slot ? static_cast<long>(index) : position;
  if (o.map.empty()) return p;
  long const beyond = std::max(0L, p + 1 - static_cast<long>(o.map.size()));
  return o.map[static_cast<std::size_t>(p - beyond)] + beyond;
}

// A key as it is at position p: the pairs of channels turned, one by one, in long double.
inline row rotated(row const& key, long p, attention_options const& o) {
  row result = key;
  std::size_t const pairs = o.rotary / 2;
  for (std::size_t i = 0; o.rope != rotation::none && i < pairs; ++i) {
    long double const exponent = -2.0L * static_cast<long double>(i) / static_cast<long double>(o.rotary);
    long double const frequency = o.frequencies.empty()
                                      ? std::pow(static_cast<long double>(o.rope_base), exponent) /
                                            static_cast<long double>(o.rope_factor)
                                      : static_cast<long double>(o.frequencies[i]);
    long double const angle = static_cast<long double>(p) * frequency;
    std::size_t const a = o.rope == rotation::half_split ? i : 2 * i;
    std::size_t const b = o.rope == rotation::half_split ? i + pairs : 2 * i + 1;
    double const c = static_cast<double>(std::cos(angle)), s = static_cast<double>(std::sin(angle));
    result[a] = key[a] * c - key[b] * s;
    result[b] = key[a] * s + key[b] * c;
  }
  return result;
}

inline matrix rotated(matrix const& keys, attention_options const& o) {
  matrix result = keys;
  if (o.rope == rotation::none) return result;
  for (std::size_t j = 0; j < keys.size(); ++j)
    result[j] = rotated(keys[j], rope_position(j, o.position[j], o), o);
  return result;
}

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
  long const query = options.last_position - static_cast<long>(m - 1 - i);
  if (options.window > 0 && options.position[j] >= options.always &&
      query - options.position[j] >= options.window)
    return false;
  return !options.causal || j + m < n + i + 1;  // j < n - m + i + 1
}

inline attention_result attend(matrix const& queries, matrix const& cached, matrix const& values,
                               std::vector<double> const& degree, attention_options const& options = {}) {
  matrix const keys = rotated(cached, options);
  std::size_t const m = queries.size(), n = keys.size();
  std::size_t const channels = values.empty() ? 0 : values.front().size();
  attention_result result;
  for (std::size_t i = 0; i < m; ++i) {
    double largest = options.has_sink ? options.sink : empty_lse;
    for (std::size_t j = 0; j < n; ++j)
      if (sees(i, m, j, n, degree[j], options))
        largest = std::max(largest, logit(queries[i], keys[j], degree[j], options));
    row probability(n, 0.0), output(channels, 0.0);
    double total = options.has_sink ? std::exp(options.sink - largest) : 0;
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
