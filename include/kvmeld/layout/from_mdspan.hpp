// std::mdspan, cuda::std::mdspan and their like as layouts.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/layout/strided_view.hpp>

#include <cstddef>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The tensor that a strided mdspan of rank 3 to 5 is a view of: extents ([[layer], sequence], head, slot,
/// channel). Layers or sequences that it does not have are one. Keeps the pointer, not the span. Mappings
/// that are not strided (paged ones) have no strides to take: use `paged`.
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
