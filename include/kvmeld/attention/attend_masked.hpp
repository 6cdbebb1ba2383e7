// SPDX-License-Identifier: Apache-2.0
// One tile of keys and values where each query row sees any subset of the entries, as a window needs.
#pragma once

#include <kvmeld/attention/attend_tile.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_products.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Adds a tile whose logits[rows][tokens] are already computed for all (r, t) with sees(r, t). Overwrites
/// these logits. Fixed order of summation. Collective; barrier at the end.
template <class Team, class Sees>
KVMELD_HD void attend_logits(Team const& team, std::uint32_t rows, float const* v, std::uint32_t tokens,
                             std::uint32_t value_dim, float* logits, Sees sees, softmax_state const& state) {
  team.for_each(rows, [&](std::uint32_t r) {
    float* const l = logits + std::size_t{r} * tokens;
    bool any = state.seen[r] != 0;
    float high = state.highest[r];
    for (std::uint32_t t = 0; t < tokens; ++t) {
      if (!sees(r, t)) continue;
      high = any ? max_of(high, l[t]) : l[t];
      any = true;
    }
    state.factor[r] = 1.0f;
    if (!any) return;
    float const factor = state.seen[r] != 0 ? std::exp(state.highest[r] - high) : 0.0f;
    float sum = 0.0f;
    for (std::uint32_t t = 0; t < tokens; ++t) {
      if (!sees(r, t)) continue;
      l[t] = std::exp(l[t] - high);
      sum += l[t];
    }
    state.factor[r] = factor;
    state.sum[r] = state.sum[r] * factor + sum;
    state.highest[r] = high;
    state.seen[r] = 1;
  });
  team.sync();
  team.for_each(rows * value_dim, [&](std::uint32_t i) {
    std::uint32_t const r = i / value_dim;
    float const* const p = logits + std::size_t{r} * tokens;
    float total = state.total[i] * state.factor[r];
    for (std::uint32_t t = 0; t < tokens; ++t) {
      if (sees(r, t)) total += p[t] * v[std::size_t{t} * value_dim + i % value_dim];
    }
    state.total[i] = total;
  });
  team.sync();
}

/// Like attend_tile, but row r sees the tokens t with sees(r, t). An entry that a row does not see does not
/// change that row, even if it holds NaN. Fixed order of summation. Collective; barrier at the end.
template <class Team, class Logit, class Sees>
KVMELD_HD void attend_masked(Team const& team, float const* q, std::uint32_t rows, float const* k,
                             float const* v, std::uint32_t tokens, std::uint32_t key_dim,
                             std::uint32_t value_dim, float* logits, Logit logit, Sees sees,
                             softmax_state const& state) {
  row_products(team, q, rows, key_dim, k, tokens, key_dim, key_dim, logits, tokens, sees);
  team.for_each(rows * tokens, [&](std::uint32_t i) {
    std::uint32_t const r = i / tokens, t = i % tokens;
    if (sees(r, t)) logits[i] = logit(r, t, logits[i]);
  });
  team.sync();
  attend_logits(team, rows, v, tokens, value_dim, logits, sees, state);
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
