// SPDX-License-Identifier: Apache-2.0
// Kokkos::View as a layout.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/layout/strided.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Makes a layout from a View of rank 3 to 5 with the extents ([[layer], sequence], head, slot, channel). The
/// View has LayoutRight, LayoutLeft or LayoutStride, or is a subview of one. A View without layers or
/// sequences has one of each. The layout keeps the pointer and counts no reference: the View, or another of
/// the same allocation, must outlive it. `Space` is where the cache's phases run; a View that it cannot reach
/// is refused at compile time.
template <class Space = Kokkos::DefaultExecutionSpace, class View> auto from_view(View const& view) {
  constexpr auto rank = static_cast<std::size_t>(View::rank);
  using layout = typename View::array_layout;
  static_assert(
      rank >= 3 && rank <= 5,
      "kvmeld::from_view: the rank is not 3 (head, slot, channel), 4 (sequence first) or 5 (layer first)");
  static_assert(std::is_same<layout, Kokkos::LayoutRight>::value ||
                    std::is_same<layout, Kokkos::LayoutLeft>::value ||
                    std::is_same<layout, Kokkos::LayoutStride>::value,
                "kvmeld::from_view: the View is not of LayoutRight, LayoutLeft or LayoutStride");
  static_assert(!std::is_const<typename View::value_type>::value,
                "kvmeld::from_view: the View's elements are const, but merging writes them");
  static_assert(Kokkos::SpaceAccessibility<Space, typename View::memory_space>::accessible,
                "kvmeld::from_view: the execution space cannot reach the View's memory space");
  return detail::strided_view<rank>(view.data(), view);
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
