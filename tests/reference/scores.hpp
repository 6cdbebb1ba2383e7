// How important is an entry? Column sums of attention, averaged over the query heads of a KV head
// (KVMerger section 6.2: one map, the average of the group's maps), and SnapKV's pooling.
#pragma once

#include "attention.hpp"

namespace reference {

// Attention that an engine's log-sum-exp implies: A[q][j] = exp(logit - lse[q]); nothing is
// normalised again, so that a wrong lse shows.
inline matrix probabilities_from_lse(matrix const& queries, matrix const& cached,
                                     std::vector<double> const& degree, std::vector<double> const& lse,
                                     attention_options const& options = {}) {
  matrix const keys = rotated(cached, options);
  std::size_t const m = queries.size(), n = keys.size();
  matrix result(m, row(n, 0.0));
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j)
      if (sees(i, m, j, n, degree[j], options))
        result[i][j] = std::exp(logit(queries[i], keys[j], degree[j], options) - lse[i]);
  return result;
}

// s[j] = mean over the group's heads of the sum over the last `window` queries of A[q][j].
// queries[h][i] and lse[h][i]: head h of the group, query i. A window of all queries and more: all.
inline std::vector<double> last_window_sums(std::vector<matrix> const& queries, matrix const& keys,
                                            std::vector<double> const& degree,
                                            std::vector<std::vector<double>> const& lse, std::size_t window,
                                            attention_options const& options = {}) {
  std::vector<double> sums(keys.size(), 0.0);
  for (std::size_t h = 0; h < queries.size(); ++h) {
    matrix const attention = probabilities_from_lse(queries[h], keys, degree, lse[h], options);
    std::size_t const m = attention.size();
    for (std::size_t i = m > window ? m - window : 0; i < m; ++i)
      for (std::size_t j = 0; j < sums.size(); ++j) sums[j] += attention[i][j];
  }
  for (double& s : sums) s /= static_cast<double>(queries.size());
  return sums;
}

// The accumulated score (KVMerger, H2O): all queries given.
inline std::vector<double> column_sums(std::vector<matrix> const& queries, matrix const& keys,
                                       std::vector<double> const& degree,
                                       std::vector<std::vector<double>> const& lse,
                                       attention_options const& options = {}) {
  std::size_t longest = 0;
  for (matrix const& head : queries) longest = std::max(longest, head.size());
  return last_window_sums(queries, keys, degree, lse, longest, options);
}

enum class pooling { none, mean, maximum, zero_padded_mean };

// Pools the first `count` scores with a centred window of `kernel` (odd) scores, none of them from
// beyond `count`; the rest of the scores is returned as it was.
// mean: divided by the valid count; zero_padded_mean: divided by the kernel (SnapKV's average pooling).
inline std::vector<double> pool(std::vector<double> const& scores, std::size_t count, pooling how,
                                std::size_t kernel = 7) {
  std::vector<double> result = scores;
  if (how == pooling::none) return result;
  std::size_t const half = kernel / 2;
  for (std::size_t j = 0; j < count; ++j) {
    std::size_t const first = j > half ? j - half : 0;
    std::size_t const end = std::min(count, j + half + 1);
    double sum = 0, largest = scores[first];
    for (std::size_t i = first; i < end; ++i) {
      sum += scores[i];
      largest = std::max(largest, scores[i]);
    }
    if (how == pooling::maximum) result[j] = largest;
    if (how == pooling::mean) result[j] = sum / static_cast<double>(end - first);
    if (how == pooling::zero_padded_mean) result[j] = sum / static_cast<double>(kernel);
  }
  return result;
}

}  // namespace reference
