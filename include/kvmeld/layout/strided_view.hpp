// A layout from another library's strided view of a tensor (an mdspan, a Kokkos::View).
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/strided.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// The tensor at `base` with the last `Rank` axes of (layer, sequence, head, slot, channel); other axes have
/// extent one. Uses view.extent(i), and view.stride(i) in elements.
template <std::size_t Rank, class T, class View> strided<T> strided_view(T* base, View const& view) {
  auto const extent = [&](std::size_t from_the_right) {
    return Rank > from_the_right ? static_cast<std::uint32_t>(view.extent(Rank - 1 - from_the_right)) : 1u;
  };
  auto const stride = [&](std::size_t from_the_right) {
    return Rank > from_the_right ? static_cast<std::int64_t>(view.stride(Rank - 1 - from_the_right)) : 0;
  };
  shape s{};
  s.layers = extent(4);
  s.sequences = extent(3);
  s.kv_heads = extent(2);
  s.capacity = extent(1);
  return {base, cache_strides{stride(4), stride(3), stride(2), stride(1), stride(0)}, s, extent(0)};
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
