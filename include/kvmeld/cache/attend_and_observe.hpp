// SPDX-License-Identifier: Apache-2.0
// Attention that also feeds the scores.
#pragma once

#include <kvmeld/attention/attend.hpp>
#include <kvmeld/attention/attend_rows.hpp>
#include <kvmeld/attention/split_keys.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/queries/log_sums.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/query_sample.hpp>
#include <kvmeld/score/observation.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace attention {

/// Number of floats that attend_and_observe needs for calls of up to `sequences` sequences with up to
/// `queries` queries each: the logits of the query sample, and log-sum-exps. If the number does not
/// fit 64 bits, the result is the largest number that does. One query of one sequence takes 4 bytes for each
/// query head and slot of one layer, and 4 bytes more for each query head.
inline std::size_t observed_floats(shape const& s, std::uint32_t sequences, std::uint32_t queries,
                                   query_sample sample = {}) {
  std::size_t const rows = std::size_t{sample.count(queries)} * s.capacity + queries;
  return saturated_product(std::size_t{sequences} * s.query_heads(), rows);
}

/// Does attention::attend over the committed entries of `cache`, and cache.observe of the query sample
/// `sample`, in one pass over K and V. Attention stores the sample's logits in `memory`; a second launch
/// turns them into scores when the log-sum-exps are known. Use it for few queries, as in decoding, or for a
/// small sample (`last_queries(32)` of a prompt). For whole prompts observe is cheaper: its memory does not
/// grow with queries x entries.
///
/// query, out, lse, params and split are as for attend, sample as for observe. `memory` must lie in executor
/// memory, have at least observed_floats() elements, and overlap nothing else. Its contents are unspecified
/// afterwards, and calls on the same executor may reuse it at once. Enqueues attend's launches and 2 more on
/// the cache's executor; does not wait. Allocates nothing but scratch. The cache's rule for threads holds.
/// Outputs and log-sum-exps are the same bits as attend's. Scores on the host, and in the generic forms
/// everywhere, are the same bits as those of attend followed by observe; in the tuned forms of devices they
/// differ by the rounding of logits. If the score needs no attention, this is attend and needs no memory. If
/// the score needs queries (score::expected_attention, score::chunk_attention), this is attend, then observe.
/// `memory` must have observed_floats() elements in this case too; only the log-sum-exps lie there. Refuses
/// what attend and observe refuse, memory too small, and policies that share entries (EMS): their members
/// have logits of their own. A refused call leaves the cache as it was.
template <class Cache, class Q, class Out>
status attend_and_observe(Cache& cache, query_batch const& batch, head_rows<Q> query, head_rows<Out> out,
                          span<float> memory, log_sums<float> lse = {}, attention_params const& params = {},
                          query_sample sample = {}, split_keys split = {}) {
  auto const both = [&](auto& own) -> status {
    shape const& s = own.options().extent;
    observation_need const need = own.needs_observation();
    bool const observes(need);
    constexpr bool readable = is_immediate<std::decay_t<decltype(own.executor())>>::value;
    std::string problem = own.valid().text();
    if (problem.empty())
      problem = detail::attend_refusal(readable, batch, query, own.ref(), out, params, split);
    if (problem.empty())
      problem = kvmeld::detail::query_sample_problem("attention::attend_and_observe", sample);
    if (problem.empty() && observes) {
      std::size_t const wanted = observed_floats(s, batch.size(), batch.max_queries(), sample);
      if (memory.size() < wanted) {
        problem =
            refusal("attention::attend_and_observe", "number of floats of memory", memory.size(), "at least ",
                    wanted, ", for ", batch.size(), " sequences of up to ", batch.max_queries(), " queries");
      }
    }
    if (!problem.empty()) return raise(problem);
    if (status const st = own.check_observation(batch, params, sample); !st.ok()) return st;
    kept_logits kept{};
    if (observes) {
      std::uint32_t const rows = sample.count(batch.max_queries());
      if (!need.queries) kept = {rows_by_head(memory.data(), rows, s.query_heads(), s.capacity), sample};
      if (!lse.given()) {
        float* const sums = memory.data() + std::size_t{batch.size()} * s.query_heads() * rows * s.capacity;
        lse = rows_by_head(sums, batch.max_queries(), s.query_heads(), 1);
      }
    }
    status attended =
        detail::attend_and_keep(own.executor(), params, batch, query, own.ref(), out, lse, split, kept);
    if (!attended.ok() || !observes) return attended;
    if (need.queries) return own.observe(batch, query, lse, params, sample);
    head_rows<float const> const logits{kept.rows.data, kept.rows.sequence_stride, kept.rows.head_stride,
                                        kept.rows.row_stride};
    return own.observe_logits(batch, logits, lse, params, sample);
  };
  return Cache::sharing::by_slot("attention::attend_and_observe",
                                 "members have logits of their own (or call attention::attend, then observe)",
                                 both, cache);
}

}  // namespace attention
}  // namespace KVMELD_ABI
}  // namespace kvmeld
