// One tile of keys and values for a block of query rows: the running softmax that all forms of attention use.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cmath>
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

namespace detail {

/// Adds a tile to the running softmax. keys(use) calls use with the tile of keys. values(use) then calls use
/// with the tile of values, so that each tile is used as soon as it is loaded. Logits are
/// logit(r, t, product), or product + bias[t] where `bias` is not null. With `bias`, keep(r, products, seen)
/// gets the products first. Rows that see the same tokens are weighted together. A value that a row does not
/// see is not even multiplied by 0: it may be NaN.
template <class Kernels, class Keys, class Values, class Logit, class Visible, class Keep>
void attend_tile_tuned(Kernels const& tuned, float const* q, std::uint32_t rows, Keys keys, Values values,
                       std::uint32_t tokens, std::uint32_t key_dim, std::uint32_t value_dim, float* logits,
                       float const* bias, Logit logit, Visible visible, softmax_state const& state,
                       Keep keep) {
  keys([&](auto const& k) {
    tuned.products(q, rows, key_dim, k.rows, tokens, k.ld, key_dim, logits, tokens);
  });
  for (std::uint32_t r = 0; r < rows; ++r) {
    std::uint32_t const seen = min_of(tokens, visible(r));
    if (seen == 0) continue;
    float* const l = logits + std::size_t{r} * tokens;
    if (bias != nullptr) {
      keep(r, l, seen);
    } else {
      for (std::uint32_t t = 0; t < seen; ++t) l[t] = logit(r, t, l[t]);
    }
    state.factor[r] = tuned.soften(l, bias, seen, state.highest + r, state.sum + r, state.seen[r] != 0);
    state.seen[r] = 1;
  }
  values([&](auto const& v) {
    for (std::uint32_t first = 0, end = 0; first < rows; first = end) {
      std::uint32_t const seen = min_of(tokens, visible(first));
      for (end = first + 1; end < rows && min_of(tokens, visible(end)) == seen;) ++end;
      if (seen == 0) continue;
      tuned.add_weighted(logits + std::size_t{first} * tokens, end - first, tokens, state.factor + first,
                         v.rows, v.ld, seen, value_dim, state.total + std::size_t{first} * value_dim);
    }
  });
}

}  // namespace detail

/// Adds a tile to the running softmax: q[rows][key_dim], k[tokens][key_dim], v[tokens][value_dim].
/// logits[rows][tokens] is scratch. logit(r, t, product) turns a dot product into a logit. Row r sees the
/// first visible(r) tokens of the tile. The generic form has a fixed order of summation, and divides rows and
/// channels among lanes. The host's tuned form has its own exponential (within 2 units in the last place) and
/// sums weights in 16 partial sums. Cooperative; barrier at the end.
template <class Team, class Logit, class Visible>
KVMELD_HD void attend_tile(Team const& team, float const* q, std::uint32_t rows, float const* k,
                           float const* v, std::uint32_t tokens, std::uint32_t key_dim,
                           std::uint32_t value_dim, float* logits, Logit logit, Visible visible,
                           softmax_state const& state) {
  if constexpr (has_kernels<Team>::value) {
    if (auto const* const tuned = team.kernels()) {
      return detail::attend_tile_tuned(
          *tuned, q, rows,
          [&](auto use) {
            use(kvmeld::detail::tile_view<float>{k, key_dim});
          },
          [&](auto use) {
            use(kvmeld::detail::tile_view<float>{v, value_dim});
          },
          tokens, key_dim, value_dim, logits, nullptr, logit, visible, state,
          [](std::uint32_t, float const*, std::uint32_t) {});
    }
  }
  team.for_each(rows * tokens, [&](std::uint32_t i) {
    std::uint32_t const r = i / tokens;
    std::uint32_t const t = i % tokens;
    if (t >= visible(r)) return;
    logits[i] = logit(r, t, dot(q + std::size_t{r} * key_dim, k + std::size_t{t} * key_dim, key_dim));
  });
  team.sync();
  team.for_each(rows, [&](std::uint32_t r) {
    float* const l = logits + std::size_t{r} * tokens;
    std::uint32_t const seen = min_of(tokens, visible(r));
    state.factor[r] = 1.0f;
    if (seen == 0) return;
    bool const before = state.seen[r] != 0;
    float high = before ? state.highest[r] : l[0];  // not minus infinity: fast-math has none
    for (std::uint32_t t = 0; t < seen; ++t) high = max_of(high, l[t]);
    float sum = 0.0f;
    for (std::uint32_t t = 0; t < seen; ++t) {
      l[t] = std::exp(l[t] - high);
      sum += l[t];
    }
    float const factor = before ? std::exp(state.highest[r] - high) : 0.0f;
    state.factor[r] = factor;
    state.sum[r] = state.sum[r] * factor + sum;
    state.highest[r] = high;
    state.seen[r] = 1;
  });
  team.sync();
  team.for_each(rows * value_dim, [&](std::uint32_t i) { state.total[i] *= state.factor[i / value_dim]; });
  team.sync();
  for (std::uint32_t r = 0; r < rows; ++r) {
    float const* const p = logits + std::size_t{r} * tokens;
    float* const total = state.total + std::size_t{r} * value_dim;
    std::uint32_t const seen = min_of(tokens, visible(r));
    for (std::uint32_t t = 0; t < seen; ++t) {
      float const weight = p[t];
      float const* const row = v + std::size_t{t} * value_dim;
      team.for_each(value_dim, [&](std::uint32_t c) { total[c] += weight * row[c]; });
    }
  }
  team.sync();
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
