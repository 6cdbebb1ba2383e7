// SPDX-License-Identifier: Apache-2.0
// What every form of attention does first and last: reading queries, and writing outputs and log-sum-exps.
#pragma once

#include <kvmeld/attention/attend_tile.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/queries/log_sums.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/query_sample.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace attention {

template <class Q, class Out> struct attend_rows {
  static constexpr std::uint32_t query_block = 8;
  static constexpr std::uint32_t token_block = 64;
  attention_params params;
  batch_source source;
  head_rows<Q> query;
  head_rows<Out> out;
  log_sums<float> lse;

  KVMELD_HD std::uint32_t blocks() const { return ceil_div(source.batch.max_queries(), query_block); }
  std::uint32_t tiles(shape const&) const { return blocks(); }

  KVMELD_HD block_of_rows rows_of(shape const& s, tile const& t) const {
    std::uint32_t const member = source.row_of(t.item);
    std::uint32_t const queries = source.batch.queries(member);
    std::uint32_t const first = t.index * query_block;
    std::uint32_t const rows =
        first < queries ? min_of(query_block, queries - first) * s.queries_per_kv_head : 0;
    return {member, queries, first, s.queries_per_kv_head, t.where.kv_head, rows};
  }

  /// q[row][key_dim], scaled. Collective; barrier at the end.
  template <class Team>
  KVMELD_HD void load_queries(Team const& team, block_of_rows const& b, std::uint32_t key_dim,
                              float* q) const {
    load_scaled(team, query, b, params.scale_for(key_dim), key_dim, q);
    team.sync();
  }

  /// Adds the sinks to the softmax, then writes outputs and log-sum-exps. The state has `channels` channels
  /// from `first` on; whoever has the first ones writes the log-sum-exps. Collective.
  template <class Team>
  KVMELD_HD void finish(Team const& team, block_of_rows const& b, std::uint32_t channels,
                        softmax_state const& state, std::uint32_t first = 0) const {
    if (params.sink != nullptr) {
      team.for_each(b.rows, [&](std::uint32_t r) { add_sink(params.sink[b.head_of(r)], r, state); });
      team.sync();
    }
    for (std::uint32_t r = 0; r < b.rows; ++r) {
      float const* const from = state.total + std::size_t{r} * channels;
      Out* const to = out.row(b.member, b.head_of(r), b.query_of(r)) + first;
      team.for_each(channels, [&](std::uint32_t c) {
        float const total = params.sink != nullptr ? from[c] * state.factor[r] : from[c];
        to[c] = element_traits<Out>::from_float(state.seen[r] != 0 ? total / state.sum[r] : 0.0f);
      });
    }
    if (!lse.given() || first != 0) return;
    team.for_each(b.rows, [&](std::uint32_t r) {
      lse.write(b.member, b.head_of(r), b.query_of(r),
                state.seen[r] != 0 ? state.highest[r] + std::log(state.sum[r])
                                   : element_traits<float>::lowest);
    });
  }

private:
  /// Adds a logit without a value to the softmax of row r. Sets `factor` to the number that the row's total
  /// has to be multiplied by. A row that saw no entry keeps its total of zeros.
  KVMELD_HD static void add_sink(float sink, std::uint32_t r, softmax_state const& state) {
    bool const any = state.seen[r] != 0;
    float const high = any ? max_of(state.highest[r], sink) : sink;
    float const factor = any ? std::exp(state.highest[r] - high) : 0.0f;
    state.sum[r] = state.sum[r] * factor + std::exp(sink - high);
    state.factor[r] = factor;
    state.highest[r] = high;
    state.seen[r] = 1;
  }
};

namespace detail {

/// Why an attention call cannot run; empty if it can. `readable`: the host can read the parameters' arrays.
template <class Q, class Out>
std::string attend_problem(attention_params const& params, query_batch const& batch, shape const& s,
                           head_rows<Q> query, head_rows<Out> out, bool readable) {
  std::string problem = kvmeld::detail::batch_problem("attention::attend", s, batch);
  if (problem.empty())
    problem = kvmeld::detail::params_problem("attention::attend", params, s.key_dim, readable);
  if (problem.empty() && batch.max_queries() != 0 && (query.data == nullptr || out.data == nullptr)) {
    problem = refusal("attention::attend", query.data == nullptr ? "query.data" : "out.data", "null",
                      "the rows of the queries' heads (only lse may be empty)");
  }
  return problem;
}

}  // namespace detail

/// Where attend writes the logits of the sampled queries: rows[sequence of the call][query head][sampled
/// query][slot], scaled, capped, with the log degree added. Slots that a query does not see are not written.
struct kept_logits {
  head_rows<float> rows;  ///< data null: none are kept
  query_sample sample;

  KVMELD_HD bool wanted() const { return rows.data != nullptr; }
  /// The logits of row r of a block, by slot; null if its query is not sampled.
  KVMELD_HD float* row(block_of_rows const& b, std::uint32_t r) const {
    if (!wanted()) return nullptr;
    std::uint32_t const sampled = sample.index_of(b.queries, b.query_of(r));
    return sampled == query_sample::none ? nullptr : rows.row(b.member, b.head_of(r), sampled);
  }
};

}  // namespace attention

}  // namespace KVMELD_ABI
}  // namespace kvmeld
