// SPDX-License-Identifier: Apache-2.0
// One tile of keys and values for a block of query rows: the running softmax that all forms of attention use.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_products.hpp>
#include <kvmeld/exec/softmax.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/weighted_rows.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Running softmax of `rows` query rows, in scratch: maximum, sum and weighted values (Milakov and
/// Gimelshein, 2018).
struct softmax_state {
  float* highest;       ///< [rows]
  float* sum;           ///< [rows]
  std::uint32_t* seen;  ///< [rows] not 0: the row saw an entry (a NaN sum cannot tell)
  float* factor;        ///< [rows] factor by which the last tile rescales earlier sums
  float* total;         ///< [rows][value_dim] weighted values

  template <class Team>
  KVMELD_HD softmax_state(Team const& team, std::uint32_t rows, std::uint32_t value_dim)
      : highest(team.template scratch<float>(rows)),
        sum(team.template scratch<float>(rows)),
        seen(team.template scratch<std::uint32_t>(rows)),
        factor(team.template scratch<float>(rows)),
        total(team.template scratch<float>(std::size_t{rows} * value_dim)) {
    team.for_each(rows, [&](std::uint32_t r) {
      highest[r] = 0.0f;
      sum[r] = 0.0f;
      seen[r] = 0;
    });
    team.for_each(rows * value_dim, [&](std::uint32_t i) { total[i] = 0.0f; });
    team.sync();
  }
};

KVMELD_HD constexpr std::size_t softmax_scratch(std::uint32_t rows, std::uint32_t value_dim) {
  return 3 * scratch_size(rows * sizeof(float)) + scratch_size(rows * sizeof(std::uint32_t)) +
         scratch_size(std::size_t{rows} * value_dim * sizeof(float));
}

/// Adds a tile to the running softmax of q[rows][key_dim]. keys(use) calls use with the tile of keys,
/// values(use) with the tile of values (tile_view): each is used as soon as it is loaded. Row r sees the
/// first visible(r) tokens of the tile. logits[rows][tokens] is scratch. finish(r, products, seen) turns the
/// products of a row into logits; `bias` is added to them later where it is not null. Rows that see the same
/// tokens are weighted together. A value that a row does not see is not even multiplied by 0: it may be NaN.
/// Collective; barrier at the end. Orders of summation are those of row_products, soften and
/// add_weighted_rows.
template <class Team, class Keys, class Values, class Finish, class Visible>
KVMELD_HD void attend_tile(Team const& team, float const* q, std::uint32_t rows, Keys keys, Values values,
                           std::uint32_t tokens, std::uint32_t key_dim, std::uint32_t value_dim,
                           float* logits, float const* bias, Finish finish, Visible visible,
                           softmax_state const& state) {
  auto const seen_by = [&](std::uint32_t r) { return min_of(tokens, visible(r)); };
  keys([&](auto const& k) {
    row_products(team, q, rows, key_dim, k.rows, tokens, k.ld, key_dim, logits, tokens,
                 [&](std::uint32_t r, std::uint32_t t) { return t < visible(r); });
  });
  for (std::uint32_t r = 0; r < rows; ++r) finish(r, logits + std::size_t{r} * tokens, seen_by(r));
  team.sync();
  team.for_each(rows, [&](std::uint32_t r) {
    std::uint32_t const seen = seen_by(r);
    if (seen == 0) return;
    state.factor[r] = soften(team, logits + std::size_t{r} * tokens, bias, seen, state.highest + r,
                             state.sum + r, state.seen[r] != 0);
    state.seen[r] = 1;
  });
  team.sync();
  values([&](auto const& v) {
    for (std::uint32_t first = 0, end = 0; first < rows; first = end) {
      std::uint32_t const seen = seen_by(first);
      for (end = first + 1; end < rows && seen_by(end) == seen;) ++end;
      if (seen == 0) continue;
      add_weighted_rows(team, logits + std::size_t{first} * tokens, end - first, tokens, state.factor + first,
                        v.rows, v.ld, seen, value_dim, state.total + std::size_t{first} * value_dim,
                        value_dim);
    }
  });
  team.sync();
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
