// SPDX-License-Identifier: Apache-2.0
// The query sample: which queries of a call feed a score, and how much each counts. All, the last ones, or
// every n-th.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A subset of the queries of each sequence of a call. Of the last `last` queries it takes every `stride`-th,
/// counted back from the last query, which is always in the sample. A sampled query keeps its position, and
/// with it the entries that it sees. A score gets the rows of the sampled queries only, one after the other.
/// Its sums are over the sampled queries and are not scaled up, since scores only rank entries. Windows and
/// counters (`window_rows`, `observed_rows`) count sampled queries: a window of 32 over every tenth query
/// reaches back 320 tokens.
struct query_sample {
  std::uint32_t last = 0;    ///< 0: all
  std::uint32_t stride = 1;  ///< 1: each of them
  /// [listed sequences][queries] or null: what the probabilities of a query are multiplied by before anything
  /// else is made of them, such as 1 / |x| of its hidden state x (score::max_output). Null: 1. In memory that
  /// phases can read; queries that are not sampled have a weight too, which is not read. A query whose weight
  /// is negative, NaN or infinite gives nothing, as if it were 0; it counts as observed.
  float const* weights = nullptr;
  /// Elements from the weights of one listed sequence to those of the next; 0: all have the same.
  std::int64_t weight_stride = 0;

  static constexpr std::uint32_t none = 0xffffffffu;  ///< index_of a query that is not sampled

  /// Number of sampled queries among `queries` queries.
  KVMELD_HD std::uint32_t count(std::uint32_t queries) const {
    return ceil_div(last == 0 ? queries : min_of(last, queries), stride);
  }
  /// The query that is the p-th sampled one.
  KVMELD_HD std::uint32_t query_of(std::uint32_t queries, std::uint32_t p) const {
    return queries - 1 - (count(queries) - 1 - p) * stride;
  }
  /// What the probabilities of query `q` of the `sequence`-th listed sequence are multiplied by.
  KVMELD_HD float weight(std::uint32_t sequence, std::uint32_t q) const {
    if (weights == nullptr) return 1.0f;
    float const w = weights[std::int64_t{sequence} * weight_stride + q];
    return is_finite(w) && w > 0.0f ? w : 0.0f;
  }
  /// The index of query `q` among the sampled ones; `none` if it is not sampled.
  KVMELD_HD std::uint32_t index_of(std::uint32_t queries, std::uint32_t q) const {
    std::uint32_t const behind = queries - 1 - q, sampled = count(queries);
    if (stride != 1 && behind % stride != 0) return none;
    return behind / stride < sampled ? sampled - 1 - behind / stride : none;
  }
};

/// Only the last `n` queries of each sequence.
KVMELD_HD constexpr query_sample last_queries(std::uint32_t n) { return {n, 1}; }
/// Every n-th query of each sequence: 10 for 10%.
KVMELD_HD constexpr query_sample every_nth(std::uint32_t n) { return {0, n}; }

namespace detail {

/// Why a query sample is invalid; empty if it is valid.
inline std::string query_sample_problem(char const* call, query_sample const& p) {
  if (p.stride != 0) return {};
  return refusal(call, "sample.stride", 0, "at least 1");
}

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
