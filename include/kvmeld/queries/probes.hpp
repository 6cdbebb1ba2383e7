// Which queries of a call are looked at: all, the last ones, or every n-th.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A subset of the queries of each sequence of a call: of the last `last` ones every `stride`-th, counted
/// back from the last query, which is always one of them. Probes keep their places: they are the queries that
/// they were, at their positions, and see what they saw. A score gets their rows alone, one after the other,
/// as if the others had never come: sums are over the probes, unscaled, since scores only rank entries;
/// windows and counters (`window_rows`, `observed_rows`) count probes, so that a window of 32 over every
/// tenth query reaches back 320 tokens.
struct query_sample {
  std::uint32_t last = 0;    ///< 0: all
  std::uint32_t stride = 1;  ///< 1: each of them

  static constexpr std::uint32_t none = 0xffffffffu;  ///< what index_of says of a query that is no probe

  /// Probes among `queries` queries.
  KVMELD_HD std::uint32_t count(std::uint32_t queries) const {
    return ceil_div(last == 0 ? queries : min_of(last, queries), stride);
  }
  /// Which query probe `p` is.
  KVMELD_HD std::uint32_t query_of(std::uint32_t queries, std::uint32_t p) const {
    return queries - 1 - (count(queries) - 1 - p) * stride;
  }
  /// Which probe query `q` is; none where it is not one.
  KVMELD_HD std::uint32_t index_of(std::uint32_t queries, std::uint32_t q) const {
    std::uint32_t const behind = queries - 1 - q, probes = count(queries);
    if (stride != 1 && behind % stride != 0) return none;
    return behind / stride < probes ? probes - 1 - behind / stride : none;
  }
};

/// Only the last `n` queries of each sequence.
KVMELD_HD constexpr query_sample last_queries(std::uint32_t n) { return {n, 1}; }
/// Every n-th query of each sequence: 10 for 10%.
KVMELD_HD constexpr query_sample every_nth(std::uint32_t n) { return {0, n}; }

/// Why these are no probes; empty if they are.
inline std::string probes_problem(char const* call, query_sample const& p) {
  if (p.stride != 0) return {};
  return refusal(call, "probes.stride", 0, "at least 1");
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
