// Engines' layouts on Kokkos' default execution space.
#include "device.hpp"
#include "device/layouts.hpp"

namespace layouts_cases {

using space = Kokkos::DefaultExecutionSpace;
using device = kokkos_test::kokkos_device<space>;

namespace {

/// Tensors as Views have them.
struct viewing_device : device {
  template <class T>
  static auto viewed(T* data, kvmeld::shape const& s, std::uint32_t channels, std::uint32_t row) {
    std::size_t const head = std::size_t{s.capacity} * row, sequence = s.kv_heads * head;
    Kokkos::LayoutStride const strides(s.layers, s.sequences * sequence, s.sequences, sequence, s.kv_heads,
                                       head, s.capacity, row, channels, 1);
    return kvmeld::from_view(Kokkos::View<T*****, Kokkos::LayoutStride, space::memory_space>(data, strides));
  }
};

}  // namespace

TEST_CASE("pages of a pool are on Kokkos as on the host") { device_test::pages_of_engines(device{}); }

TEST_CASE("quantised rows and rings are on Kokkos as on the host") { device_test::quantised_rows(device{}); }

TEST_CASE("numbers too large for an 8-bit float are counted on Kokkos as on the host") {
  device_test::saturated_rows(device{});
}

TEST_CASE("rows along tokens and rows that move are on Kokkos as on the host") {
  device_test::rows_elsewhere(device{});
}

TEST_CASE("tensors per layer, Views and values within keys are on Kokkos as on the host") {
  device_test::rows_by_layer(viewing_device{});
}

}  // namespace layouts_cases
