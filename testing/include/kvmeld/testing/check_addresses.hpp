// SPDX-License-Identifier: Apache-2.0
// Checks a layout's `locate`: segments, run lengths, bounds. Reads and writes no element.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/testing/layout_options.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace testing {

/// Why an address that a layout gives is outside the memory that it may touch; empty if it is inside.
template <class T>
std::string bounds_problem(layout_options const& o, segment<T> const& at, std::uint32_t channels, track t,
                           slot_t s) {
  for (std::uint32_t c : {0u, channels - 1}) {
    auto const address = reinterpret_cast<std::intptr_t>(at.base) +
                         std::int64_t{c} * at.channel_stride * static_cast<std::int64_t>(sizeof(T));
    auto const begin = reinterpret_cast<std::intptr_t>(o.memory);
    auto const last = begin + static_cast<std::int64_t>(o.bytes) - static_cast<std::int64_t>(sizeof(T));
    if (address < begin || address > last) {
      return message(slot_name(t, s), ", channel ", c, " lies at byte ", address - begin,
                     " of memory that has ", o.bytes, ": a stride or the base is wrong");
    }
  }
  return {};
}

/// What is wrong with `locate` of any slot; empty if nothing is, or if the layout has no `locate`.
template <class Layout>
std::string address_problem(Layout const& layout, shape const& extent, layout_options const& o) {
  std::string problem;
  if constexpr (has_locate<Layout>::value) {
    each_track(extent, [&](track t) {
      for (slot_t s = 0; problem.empty() && s < extent.capacity; ++s) {
        auto const at = layout.locate(t, s);
        std::uint32_t const most = extent.capacity - s;
        if (o.memory != nullptr) problem = bounds_problem(o, at, layout.channels(), t, s);
        if (!problem.empty()) return;
        if (at.remaining == 0) {
          problem = slot_name(t, s) + ": locate says that 0 slots remain; it must be at least 1";
        } else if (Layout::token_run == 0 && at.remaining < most) {
          problem = message(slot_name(t, s), ": token_run is 0 (the whole track), but locate says that ",
                            at.remaining, " slots remain of ", most);
        } else if (at.remaining > 1 && most > 1) {
          auto const next = layout.locate(t, s + 1);
          if (next.base != at.base + at.token_stride || next.token_stride != at.token_stride ||
              next.channel_stride != at.channel_stride || next.remaining + 1 < at.remaining) {
            problem = message(slot_name(t, s + 1), " does not lie where locate of slot ", s,
                              " says: its strides are to hold for ", at.remaining, " slots");
          }
        }
      }
    });
  }
  return problem;
}

}  // namespace testing
}  // namespace KVMELD_ABI
}  // namespace kvmeld
