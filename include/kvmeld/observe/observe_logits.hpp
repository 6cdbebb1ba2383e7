// SPDX-License-Identifier: Apache-2.0
// Turns logits that attention has left into scores, without reading the keys again.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/softmax.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/observe/observe_base.hpp>
#include <kvmeld/queries/log_sums.hpp>
#include <kvmeld/queries/queries.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Computes p = exp(logit - lse) from logits[sequence][query head][observed query][slot]. The logits are
/// scaled and capped, with the log degree added. Logits that `params` hides (causal, window) are not used.
/// Sums have the order of observe_queries_phase, so that the same logits give scores of the same bits.
template <class Score> struct observe_logits_phase : observe_base<Score> {
  using base = observe_base<Score>;
  using base::channels;
  using base::row_block;
  using base::token_block;
  attention_params params;
  head_rows<float const> logits;
  log_sums<float const> lse;

  std::size_t scratch_bytes(int) const {
    return scratch_size(std::size_t{row_block} * this->ledger.extent.queries_per_kv_head * sizeof(float)) +
           scratch_size(token_block * channels * sizeof(float)) +
           scratch_size(2 * token_block * sizeof(float));
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    observed_tile const s = this->slots_of(t);
    if (s.tokens == 0) return;
    typename base::updates const u = this->updates_of(t.where, s.rows);
    std::uint32_t const group = this->ledger.extent.queries_per_kv_head;
    float* const norm = team.template scratch<float>(std::size_t{row_block} * group);
    float* const sums = team.template scratch<float>(std::size_t{token_block} * channels);
    float* const share = team.template scratch<float>(2 * token_block);
    team.for_each(token_block * channels, [&](std::uint32_t i) { sums[i] = 0.0f; });
    for (std::uint32_t r0 = u.first_row; r0 < s.rows; r0 += row_block) {
      std::uint32_t const block = min_of(row_block, s.rows - r0);
      std::uint32_t const last = this->sample.query_of(s.queries, r0 + block - 1);
      if (params.visible(s.length, s.queries, last) <= s.begin) continue;  // the same for every lane
      auto const head_of = [&](std::uint32_t h) { return t.where.kv_head * group + h; };
      team.sync();
      team.for_each(block * group, [&](std::uint32_t r) {
        norm[r] = lse.read(s.member, head_of(r % group), this->sample.query_of(s.queries, r0 + r / group));
      });
      team.sync();
      auto const row_of = [&](std::uint32_t r, std::uint32_t h) {
        return logits.row(s.member, head_of(h), r0 + r) + s.begin;
      };
      if (is_tuned(team)) {
        for (std::uint32_t r = 0; r < block; ++r) {
          this->add_row(s, params, u, r0 + r, share, sums, [&](std::uint32_t h, float* to) {
            float const n = norm[r * group + h];
            if (is_usable_lse(n)) add_exponentials(team, row_of(r, h), nullptr, s.tokens, n, to);
          });
        }
        continue;
      }
      this->add_rows(team, s, params, u, r0, block, sums,
                     [&](std::uint32_t r, std::uint32_t h, std::uint32_t j) {
                       float const n = norm[r * group + h];
                       return is_usable_lse(n) ? std::exp(row_of(r, h)[j] - n) : 0.0f;
                     });
    }
    team.sync();
    team.for_each(s.tokens, [&](std::uint32_t j) {
      this->add(t.where, s.begin + j, u, sums + std::size_t{j} * channels);
    });
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
