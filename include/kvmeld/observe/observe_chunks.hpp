// SPDX-License-Identifier: Apache-2.0
// Attention inside chunks of a track: from the queries and the keys alone, without the engine's log-sum-exps.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/softmax.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/observe/observe_base.hpp>
#include <kvmeld/queries/load_bias.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/score.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Adds the attention that observed queries pay inside their own chunks (attention_fold::chunk). A tile is a
/// chunk of a track. Every query whose token lies in the chunk sees all of its entries, later ones too. Of
/// the parameters count scale, softcap, degrees and the rotation of keys. An entry whose logit is no finite
/// number has no part in a query's softmax.
template <class Score, class Keys, class Q> struct observe_chunks_phase : observe_base<Score> {
  using base = observe_base<Score>;
  using base::channels;
  using base::row_block;
  Keys keys;
  attention_params params;
  head_rows<Q> query;

  std::uint32_t tiles(shape const& s) const {
    attention_fold const fold = fold_of(this->score);
    return max_of(1u, ceil_div(s.capacity - min_of(s.capacity, fold.apart), fold.chunk));
  }
  std::size_t scratch_bytes(int) const {
    std::size_t const d = keys.channels(), chunk = most();
    std::size_t const rows = std::size_t{row_block} * this->ledger.extent.queries_per_kv_head;
    return scratch_size(chunk * d * sizeof(float)) + scratch_size(rows * d * sizeof(float)) +
           scratch_size(rows * chunk * sizeof(float)) + scratch_size(rows * sizeof(float)) +
           scratch_size(chunk * channels * sizeof(float)) + scratch_size(chunk * sizeof(float)) +
           rope_scratch(params.rope, keys.channels());
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    constexpr float none = element_traits<float>::lowest;
    ledger_ref const& l = this->ledger;
    std::uint32_t const length = l.length[t.where.index], member = this->source.row_of(t.item);
    std::uint32_t const queries = this->source.batch.queries(member), shown = this->rows_of(member);
    if (shown == 0) return;
    typename base::updates const u = this->updates_of(t.where, shown);
    float const nothing[channels] = {};
    if (t.index == 0) {  // what belongs to no chunk
      team.for_each(min_of(length, u.fold.apart),
                    [&](std::uint32_t s) { this->add(t.where, s, u, nothing); });
    }
    std::uint64_t const at = std::uint64_t{u.fold.apart} + std::uint64_t{t.index} * u.fold.chunk;
    if (at >= length) return;
    slot_t const begin = static_cast<slot_t>(at), end = begin + min_of(u.fold.chunk, length - begin);
    std::uint32_t const tokens = end - begin;
    // The observed rows whose tokens are in the chunk. The last row is that of the last slot.
    std::uint32_t const stride = this->sample.stride;
    std::uint32_t const behind = min_of(shown, ceil_div(length - end, stride));
    std::uint32_t const last = shown - behind;
    std::uint32_t const first = max_of(u.first_row, shown - min_of(shown, (length - 1 - begin) / stride + 1));

    std::uint32_t const group = l.extent.queries_per_kv_head, d = keys.channels(), ld = most();
    float const scale = params.scale_for(d);
    float* const k = team.template scratch<float>(std::size_t{ld} * d);
    float* const q = team.template scratch<float>(std::size_t{row_block} * group * d);
    float* const share = team.template scratch<float>(std::size_t{row_block} * group * ld);  // [row][token]
    float* const part = team.template scratch<float>(std::size_t{row_block} * group);
    float* const sums = team.template scratch<float>(std::size_t{ld} * channels);
    float* const bias = team.template scratch<float>(ld);
    double const* const turns = rope_table(team, params.rope, d);
    keys.load_tile(team, t.where, begin, tokens, 0, d, k, d);
    team.for_each(tokens * channels, [&](std::uint32_t i) { sums[i] = 0.0f; });
    load_bias(team, l, t.where, begin, tokens, bias);
    team.sync();
    rotate_tile(team, params.rope, turns, k, tokens, d, begin,
                entry_array<position_t>{l.position, l.from(t.where, begin)});
    for (std::uint32_t r0 = first; r0 < last; r0 += row_block) {
      std::uint32_t const block = min_of(row_block, last - r0);
      block_of_rows const rows{
          member, queries, this->sample.query_of(queries, r0), group, t.where.kv_head, block * group, stride};
      load_scaled(team, query, rows, scale, d, q);
      team.sync();
      row_products(team, q, rows.rows, d, k, tokens, d, d, share, ld);
      team.for_each(rows.rows * tokens, [&](std::uint32_t i) {
        float& x = share[std::size_t{i / tokens} * ld + i % tokens];
        float const logit = params.logit(x, bias[i % tokens]);
        x = is_finite(logit) ? logit : none;
      });
      team.sync();
      team.for_each(rows.rows, [&](std::uint32_t r) {
        float highest = 0.0f, sum = 0.0f;
        soften(team, share + std::size_t{r} * ld, nullptr, tokens, &highest, &sum, false);
        part[r] = highest > none ? 1.0f / sum : 0.0f;
      });
      team.sync();
      team.for_each(tokens, [&](std::uint32_t j) {
        float of_block[channels] = {};
        for (std::uint32_t r = 0; r < block; ++r) {
          float const weight = this->sample.weight(member, this->sample.query_of(queries, r0 + r));
          this->add_heads(u, r0 + r, tokens, weight, of_block, [&](std::uint32_t h) {
            std::uint32_t const row = r * group + h;
            return part[row] * share[std::size_t{row} * ld + j];
          });
        }
        float* const sum = sums + std::size_t{j} * channels;
        for (std::uint32_t c = 0; c < u.used; ++c) sum[c] = u.fold.add_rows(sum[c], of_block[c]);
      });
      team.sync();
    }
    team.for_each(
        tokens, [&](std::uint32_t j) { this->add(t.where, begin + j, u, sums + std::size_t{j} * channels); });
  }

private:
  /// Most entries of a chunk.
  KVMELD_HD std::uint32_t most() const {
    return min_of(fold_of(this->score).chunk, this->ledger.extent.capacity);
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
