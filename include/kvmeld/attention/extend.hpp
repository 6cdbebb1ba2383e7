// Attention over a merged cache: log-degree bias, GQA, several queries per sequence, log-sum-exp out.
#pragma once

#include <kvmeld/attention/attend_masked.hpp>
#include <kvmeld/attention/attend_tile.hpp>
#include <kvmeld/cache/cache_ref.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/queries.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace attention {

/// One tile per block of queries; the query heads of a KV head share its keys and values.
template <class Keys, class Values, class Q, class Out> struct extend_phase {
  static constexpr std::uint32_t query_block = 8;
  static constexpr std::uint32_t token_block = 64;
  cache_ref<Keys, Values> cache;
  attention_params params;
  batch_source source;
  head_rows<Q> query;
  head_rows<Out> out;
  head_rows<float> lse;  ///< data null: not wanted
  std::uint32_t most_queries;

  std::uint32_t tiles(shape const&) const { return ceil_div(most_queries, query_block); }
  std::size_t scratch_bytes(int) const {
    std::uint32_t const rows = query_block * cache.extent().group;
    std::size_t const dk = cache.keys.channels();
    std::size_t const dv = cache.values.channels();
    return scratch_size(rows * dk * sizeof(float)) + scratch_size(token_block * dk * sizeof(float)) +
           scratch_size(token_block * dv * sizeof(float)) + scratch_size(token_block * sizeof(float)) +
           scratch_size(std::size_t{rows} * token_block * sizeof(float)) +
           softmax_scratch(rows, cache.values.channels()) + scratch_size(token_block * sizeof(position_t)) +
           rope_scratch(params.rope, cache.keys.channels());
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const group = cache.extent().group;
    std::uint32_t const member = source.row_of(t.item);
    std::uint32_t const queries = source.batch.queries(member);
    std::uint32_t const first = t.index * query_block;
    if (first >= queries) return;
    std::uint32_t const rows = min_of(query_block, queries - first) * group;
    std::uint32_t const most_rows = query_block * group;
    std::uint32_t const dk = cache.keys.channels();
    std::uint32_t const dv = cache.values.channels();
    std::uint32_t const length = cache.length(t.where);
    float const scale = params.scale_for(dk);
    // Row r is query first + r / group of query head kv_head * group + r % group.
    auto const query_of = [&](std::uint32_t r) { return first + r / group; };
    auto const head_of = [&](std::uint32_t r) { return t.where.kv_head * group + r % group; };

    float* const q = team.template scratch<float>(std::size_t{most_rows} * dk);
    float* const k = team.template scratch<float>(std::size_t{token_block} * dk);
    float* const v = team.template scratch<float>(std::size_t{token_block} * dv);
    float* const bias = team.template scratch<float>(token_block);
    float* const logits = team.template scratch<float>(std::size_t{most_rows} * token_block);
    position_t* const position = team.template scratch<position_t>(token_block);
    double const* const turns = rope_table(team, params.rope, dk);
    softmax_state const state(team, most_rows, dv);
    team.for_each(rows * dk, [&](std::uint32_t i) {
      using traits = element_traits<std::remove_const_t<Q>>;
      q[i] = scale * traits::to_float(query.row(member, head_of(i / dk), query_of(i / dk))[i % dk]);
    });
    team.sync();
    std::uint32_t const end = params.visible(length, queries, query_of(rows - 1));
    std::uint32_t const sequence = t.where.sequence;
    std::uint32_t const known = cache.ledger.seen[sequence] + cache.ledger.pending[sequence];
    auto const position_of = [&](std::uint32_t r) { return params.position_of(known, queries, query_of(r)); };
    for (std::uint32_t begin = 0; begin < end; begin += token_block) {
      std::uint32_t const tokens = min_of(token_block, end - begin);
      if (params.window != 0 && !reached(t.where, begin, tokens, position_of(0))) continue;
      cache.keys.load_tile(team, t.where, begin, tokens, 0, dk, k, dk);
      cache.values.load_tile(team, t.where, begin, tokens, 0, dv, v, dv);
      team.for_each(tokens, [&](std::uint32_t i) {
        bias[i] = cache.log_degree(t.where, begin + i);
        position[i] = cache.position(t.where, begin + i);
      });
      team.sync();
      rotate_tile(team, params.rope, turns, k, tokens, dk, begin, position);
      auto const logit = [&](std::uint32_t, std::uint32_t i, float product) {
        return params.logit(product, bias[i]);
      };
      auto const visible = [&](std::uint32_t r) {
        std::uint32_t const seen = params.visible(length, queries, query_of(r));
        return seen > begin ? seen - begin : 0;
      };
      if (params.window == 0) {
        attend_tile(team, q, rows, k, v, tokens, dk, dv, logits, logit, visible, state);
      } else {
        auto const sees = [&](std::uint32_t r, std::uint32_t i) {
          return i < visible(r) && params.in_window(position[i], position_of(r));
        };
        attend_masked(team, q, rows, k, v, tokens, dk, dv, logits, logit, sees, state);
      }
    }
    if (params.sink != nullptr) {
      team.for_each(rows, [&](std::uint32_t r) { add_sink(params.sink[head_of(r)], r, state); });
      team.sync();
    }
    team.for_each(rows * dv, [&](std::uint32_t i) {
      std::uint32_t const r = i / dv;
      float const total = params.sink != nullptr ? state.total[i] * state.factor[r] : state.total[i];
      float const x = state.seen[r] != 0 ? total / state.sum[r] : 0.0f;
      out.row(member, head_of(r), query_of(r))[i % dv] = element_traits<Out>::from_float(x);
    });
    if (lse.data == nullptr) return;
    team.for_each(rows, [&](std::uint32_t r) {
      *lse.row(member, head_of(r), query_of(r)) =
          state.seen[r] != 0 ? state.highest[r] + std::log(state.sum[r]) : element_traits<float>::lowest;
    });
  }

private:
  /// Whether the earliest query, at position `earliest`, can see any of these slots through the window. The same for
  /// every lane.
  KVMELD_HD bool reached(track where, slot_t begin, std::uint32_t tokens, std::int64_t earliest) const {
    for (std::uint32_t i = 0; i < tokens; ++i) {
      if (params.in_window(cache.position(where, begin + i), earliest)) return true;
    }
    return false;
  }

  /// Lets a logit without a value into the softmax of row r. `factor` is then what the row's total is rescaled by; a
  /// row that saw no entry keeps its total of zeros.
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

/// out[query] = softmax over visible entries (cap(scale q.k) + log N) V for the queries of `batch`.
/// query [.., query_heads, key_dim] of Q and out [.., query_heads, value_dim] of Out in any element type;
/// lse (natural log, degrees and sink included) may be empty. A query that sees nothing gives zeros and the lowest float
/// (its sink where there is one); NaN in a visible row shows in the result.
/// Query head h reads KV head h / group. Arithmetic in float, order of summation fixed: the same bits for any number
/// of threads. `out` and `lse` alias nothing. Enqueued on `executor`; refuses a batch that does not fit, and params
/// that contradict each other.
template <class Executor, class Keys, class Values, class Q, class Out>
status extend(Executor& executor, attention_params const& params, query_batch const& batch,
              head_rows<Q> query, cache_ref<Keys, Values> const& cache, head_rows<Out> out,
              head_rows<float> lse = {}) {
  std::string problem = batch_problem("attention::extend", cache.extent(), batch);
  if (problem.empty()) problem = params_problem("attention::extend", params, cache.extent().key_dim);
  std::uint32_t most = 0;
  for (std::uint32_t i = 0; problem.empty() && i < batch.size(); ++i) most = max_of(most, batch.queries(i));
  if (most != 0 && (query.data == nullptr || out.data == nullptr)) {
    problem = message("attention::extend: ", query.data == nullptr ? "query" : "out",
                      ".data is null; give the rows (only lse may be empty)");
  }
  if (!problem.empty()) return report(problem);
  batch_source const source{cache.extent(), batch};
  executor.run(extend_phase<Keys, Values, Q, Out>{cache, params, source, query, out, lse, most},
               cache.extent(), source.items(), source);
  return {};
}

}  // namespace attention
}  // namespace KVMELD_ABI
}  // namespace kvmeld
