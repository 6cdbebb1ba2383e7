// SPDX-License-Identifier: Apache-2.0
// Exponentials of logits, and logarithms of degrees.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>

#include <cmath>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Turns the logits of a row, n >= 1, into weights exp(logit - highest) in place. Adds biases first if `bias`
/// is not null. If `before` is true, *highest and *sum hold the maximum and the sum of the earlier tiles. On
/// return they hold those of all tiles. Returns the factor that rescales earlier sums; 0 if `before` is
/// false. Each lane makes a call of its own; no barrier. The generic form sums in order. The host's tuned
/// form has its own exponential (within 2 units in the last place) and 16 partial sums.
template <class Team>
KVMELD_HD float soften(Team const& team, float* logits, float const* bias, std::uint32_t n, float* highest,
                       float* sum, bool before) {
  float factor = 0.0f;
  if (with_kernels(team, [&](auto const& kernels) {
        factor = kernels.soften(logits, bias, n, highest, sum, before);
      })) {
    return factor;
  }
  for (std::uint32_t t = 0; t < n && bias != nullptr; ++t) logits[t] += bias[t];
  float high = before ? *highest : logits[0];  // not minus infinity: fast-math has none
  for (std::uint32_t t = 0; t < n; ++t) high = max_of(high, logits[t]);
  float total = 0.0f;
  for (std::uint32_t t = 0; t < n; ++t) {
    logits[t] = std::exp(logits[t] - high);
    total += logits[t];
  }
  if (before) factor = std::exp(*highest - high);
  *sum = *sum * factor + total;
  *highest = high;
  return factor;
}

/// out[j] += exp(logits[j] + bias[j] - norm) for j < n; `bias` may be null. Each lane makes a call of its
/// own; no barrier. The exponential of the host's tuned form is within 2 units in the last place.
template <class Team>
KVMELD_HD void add_exponentials(Team const& team, float const* logits, float const* bias, std::uint32_t n,
                                float norm, float* out) {
  if (with_kernels(team, [&](auto const& kernels) { kernels.add_exponentials(logits, bias, n, norm, out); }))
    return;
  for (std::uint32_t j = 0; j < n; ++j)
    out[j] += std::exp((bias == nullptr ? logits[j] : logits[j] + bias[j]) - norm);
}

/// out[i] = log_of_degree(degree[i]) for i < n. Collective; no barrier. The logarithm of the host's tuned
/// form is within 2 units in the last place.
template <class Team>
KVMELD_HD void log_degrees(Team const& team, float const* degree, std::uint32_t n, float* out) {
  if (with_kernels(team, [&](auto const& kernels) { kernels.log_degrees(degree, n, out); })) return;
  team.for_each(n, [&](std::uint32_t i) { out[i] = log_of_degree(degree[i]); });
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
