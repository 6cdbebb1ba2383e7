// SPDX-License-Identifier: Apache-2.0
// Layouts from std::mdspan, cuda::std::mdspan and similar types.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/layout/strided.hpp>

#include <cstddef>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A layout of the tensor that a strided mdspan of rank 3 to 5 views. Its extents are ([[layer], sequence],
/// head, slot, channel). If it has no layer or sequence, there is one of them. The layout keeps the pointer,
/// not the span. For mappings without strides (paged ones), use `paged`.
template <class Mdspan> auto from_mdspan(Mdspan const& m) {
  constexpr std::size_t rank = Mdspan::rank();
  static_assert(
      rank >= 3 && rank <= 5,
      "kvmeld::from_mdspan: the rank is not 3 (head, slot, channel), 4 (sequence first) or 5 (layer first)");
  static_assert(
      Mdspan::is_always_strided(),
      "kvmeld::from_mdspan: the mapping is not always strided; describe the tensor with another layout");
  return detail::strided_view<rank>(m.data_handle(), m);
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
