// SPDX-License-Identifier: Apache-2.0
// The values of evicted entries are added to the values that stay (CaM section 3.3, eq. 9 and 15).
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/merge/merge_function.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace merge {

/// How the merge treats the softmax's denominator, which evictions shrink.
enum class additive_variant : std::uint8_t {
  mass_corrected,  ///< values of targets become weighted means; degrees carry the added mass
  paper,           ///< as the paper prints it: values grow, degrees stay
};

/// Each target k of a span of m entries takes in the values of the evicted entries i. The identifier gives
/// the masks M_i. All values are added at once, as they were before. With r = sum over i of M_i / m:
///   mass_corrected  V_k = (V_k + sum M_i V_i / m) / (1 + r),  degree d_k (1 + r)
///   paper           V_k =  V_k + sum M_i V_i / m,             degree d_k
///
/// mass_corrected: a target's attention A_k grows by the factor 1 + r, whatever its degree. V_i therefore
/// enters the output with mass M_i mean(A_k). This mass is A_i, and nothing is lost, if the targets' mean
/// attention is A_i / M_i. CaM's rate estimates exactly this ratio. (The alternative adds d_i / m to each
/// d_k. It would conserve tokens, but it would be lossless for A_i / d_i = mean(A_k / d_k), which CaM's rate
/// does not compare. It would also pile the whole past onto a window of constant size, and degrees would grow
/// for ever. Here an entry's degree ends at (1 + 1/m)^m < e at most if every step evicts one entry, and at
/// (1 + g/m)^ceil(m/g) if every g-th step evicts g entries.) `paper` returns O / (1 - A_i) in the lossless
/// case, because the paper's theorems do not renormalise.
struct additive {
  additive_variant variant = additive_variant::mass_corrected;  ///< how the denominator is treated

  static constexpr char const* name = "additive";
  static constexpr merge_facts facts{&merge_facts::spreads, &merge_facts::light};
  constexpr bool carries_degree() const { return variant == additive_variant::mass_corrected; }
  std::size_t scratch_bytes(shape const&, int) const { return team_sum_scratch(); }

  template <class Team>
  KVMELD_HD void weigh_spans(Team const& team, wave_ref const& wave, tile const& t,
                             member_list const& sources) const {
    plan_ref const& step = wave.step;
    std::size_t const base = step.at(t.item, 0);
    float* const weight = step.value_weight + base;
    std::size_t const first = base + sources.slots[0];
    std::uint32_t differ = 0;
    team.for_each(sources.count, [&](std::uint32_t i) {
      std::size_t const e = base + sources.slots[i];
      step.value_weight[e] /= static_cast<float>(step.span[e]);
      step.degree_weight[e] = 0.0f;
      differ |= step.target[e] != step.target[first] || step.span[e] != step.span[first] ? 1u : 0u;
    });
    differ = team.reduce(differ, op_max{});
    team.sync();
    if (variant == additive_variant::paper) return;
    float* const partial = team.template scratch<float>(team_partials);
    float const common = 1.0f + team_sum(
                                    team, differ == 0 ? sources.count : 0,
                                    [&](std::uint32_t i) { return weight[sources.slots[i]]; }, partial);
    team.for_each(wave.state[t.item].length, [&](slot_t k) {
      if (step.fates[base + k] != fate::keep || (differ == 0 && !step.reaches(t.item, sources.slots[0], k)))
        return;
      float const grown = differ == 0 ? common : grown_mass(step, t.item, k, sources);
      weight[k] = 1.0f / grown;
      step.degree_weight[base + k] = grown;
    });
    team.sync();
  }

private:
  /// 1 + r for slot k; 1 if no source reaches the slot.
  KVMELD_HD static float grown_mass(plan_ref const& step, std::uint32_t item, slot_t k,
                                    member_list const& sources) {
    float grown = 1.0f;
    for (std::uint32_t i = 0; i < sources.count; ++i) {
      slot_t const source = sources.slots[i];
      if (step.reaches(item, source, k)) grown += step.value_weight[step.at(item, source)];
    }
    return grown;
  }
};

}  // namespace merge
}  // namespace KVMELD_ABI
}  // namespace kvmeld
