// Neighbouring slots that the same entries are spread over: what flows into one flows into all of them.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The slots [from, until) are reached by the same spread sources, by some or by none.
struct span_segment {
  slot_t from = 0, until = 0;
  bool reached = false;

  KVMELD_HD bool holds(slot_t p) const { return p >= from && p < until; }
};

/// The segment from slot p on, in a track of n entries. CaM's sources share one span, so that a track has few.
KVMELD_HD inline span_segment segment_from(plan_ref const& map, std::uint32_t item,
                                           member_list const& spreads, slot_t p, std::uint32_t n) {
  span_segment s{p, n, false};
  for (std::uint32_t i = 0; i < spreads.count; ++i) {
    std::size_t const e = map.at(item, spreads.slots[i]);
    slot_t const first = map.target[e], end = first + map.span[e];
    if (p < first) s.until = min_of(s.until, first);
    if (p < first || p >= end) continue;
    s.until = min_of(s.until, end);
    s.reached = true;
  }
  return s;
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
