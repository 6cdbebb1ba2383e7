// SPDX-License-Identifier: Apache-2.0
// Turns attention into scores: from rows that an engine has, or recomputed from queries and log-sum-exps.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/softmax.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/observe/observe_base.hpp>
#include <kvmeld/queries/load_bias.hpp>
#include <kvmeld/queries/log_sums.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/score.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Recomputes p = exp(logit - lse) tile by tile, without a matrix of queries x entries. The result is exact
/// with the engine's log-sum-exp. A sink logit enters the log-sum-exp only, so that the p of a row sum to 1
/// minus the sink's share.
template <class Score, class Keys, class Q> struct observe_queries_phase : observe_base<Score> {
  using base = observe_base<Score>;
  using base::channels;
  using base::row_block;
  using base::token_block;
  Keys keys;
  attention_params params;
  head_rows<Q> query;
  log_sums<float const> lse;

  std::size_t scratch_bytes(int) const {
    std::size_t const d = keys.channels();
    std::size_t const rows = std::size_t{row_block} * this->ledger.extent.queries_per_kv_head;
    return scratch_size(token_block * d * sizeof(float)) + scratch_size(rows * d * sizeof(float)) +
           scratch_size(rows * sizeof(float)) + scratch_size(token_block * channels * sizeof(float)) +
           scratch_size(token_block * sizeof(float)) + scratch_size(2 * token_block * sizeof(float)) +
           scratch_size(std::size_t{this->ledger.extent.queries_per_kv_head} * token_block * sizeof(float)) +
           rope_scratch(params.rope, keys.channels());
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = this->ledger;
    observed_tile const s = this->slots_of(t);
    if (s.tokens == 0) return;
    std::uint32_t const tokens = s.tokens;
    typename base::updates const u = this->updates_of(t.where, s.rows);
    std::uint32_t const group = l.extent.queries_per_kv_head;
    std::uint32_t const d = keys.channels();
    float const scale = params.scale_for(d);

    float* const k = team.template scratch<float>(std::size_t{token_block} * d);
    float* const q = team.template scratch<float>(std::size_t{row_block} * group * d);
    float* const norm = team.template scratch<float>(std::size_t{row_block} * group);
    float* const sums = team.template scratch<float>(std::size_t{token_block} * channels);
    float* const bias = team.template scratch<float>(token_block);
    float* const share = team.template scratch<float>(2 * token_block);
    float* const logits = team.template scratch<float>(std::size_t{group} * token_block);
    double const* const turns = rope_table(team, params.rope, d);
    keys.load_tile(team, t.where, s.begin, tokens, 0, d, k, d);
    team.for_each(token_block * channels, [&](std::uint32_t i) { sums[i] = 0.0f; });
    load_bias(team, l, t.where, s.begin, tokens, bias);
    team.sync();
    rotate_tile(team, params.rope, turns, k, tokens, d, s.begin, s.position);
    for (std::uint32_t r0 = u.first_row; r0 < s.rows; r0 += row_block) {
      std::uint32_t const block = min_of(row_block, s.rows - r0);
      std::uint32_t const last = this->sample.query_of(s.queries, r0 + block - 1);
      if (params.visible(s.length, s.queries, last) <= s.begin) continue;  // the same for every lane
      block_of_rows const rows{
          s.member,      s.queries,          this->sample.query_of(s.queries, r0), group, t.where.kv_head,
          block * group, this->sample.stride};
      load_scaled(team, query, rows, scale, d, q);
      team.for_each(rows.rows, [&](std::uint32_t r) {
        norm[r] = lse.read(s.member, rows.head_of(r), rows.query_of(r));
      });
      team.sync();
      if (is_tuned(team)) {
        for (std::uint32_t r = 0; r < block; ++r) {
          row_products(team, q + std::size_t{r} * group * d, group, d, k, tokens, d, d, logits, tokens);
          this->add_row(s, params, u, r0 + r, share, sums, [&](std::uint32_t h, float* to) {
            add_head(team, norm[r * group + h], logits + std::size_t{h} * tokens, tokens, bias, to);
          });
        }
        continue;
      }
      this->add_rows(team, s, params, u, r0, block, sums,
                     [&](std::uint32_t r, std::uint32_t h, std::uint32_t j) {
                       std::uint32_t const row = r * group + h;
                       if (!is_usable_lse(norm[row])) return 0.0f;
                       float const product = dot(q + std::size_t{row} * d, k + std::size_t{j} * d, d);
                       return std::exp(params.logit(product, bias[j]) - norm[row]);
                     });
      team.sync();
    }
    team.for_each(tokens, [&](std::uint32_t j) {
      this->add(t.where, s.begin + j, u, sums + std::size_t{j} * channels);
    });
  }

private:
  /// to[j] += exp(logit - norm) of one query head, from its scaled products. One lane.
  template <class Team>
  KVMELD_HD void add_head(Team const& team, float norm, float* products, std::uint32_t tokens,
                          float const* bias, float* to) const {
    if (!is_usable_lse(norm)) return;
    bool const plain = params.softcap == 0.0f && params.use_degree;
    for (std::uint32_t j = 0; j < tokens && !plain; ++j) products[j] = params.logit(products[j], bias[j]);
    add_exponentials(team, products, plain ? bias : nullptr, tokens, norm, to);
  }
};

/// Sums probabilities that the engine has: rows[sequence][query head][query][slot]. Probabilities that
/// `params` hides (causal, window) are not read.
template <class Score, class T> struct observe_rows_phase : observe_base<Score> {
  using base = observe_base<Score>;
  using base::channels;
  using base::token_block;
  attention_params params;
  head_rows<T> rows_view;

  std::size_t scratch_bytes(int) const { return 0; }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = this->ledger;
    std::uint32_t const length = l.length[t.where.index], begin = t.index * token_block;
    if (begin >= length) return;
    typename base::updates const u = updates_of_tile(t);
    team.for_each(min_of(token_block, length - begin), [&](std::uint32_t n) {
      slot_t const s = begin + n;
      if (l.shared(t.where, s)) return;
      std::size_t const e = l.at(t.where, s);
      add_column(t, u, s, s, l.position[e], l.channel_data, e);
    });
  }

protected:
  KVMELD_HD typename base::updates updates_of_tile(tile const& t) const {
    return this->updates_of(t.where, this->rows_of(this->source.row_of(t.item)));
  }

  /// Adds column `i` of the rows, the attention to a token of slot `slot`, to element `e` of the channels.
  KVMELD_HD void add_column(tile const& t, typename base::updates const& u, std::uint32_t i, slot_t slot,
                            position_t position, float* const* data, std::size_t e) const {
    ledger_ref const& l = this->ledger;
    std::uint32_t const row = this->source.row_of(t.item), queries = this->source.batch.queries(row);
    std::uint32_t const rows = this->rows_of(row), group = l.extent.queries_per_kv_head;
    std::uint32_t const length = l.length[t.where.index], empty = l.word(t.where, track_word::empty);
    std::uint32_t const known = l.seen[t.where.sequence];  // nothing is pending
    float sums[channels] = {};
    for (std::uint32_t r = u.first_row; r < rows; ++r) {
      std::uint32_t const query = this->sample.query_of(queries, r);
      std::uint32_t const visible = params.visible(length, queries, query);
      if (slot >= visible) continue;
      if (!params.in_window(position, params.position_of(known, queries, query))) continue;
      float const weight = this->sample.weight(row, query);
      this->add_heads(u, r, visible - empty, weight, sums, [&](std::uint32_t h) {
        using traits = element_traits<std::remove_const_t<T>>;
        return traits::to_float(rows_view.row(row, t.where.kv_head * group + h, query)[i]);
      });
    }
    base::add_to(data, e, u, sums);
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
