// SPDX-License-Identifier: Apache-2.0
// Segments: neighbouring slots that the same entries are spread over, and that take in the same sum.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Slots [from, until) that the same spread sources reach.
struct span_segment {
  slot_t from = 0, until = 0;
};

/// Calls body(segment) for the segments of a track of n entries that spread sources reach, in order. CaM's
/// sources share one span, so that a track has few segments. Collective.
template <class Team, class Body>
KVMELD_HD void for_each_reached(Team const& team, plan_ref const& map, std::uint32_t item,
                                member_list const& spreads, std::uint32_t n, Body body) {
  if (spreads.count == 0) return;
  for (slot_t p = 0; p < n;) {
    std::uint32_t until = n, reached = 0;
    team.for_each(spreads.count, [&](std::uint32_t i) {
      std::size_t const e = map.at(item, spreads.slots[i]);
      slot_t const first = map.target[e], end = first + map.span[e];
      if (p < first) until = min_of(until, first);
      if (p < first || p >= end) return;
      until = min_of(until, end);
      reached = 1;
    });
    until = team.reduce(until, op_min{});
    if (team.reduce(reached, op_max{}) != 0) body(span_segment{p, until});
    p = until;
  }
}

/// Whether entries may be spread over slot p: a kept entry that is not a pivot.
KVMELD_HD inline bool may_receive(wave_ref const& wave, plan_ref const& map, std::uint32_t item, slot_t p) {
  return map.fates[map.at(item, p)] == fate::keep && members_of(wave, item, p).count < 2;
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
