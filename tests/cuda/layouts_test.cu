// Engines' layouts on the CUDA backend.
#include "device.cuh"
#include "device/layouts.hpp"

#include <cuda/std/array>
#include <cuda/std/mdspan>

using cuda_test::cuda_device;

namespace {

/// Tensors as cuda::std::mdspan has them.
struct mdspan_device : cuda_device {
  template <class T>
  static auto viewed(T* data, kvmeld::shape const& s, std::uint32_t channels, std::uint32_t row) {
    namespace md = cuda::std;
    using extents = md::dextents<std::size_t, 5>;
    std::size_t const head = std::size_t{s.capacity} * row, sequence = s.kv_heads * head;
    md::array<std::size_t, 5> const strides{s.sequences * sequence, sequence, head, row, 1};
    return kvmeld::from_mdspan(md::mdspan<T, extents, md::layout_stride>(
        data, md::layout_stride::mapping<extents>(
                  extents(s.layers, s.sequences, s.kv_heads, s.capacity, channels), strides)));
  }
};

}  // namespace

TEST_CASE("pages of a pool are on a device as on the host") { device_test::pages_of_engines(cuda_device{}); }

TEST_CASE("quantised rows and rings are on a device as on the host") {
  device_test::quantised_rows(cuda_device{});
}

TEST_CASE("numbers too large for an 8-bit float are counted on a device as on the host") {
  device_test::saturated_rows(cuda_device{});
}

TEST_CASE("rows along tokens and rows that move are on a device as on the host") {
  device_test::rows_elsewhere(cuda_device{});
}

TEST_CASE("tensors per layer, mdspans and values within keys are on a device as on the host") {
  device_test::rows_by_layer(mdspan_device{});
}
