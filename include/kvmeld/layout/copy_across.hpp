// SPDX-License-Identifier: Apache-2.0
// Copies a row from one track to the same slot of another, for forked sequences.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstdint>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

/// A layout that does not get its row operations from addressed_rows may have
/// `copy_row_across(team, track to, track from, slot_t) const`. It copies raw bits, scales included.
template <class Layout, class = void> struct copies_across : std::false_type {};

template <class Layout>
struct copies_across<Layout, std::void_t<decltype(std::declval<Layout const&>().copy_row_across(
                                 std::declval<serial_team const&>(), track{}, track{}, slot_t{}))>>
    : std::true_type {};

}  // namespace detail

/// Copies row `slot` of track `from` to row `slot` of track `to`. Copies raw bits where the layout allows it.
/// Else decodes the row to `scratch` [channels] and encodes it again; that is exact if encoding a decoded row
/// gives the same row. Collective; barrier at the end.
template <class Team, class Layout>
KVMELD_HD void copy_row_across(Team const& team, Layout const& layout, track to, track from, slot_t slot,
                               [[maybe_unused]] float* scratch) {
  std::uint32_t const d = layout.channels();
  if constexpr (detail::copies_across<Layout>::value) {
    layout.copy_row_across(team, to, from, slot);
  } else if constexpr (has_plain_rows<Layout>::value) {
    auto const x = layout.locate(to, slot);
    auto const y = layout.locate(from, slot);
    team.for_each(d, [&](std::uint32_t c) {
      x.base[std::int64_t{c} * x.channel_stride] = y.base[std::int64_t{c} * y.channel_stride];
    });
  } else {
    layout.load_tile(team, from, slot, 1, 0, d, scratch, d);
    team.sync();
    layout.encode_row(team, to, slot, [&](std::uint32_t c) { return scratch[c]; });
  }
  team.sync();
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
