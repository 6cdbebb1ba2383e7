// std::mdspan, cuda::std::mdspan and their like as layouts.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/strided.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The tensor that a strided mdspan of rank 3 to 5 is a view of: extents ([[layer], sequence], head, slot, channel). Layers
/// or sequences that it does not have are one. Keeps the pointer, not the span. Mappings that are not strided (paged ones)
/// have no strides to take: use `paged`.
template <class Mdspan> auto from_mdspan(Mdspan const& m) {
  constexpr std::size_t rank = Mdspan::rank();
  static_assert(
      rank >= 3 && rank <= 5,
      "kvmeld::from_mdspan: the rank is not 3 (head, slot, channel), 4 (sequence first) or 5 (layer first)");
  static_assert(
      Mdspan::is_always_strided(),
      "kvmeld::from_mdspan: the mapping is not always strided; describe the tensor with another layout");
  auto const extent = [&](std::size_t from_the_right) {
    return rank > from_the_right ? static_cast<std::uint32_t>(m.extent(rank - 1 - from_the_right)) : 1u;
  };
  auto const stride = [&](std::size_t from_the_right) {
    return rank > from_the_right ? static_cast<std::int64_t>(m.stride(rank - 1 - from_the_right)) : 0;
  };
  shape s{};
  s.layers = extent(4);
  s.sequences = extent(3);
  s.kv_heads = extent(2);
  s.capacity = extent(1);
  return strided<typename Mdspan::element_type>(
      m.data_handle(), cache_strides{stride(4), stride(3), stride(2), stride(1), stride(0)}, s, extent(0));
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
