// SPDX-License-Identifier: Apache-2.0
// Compaction and spreading with several blocks per track. One block per track would leave most of a device
// idle where there are few heads.
#pragma once

#include <kvmeld/apply/compact.hpp>
#include <kvmeld/apply/spread_rows.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/row_pieces.hpp>

#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

/// Every tile takes 64 bytes of each row, which are two sectors of memory. Slices do not overlap.
template <class Phase> struct tuned_by_slices {
  static constexpr bool value = true;
  static constexpr std::uint32_t slice = 4;

  template <class Executor> static bool accepts(Phase const& p, Executor const&) {
    return tiles_of_slices(p.layout, slice) > 1;
  }
  template <class Executor, class Source>
  static void enqueue(Executor& executor, Phase p, shape const& extent, std::uint32_t items,
                      Source const& source) {
    p.slice = slice;
    executor.launch(p, extent, items, source);
  }
};

}  // namespace detail

/// Compaction.
template <class Layout>
struct tuned<warps, detail::compact_rows_phase<Layout>,
             std::enable_if_t<has_row_pieces<Layout>::value && !runs_along_tokens<Layout>>>
    : detail::tuned_by_slices<detail::compact_rows_phase<Layout>> {};
/// Spreading.
template <class Layout>
struct tuned<warps, detail::spread_rows_phase<Layout>, std::enable_if_t<has_row_pieces<Layout>::value>>
    : detail::tuned_by_slices<detail::spread_rows_phase<Layout>> {};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
