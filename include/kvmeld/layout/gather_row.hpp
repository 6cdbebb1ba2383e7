// SPDX-License-Identifier: Apache-2.0
// Copies whole rows between a layout and contiguous memory, by one lane, for kernels that need contiguous
// rows.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// True for layouts with plain rows, and for layouts that have `gather_row(track, slot_t, T*)` and
/// `scatter_row(track, slot_t, T const*)`.
template <class Layout, class = void> struct gathers_rows : has_plain_rows<Layout> {};
template <class Layout>
struct gathers_rows<Layout, std::void_t<decltype(std::declval<Layout const&>().gather_row(
                                track{}, slot_t{}, std::declval<typename Layout::element_type*>()))>>
    : std::true_type {};

namespace detail {

/// Whether a team may have tuned forms for rows of this layout once their channels are contiguous.
template <class Team, class Layout, bool = gathers_rows<Layout>::value>
struct gathers_for_kernels : std::false_type {};
template <class Team, class Layout>
struct gathers_for_kernels<Team, Layout, true>
    : std::bool_constant<may_be_tuned<Team, typename Layout::element_type>> {};

}  // namespace detail

/// Copies raw bits: out[c] = element (slot, c). One lane.
template <class Layout, class T> void gather_row(Layout const& layout, track where, slot_t slot, T* out) {
  if constexpr (has_plain_rows<Layout>::value) {
    segment<T> const s = layout.locate(where, slot);
    if (s.channel_stride == 1) {
      std::memcpy(out, s.base, layout.channels() * sizeof(T));
    } else {
      for (std::uint32_t c = 0; c < layout.channels(); ++c)
        out[c] = s.base[std::int64_t{c} * s.channel_stride];
    }
  } else {
    layout.gather_row(where, slot, out);
  }
}

namespace detail {

/// Copies raw bits: element (slot, c) = row[c]. One lane.
template <class Layout, class T>
void scatter_row(Layout const& layout, track where, slot_t slot, T const* row) {
  if constexpr (has_plain_rows<Layout>::value) {
    segment<T> const s = layout.locate(where, slot);
    if (s.channel_stride == 1) {
      std::memcpy(s.base, row, layout.channels() * sizeof(T));
    } else {
      for (std::uint32_t c = 0; c < layout.channels(); ++c)
        s.base[std::int64_t{c} * s.channel_stride] = row[c];
    }
  } else {
    layout.scatter_row(where, slot, row);
  }
}

/// Hints that a row is read soon, if the team can prefetch.
template <class Team, class Layout>
KVMELD_HD void prefetch_row(Team const& team, Layout const& layout, track where, slot_t slot) {
  if constexpr (gathers_for_kernels<Team, Layout>::value) {
    if (team.lanes() != 1) return;
    if constexpr (has_plain_rows<Layout>::value) {
      auto const s = layout.locate(where, slot);
      if (s.channel_stride == 1) team.prefetch(s.base, layout.channels() * sizeof(*s.base));
    } else {
      layout.prefetch_row(team, where, slot);
    }
  }
}

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
