// Segments: neighbouring slots that the same entries are spread over, and that take in the same sum.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Slots [from, until) that the same spread sources reach. `reached`: at least one source reaches them.
struct span_segment {
  slot_t from = 0, until = 0;
  bool reached = false;

  KVMELD_HD bool holds(slot_t p) const { return p >= from && p < until; }
};

/// The segment from slot p on, in a track of n entries. CaM's sources share one span, so that a track has few
/// segments.
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

/// Calls body(segment) for the segments of a track of n entries that spread sources reach, in order.
template <class Body>
KVMELD_HD void for_each_reached(plan_ref const& map, std::uint32_t item, member_list const& spreads,
                                std::uint32_t n, Body body) {
  if (spreads.count == 0) return;
  for (slot_t p = 0; p < n;) {
    span_segment const s = segment_from(map, item, spreads, p, n);
    if (s.reached) body(s);
    p = s.until;
  }
}

/// Whether entries may be spread over slot p: a kept entry that is not a pivot.
KVMELD_HD inline bool may_receive(wave_ref const& wave, plan_ref const& map, std::uint32_t item, slot_t p) {
  return map.fates[map.at(item, p)] == fate::keep && members_of(wave, item, p).count < 2;
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
