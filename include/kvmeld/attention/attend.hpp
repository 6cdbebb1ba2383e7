// SPDX-License-Identifier: Apache-2.0
// Attention over a merged cache: log-degree bias, GQA, several queries per sequence, log-sum-exp out.
#pragma once

#include <kvmeld/attention/attend_masked.hpp>
#include <kvmeld/attention/attend_rows.hpp>
#include <kvmeld/attention/attend_tile.hpp>
#include <kvmeld/attention/cache_ref.hpp>
#include <kvmeld/attention/split_keys.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/queries/load_bias.hpp>
#include <kvmeld/queries/log_sums.hpp>
#include <kvmeld/queries/queries.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace attention {

/// One tile works on one block of queries and, where keys are split, on one part of the keys. The query heads
/// of a KV head share its keys and values.
template <class Keys, class Values, class Q, class Out> struct attend_phase : attend_rows<Q, Out> {
  using base = attend_rows<Q, Out>;
  using ref_type = cache_ref<Keys, Values>;
  using base::params;
  using base::query_block;
  using base::token_block;
  ref_type cache;
  partial_rows parts;  ///< with one part, each tile writes its outputs itself
  kept_logits kept{};

  /// For each part.
  std::uint32_t tiles(shape const&) const { return base::blocks(); }
  std::size_t scratch_bytes(int) const {
    std::uint32_t const rows = query_block * cache.extent().queries_per_kv_head;
    std::size_t const dk = cache.keys.channels();
    std::size_t const dv = cache.values.channels();
    return scratch_size(rows * dk * sizeof(float)) +
           scratch_size(token_block * row_stride(cache.keys.channels()) * sizeof(float)) +
           scratch_size(token_block * dv * sizeof(float)) + scratch_size(token_block * sizeof(float)) +
           scratch_size(std::size_t{rows} * token_block * sizeof(float)) +
           softmax_scratch(rows, cache.values.channels()) + scratch_size(token_block * sizeof(position_t)) +
           scratch_size(rows * sizeof(float*)) + rope_scratch(params.rope, cache.keys.channels()) +
           parts.find_scratch();
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& of_part) const {
    key_part const part = parts.find(team, this->source, cache.ledger, of_part);
    if (part.count == 0) return;
    tile const t{part.where, part.item, of_part.index};
    block_of_rows const b = this->rows_of(cache.extent(), t);
    if (b.rows == 0) return;
    std::uint32_t const rows = b.rows;
    std::uint32_t const max_rows = query_block * cache.extent().queries_per_kv_head;
    std::uint32_t const dk = cache.keys.channels();
    std::uint32_t const dv = cache.values.channels();
    std::uint32_t const length = cache.length(t.where);

    float* const q = team.template scratch<float>(std::size_t{max_rows} * dk);
    float* const k = team.template scratch<float>(std::size_t{token_block} * row_stride(dk));
    float* const v = team.template scratch<float>(std::size_t{token_block} * dv);
    float* const bias = team.template scratch<float>(token_block);
    float* const logits = team.template scratch<float>(std::size_t{max_rows} * token_block);
    position_t* const position = team.template scratch<position_t>(token_block);
    float** const kept_row = team.template scratch<float*>(max_rows);
    double const* const turns = rope_table(team, params.rope, dk);
    softmax_state const state(team, max_rows, dv);
    team.for_each(rows, [&](std::uint32_t r) { kept_row[r] = kept.row(b, r); });
    this->load_queries(team, b, dk, q);
    slot_t const end = part.end(params.visible(length, b.queries, b.query_of(rows - 1)));
    std::uint32_t const known = cache.ledger.tokens(t.where.sequence);
    auto const position_of = [&](std::uint32_t r) {
      return params.position_of(known, b.queries, b.query_of(r));
    };
    for (slot_t begin = part.begin(); begin < end; begin += token_block) {
      if (begin < part.first && begin >= static_cast<slot_t>(params.window_sinks)) begin = part.first;
      if (begin >= end) break;
      std::uint32_t const tokens = min_of(token_block, end - begin);
      if (params.window != 0 && !reached(t.where, begin, tokens, position_of(0))) continue;
      kvmeld::detail::load_bias(team, cache.ledger, t.where, begin, tokens, bias);
      auto const logit = [&](std::uint32_t r, std::uint32_t i, float product) {
        float const x = params.logit(product, bias[i]);
        if (kept.wanted() && kept_row[r] != nullptr) kept_row[r][begin + i] = x;
        return x;
      };
      auto const visible = [&](std::uint32_t r) {
        std::uint32_t const seen = params.visible(length, b.queries, b.query_of(r));
        return seen > begin ? seen - begin : 0;
      };
      auto const load_keys = [&] {
        cache.keys.load_tile(team, t.where, begin, tokens, 0, dk, k, dk);
        team.for_each(tokens, [&](std::uint32_t i) { position[i] = cache.position(t.where, begin + i); });
        team.sync();
        rotate_tile(team, params.rope, turns, k, tokens, dk, begin, position);
      };
      if (params.window == 0) {
        bool const plain = params.softcap == 0.0f && params.use_degree;  // the bias is all that is added
        auto const finish = [&](std::uint32_t r, float* products, std::uint32_t seen) {
          float* const to = kept.wanted() ? kept_row[r] : nullptr;
          if (plain && to == nullptr) return;
          team.for_each(seen, [&](std::uint32_t i) {
            float const x = logit(r, i, products[i]);
            if (!plain) products[i] = x;
          });
        };
        auto const keys = [&](auto use) {
          if (!params.rope.active())
            return kvmeld::detail::with_tile(team, cache.keys, t.where, begin, tokens, k, row_stride(dk),
                                             use);
          load_keys();
          use(kvmeld::detail::tile_view<float>{k, dk});
        };
        auto const values = [&](auto use) {
          float* const near = dv <= dk ? k : v;  // the keys are no longer needed
          kvmeld::detail::with_tile(team, cache.values, t.where, begin, tokens, near, dv, use);
        };
        attend_tile(team, q, rows, keys, values, tokens, dk, dv, logits, plain ? bias : nullptr, finish,
                    visible, state);
      } else {
        load_keys();
        cache.values.load_tile(team, t.where, begin, tokens, 0, dv, v, dv);
        team.sync();
        auto const sees = [&](std::uint32_t r, std::uint32_t i) {
          return i < visible(r) && params.in_window(position[i], position_of(r));
        };
        kvmeld::detail::attend_masked(team, q, rows, k, v, tokens, dk, dv, logits, logit, sees, state);
      }
    }
    if (team.lane() == 0) parts.note(part, t.index);
    if (part.count == 1) return this->finish(team, b, dv, state);
    parts.write(team, part, b, dv, state);
  }

private:
  /// Whether the earliest query, at position `earliest`, can see any of these slots through the window. Every
  /// lane gets the same answer.
  KVMELD_HD bool reached(track where, slot_t begin, std::uint32_t tokens, std::int64_t earliest) const {
    for (std::uint32_t i = 0; i < tokens; ++i) {
      if (params.in_window(cache.position(where, begin + i), earliest)) return true;
    }
    return false;
  }
};

namespace detail {

/// The phase that reads a ref: `type<Q, Out>`.
template <class Ref> struct attend_phase_of;
template <class Keys, class Values> struct attend_phase_of<cache_ref<Keys, Values>> {
  template <class Q, class Out> using type = attend_phase<Keys, Values, Q, Out>;
};

/// attend without the checks of its arguments. Writes logits to `kept` if `kept` wants some.
template <class Executor, class Ref, class Q, class Out>
status attend_and_keep(Executor& executor, attention_params const& params, query_batch const& batch,
                       head_rows<Q> query, Ref const& cache, head_rows<Out> out, log_sums<float> lse,
                       split_keys const& split, kept_logits const& kept) {
  using phase = typename attend_phase_of<Ref>::template type<Q, Out>;
  return run_attend(executor, params, batch, cache.extent(), query, out, lse, split, cache.in_order(),
                    [&](attend_rows<Q, Out> const& rows, partial_rows const& parts) {
                      return phase{rows, cache, parts, kept};
                    });
}

}  // namespace detail

/// out[query] = softmax over visible entries (cap(scale q.k) + log N) V for the queries of `batch`. `query`
/// is [sequence of the batch][query head][query][key_dim] of Q, `out` is [sequence][query
/// head][query][value_dim] of Out, in any element types. `lse` [sequence][query head][query] receives
/// log-sum-exps, degrees and sink included, and may be empty. Its logarithm is natural, or has base 2 with
/// in_base_two(rows). `params` say how a logit is computed. A query that sees nothing gets zeros, and its
/// log-sum-exp is the lowest float (its sink where there is one). NaN in a visible row shows in the result.
/// Query head h reads KV head h / queries_per_kv_head. `cache` is what a cache's ref() gives. A shared_ref
/// says how slots that stand for several tokens are read. Arithmetic is in float. The order of summation is
/// fixed, so that the bits are the same for any number of threads.
///
/// Enqueues 1 launch on `executor`, or 2 if `split` has several parts; does not wait. Takes O(queries x
/// visible entries) work per query head. Allocates nothing but scratch, which grows once. One thread at a
/// time uses an executor. `out` and `lse` must not overlap each other or what the call reads. Refuses a batch
/// that does not fit, params that contradict each other, and null rows. The call does not check whether the
/// sequences are open.
///
/// `split` divides the keys of long tracks among several tiles. It is for devices with more multiprocessors
/// than a call has heads, and for tracks of different lengths. Each part is summed by itself, and the second
/// launch adds the parts in their order. The bits then depend on the number of entries of a part, and so on
/// the lengths of all tracks of the call and the size of its list. If split.parts * split.min_entries reaches
/// the capacity, they depend on min_entries alone. They do not depend on threads.
///
/// Example: a track has two entries of the degrees 3 and 1 and the values 1 and 5. A query whose products
/// with both keys are 0 has the logits ln 3 and 0, the weights 3/4 and 1/4, the output 2 and the log-sum-exp
/// ln 4.
template <class Executor, class Ref, class Q, class Out>
status attend(Executor& executor, query_batch const& batch, head_rows<Q> query, Ref const& cache,
              head_rows<Out> out, log_sums<float> lse = {}, attention_params const& params = {},
              split_keys split = {}) {
  constexpr bool readable = is_immediate<Executor>::value;
  std::string const problem = detail::attend_refusal(readable, batch, query, cache, out, params, split);
  if (!problem.empty()) return raise(problem);
  return detail::attend_and_keep(executor, params, batch, query, cache, out, lse, split, {});
}

}  // namespace attention
}  // namespace KVMELD_ABI
}  // namespace kvmeld
