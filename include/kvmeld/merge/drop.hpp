// SPDX-License-Identifier: Apache-2.0
// The merge function of eviction: members are dropped, the pivot stays as it is.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/merge/merge_function.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace merge {

/// Drops every entry that would merge or spread. With the identifier `evict_rest` this is plain eviction.
/// With an identifier that makes sets, one entry of each set stays, unchanged.
struct drop {
  static constexpr char const* name = "drop";
  static constexpr merge_facts facts{&merge_facts::drops};
  constexpr bool carries_degree() const { return false; }
  std::size_t scratch_bytes(shape const&, int) const { return 0; }

  KVMELD_HD void weigh(wave_ref const& wave, tile const& t, slot_t pivot, member_list const& m) const {
    for (std::uint32_t i = 0; i < m.count; ++i) {
      if (m.slots[i] == pivot) continue;
      std::size_t const e = wave.step.at(t.item, m.slots[i]);
      wave.step.fates[e] = fate::drop;
      wave.step.target[e] = m.slots[i];
    }
  }
  template <class Team>
  KVMELD_HD void weigh_spans(Team const& team, wave_ref const& wave, tile const& t,
                             member_list const& sources) const {
    team.for_each(sources.count, [&](std::uint32_t i) {
      std::size_t const e = wave.step.at(t.item, sources.slots[i]);
      wave.step.fates[e] = fate::drop;
      wave.step.target[e] = sources.slots[i];
      wave.step.span[e] = 0;
      wave.step.value_weight[e] = 1.0f;
    });
    team.sync();
  }
};

}  // namespace merge
}  // namespace KVMELD_ABI
}  // namespace kvmeld
