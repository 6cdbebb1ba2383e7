// Composes rounds into one plan: what a round does to an entry also holds for all that merged into the entry.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// plan = the step applied after the plan. A lane reads the step of any entry but writes only its own entry's
/// plan.
struct compose_phase : slot_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    plan_ref const& plan = wave.plan;
    plan_ref const& step = wave.step;
    std::uint32_t const n = wave.state[t.item].length;
    std::uint32_t const begin = t.index * block;
    if (begin >= n || wave.state[t.item].unchanged != 0) return;
    team.for_each(min_of(block, n - begin), [&](std::uint32_t entry) {
      slot_t const s = begin + entry;
      std::size_t const i = plan.at(t.item, s);
      if (plan.fates[i] == fate::drop || plan.fates[i] == fate::spread) return;
      bool const held = plan.fates[i] == fate::keep;
      std::size_t const root = step.at(t.item, held ? s : plan.target[i]);
      float const key = step.key_weight[root], value = step.value_weight[root],
                  degree = step.degree_weight[root];
      bool const kept = step.fates[root] == fate::keep;
      if (kept && key == 1.0f && value == 1.0f && degree == 1.0f) return;  // most entries in most rounds
      plan.key_weight[i] *= key;
      plan.value_weight[i] *= value;
      plan.degree_weight[i] *= degree;
      if (kept) return;
      plan.fates[i] = !held && step.fates[root] == fate::merge ? plan.fates[i] : step.fates[root];
      plan.target[i] = step.target[root];
      plan.span[i] = step.span[root];
    });
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
