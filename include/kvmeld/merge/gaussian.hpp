// SPDX-License-Identifier: Apache-2.0
// Weights by distance from the pivot (KVMerger section 5.2, definition 5.2).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/merge/merge_function.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace merge {

/// How sigma, the bandwidth of the Gaussian kernel, is found for a set of #S members. The versions of the
/// paper disagree (docs/formulas.md).
enum class bandwidth : std::uint8_t {
  mean_l2,  ///< sum of distances to the remaining members / (#S - 1): scale-free; a pair weighs 0.62 to 0.38
  eq7_000,  ///< sum of squared distances / (sqrt 2 #S): as printed in the first version
  fixed,    ///< a constant; 5 is the best of the paper's second version
};

/// k* = sum w_i k_i and v* = sum w_i v_i with w_i = g_i / sum g, g_i = exp(-||k_p - k_i||^2 / (2 sigma^2)).
/// k_p is the pivot's key. Weights are equal if sigma is 0 (equal keys), and if the squares of distances are
/// too small or too large for float. Degrees add unless `degrees` is off.
struct gaussian {
  bandwidth sigma = bandwidth::mean_l2;  ///< how sigma is found
  float fixed_sigma = 5.0f;              ///< for bandwidth::fixed
  bool degrees = true;  ///< degrees add; off: the degree stays the pivot's, as the paper prints it
  bool scale_values_by_set_size = false;  ///< v* times #S (second version); excludes `degrees`

  static constexpr char const* name = "gaussian";
  static constexpr merge_facts facts{&merge_facts::cooperative};
  constexpr bool carries_degree() const { return degrees; }

  /// Scratch of a tile.
  struct buffers {
    float* pivot;     ///< the pivot's row
    float* rows;      ///< one row per lane
    float* distance;  ///< squared distance of each row to the pivot
    float* shared;    ///< [0] sum of distances, [1] sum of g
  };
  std::size_t scratch_bytes(shape const& s, int lanes) const {
    std::size_t const l = static_cast<std::size_t>(lanes);
    return scratch_size(s.key_dim * sizeof(float)) + scratch_size(l * s.key_dim * sizeof(float)) +
           scratch_size(l * sizeof(float)) + scratch_size(2 * sizeof(float));
  }
  template <class Team> KVMELD_HD buffers prepare(Team const& team, std::uint32_t d) const {
    std::size_t const l = team.lanes();
    float* const pivot = team.template scratch<float>(d);
    float* const rows = team.template scratch<float>(l * d);
    float* const distance = team.template scratch<float>(l);
    return {pivot, rows, distance, team.template scratch<float>(2)};
  }

  template <class Team, class Keys>
  KVMELD_HD void weigh(Team const& team, wave_ref const& wave, Keys const& keys, tile const& t, slot_t pivot,
                       member_list const& m, buffers const& b) const {
    std::uint32_t const d = keys.channels();
    auto const weight = [&](std::uint32_t i) -> float& {  // holds squared distance, then g, then the weight
      return wave.step.key_weight[wave.step.at(t.item, m.slots[i])];
    };
    keys.load_tile(team, t.where, pivot, 1, 0, d, b.pivot, d);
    if (team.lane() == 0) b.shared[0] = b.shared[1] = 0.0f;
    for (std::uint32_t i = 0; i < m.count; i += team.lanes()) {
      std::uint32_t const rows = min_of(m.count - i, team.lanes());
      for (std::uint32_t r = 0; r < rows; ++r) {
        keys.load_tile(team, t.where, m.slots[i + r], 1, 0, d, b.rows + std::size_t{r} * d, d);
      }
      team.sync();
      team.for_each(rows, [&](std::uint32_t r) {
        b.distance[r] = squared_distance(b.pivot, b.rows + std::size_t{r} * d, d);
        weight(i + r) = b.distance[r];
      });
      team.sync();
      if (team.lane() == 0) {  // in member order
        for (std::uint32_t r = 0; r < rows; ++r) {
          b.shared[0] += sigma == bandwidth::mean_l2 ? std::sqrt(b.distance[r]) : b.distance[r];
        }
      }
      team.sync();
    }
    float const width = bandwidth_of(b.shared[0], m.count);
    team.sync();
    if (team.lane() == 0) {
      float total = 0.0f;
      float const spread = 2.0f * width * width;  // if it is 0 or overflows: equal weights
      bool const usable = spread > 0.0f && is_finite(spread);
      for (std::uint32_t i = 0; i < m.count; ++i) {
        float const g = usable ? std::exp(-weight(i) / spread) : 1.0f;
        weight(i) = g;
        total += g;
      }
      b.shared[1] = total;
    }
    team.sync();
    float const size = scale_values_by_set_size ? static_cast<float>(m.count) : 1.0f;
    team.for_each(m.count, [&](std::uint32_t i) {
      std::size_t const e = wave.step.at(t.item, m.slots[i]);
      float const w = weight(i) / b.shared[1];
      wave.step.key_weight[e] = w;
      wave.step.value_weight[e] = w * size;
    });
    team.sync();
  }

  /// Sigma, from the sum of the distances (mean_l2) or of the squared distances (eq7_000) of a set's members
  /// to its pivot. bandwidth::fixed ignores the sum.
  KVMELD_HD float bandwidth_of(float sum, std::uint32_t members) const {
    switch (sigma) {
    case bandwidth::mean_l2: return sum / static_cast<float>(members - 1);
    case bandwidth::eq7_000: return sum / (1.41421356f * static_cast<float>(members));
    case bandwidth::fixed: break;
    }
    return fixed_sigma;
  }

  std::string problem() const {
    if (sigma == bandwidth::fixed && !(fixed_sigma > 0.0f && is_finite(fixed_sigma))) {
      return refusal("policy", "merge::gaussian.fixed_sigma", fixed_sigma, "a finite number above 0");
    }
    if (degrees && scale_values_by_set_size) {
      return refusal("policy", "merge::gaussian.scale_values_by_set_size", "true",
                     "false with merge::gaussian.degrees, because both correct for the size of a set");
    }
    return {};
  }
};

}  // namespace merge
}  // namespace KVMELD_ABI
}  // namespace kvmeld
