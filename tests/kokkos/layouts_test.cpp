// Engines' layouts on Kokkos' default execution space.
#include "device.hpp"
#include "device/layouts.hpp"

namespace layouts_cases {

using device = kokkos_test::kokkos_device<Kokkos::DefaultExecutionSpace>;

TEST_CASE("pages of a pool are on Kokkos as on the host") { device_test::pages_of_engines(device{}); }

TEST_CASE("quantised rows and rings are on Kokkos as on the host") { device_test::quantised_rows(device{}); }

TEST_CASE("rows along tokens and rows that move are on Kokkos as on the host") {
  device_test::rows_elsewhere(device{});
}

}  // namespace layouts_cases
