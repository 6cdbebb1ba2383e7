// SPDX-License-Identifier: Apache-2.0
// The output error: how far attention over a compressed cache is from attention over the full cache.
#pragma once

#include <kvmeld/attention/attend.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/queries/queries.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace attention {

/// One tile computes the errors of the query heads of one KV head.
struct output_error_phase {
  shape extent;
  batch_source source;
  head_rows<float const> out, expected;
  float* errors;

  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return team_sum_scratch(); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const member = source.row_of(t.item), queries = source.batch.queries(member);
    std::uint32_t const channels = extent.value_dim;
    float* const partial = team.template scratch<float>(team_partials);
    for (std::uint32_t g = 0; g < extent.queries_per_kv_head; ++g) {
      std::uint32_t const head = t.where.kv_head * extent.queries_per_kv_head + g;
      auto const at = [&](head_rows<float const> rows, std::uint32_t i) {
        return rows.row(member, head, i / channels)[i % channels];
      };
      auto const square = [](float x) { return x * x; };
      float const norm = team_sum(
          team, queries * channels, [&](std::uint32_t i) { return square(at(expected, i)); }, partial);
      float const apart = team_sum(
          team, queries * channels, [&](std::uint32_t i) { return square(at(out, i) - at(expected, i)); },
          partial);
      if (team.lane() != 0) continue;
      errors[member * extent.query_heads() + head] = norm != 0.0f    ? std::sqrt(apart / norm)
                                                     : apart == 0.0f ? 0.0f
                                                                     : 1.0f;
    }
  }
};

/// errors[sequence of the batch][query head] = |out - expected| / |expected|, with Frobenius norms over the
/// queries of the batch. `out` is the result of attend of `query` over `cache` as it is now. `cache` is any
/// ref (cache_ref, shared_ref). `expected` [sequence][query head][query][value_dim] is the output of the same
/// queries over the full cache. `scratch` has the form of `expected` and receives `out`. `params` are those
/// that `expected` was made with, except for `causal`: set it to false if the queries came after all tokens
/// that the cache holds, because such queries see every entry. The error is 0 for a head without queries. If
/// `expected` is all zeros, the error is 0 if `out` is all zeros, and 1 if not. Otherwise NaN in either makes
/// the error NaN. Enqueues attend's launch and 1 more; does not wait. The order of sums is fixed. Rows and
/// errors must lie in the executor's memory, and must not overlap each other. Refuses what attend refuses,
/// rows that are null, and fewer errors than sequences times query heads.
///
/// Example: the output (2, 2) where (2, 0) is expected has the error 1.
template <class Executor, class Ref, class Q>
status output_error(Executor& executor, query_batch const& batch, head_rows<Q> query, Ref const& cache,
                    head_rows<float const> expected, head_rows<float> scratch, span<float> errors,
                    attention_params const& params = {}) {
  shape const& s = cache.extent();
  std::string problem;
  if (expected.data == nullptr || scratch.data == nullptr) {
    problem = refusal("attention::output_error", expected.data == nullptr ? "expected.data" : "scratch.data",
                      "null", "rows of the queries' heads");
  }
  std::size_t const wanted = std::size_t{batch.size()} * s.query_heads();
  if (problem.empty() && errors.size() < wanted) {
    problem = refusal("attention::output_error", "number of errors", errors.size(), "at least ", wanted,
                      ", for ", batch.size(), " sequences of ", s.query_heads(), " query heads");
  }
  if (!problem.empty()) return raise(problem);
  if (status st = attend(executor, batch, query, cache, scratch, {}, params); !st.ok()) return st;
  batch_source const source{s, batch.staged(executor)};
  head_rows<float const> const out{scratch.data, scratch.sequence_stride, scratch.head_stride,
                                   scratch.row_stride};
  executor.run(output_error_phase{s, source, out, expected, errors.data()}, s, source.items(), source);
  return {};
}

}  // namespace attention
}  // namespace KVMELD_ABI
}  // namespace kvmeld
