// SPDX-License-Identifier: Apache-2.0
// Composes rounds into one plan: what a round does to an entry also holds for all that merged into the entry.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/compact_indices.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/merge/sets.hpp>

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
    std::size_t const first = plan.at(t.item, begin), origin = step.at(t.item, 0);
    fate const* const fates = plan.fates + first;
    slot_t const* const target = plan.target + first;
    // The entry that the step acts on: the entry itself, or what it has merged into.
    auto const root_of = [=](std::uint32_t i) { return fates[i] == fate::keep ? begin + i : target[i]; };
    auto const changes_if = [=](auto weighed) {
      return [=](std::uint32_t i) {
        slot_t const root = root_of(i);
        return (fates[i] != fate::drop) & (fates[i] != fate::spread) &
               ((step.fates[origin + root] != fate::keep) | weighed(root));  // few entries in most rounds
      };
    };
    auto const compose = [&](std::uint32_t entry) {
      std::size_t const i = first + entry, root = origin + root_of(entry);
      plan.key_weight[i] *= step.key_weight[root];
      plan.value_weight[i] *= step.value_weight[root];
      plan.degree_weight[i] *= step.degree_weight[root];
      if (step.fates[root] == fate::keep) return;
      bool const held = plan.fates[i] == fate::keep;
      plan.fates[i] = !held && step.fates[root] == fate::merge ? plan.fates[i] : step.fates[root];
      plan.target[i] = step.target[root];
      plan.span[i] = step.span[root];
    };
    std::uint32_t const entries = min_of(block, n - begin);
    if (wave.state[t.item].unlisted == 0) {
      for_each_chosen(team, entries, changes_if(merging_slots(wave, t.item, 0)), compose);
    } else {
      auto const weighed = [=](slot_t root) {
        std::size_t const e = origin + root;
        return (step.key_weight[e] != 1.0f) | (step.value_weight[e] != 1.0f) |
               (step.degree_weight[e] != 1.0f);
      };
      for_each_chosen(team, entries, changes_if(weighed), compose);
    }
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
