// Caches whose type is hidden, on Kokkos' default execution space.
#include "device.hpp"
#include "device/any.hpp"

namespace any_cases {

TEST_CASE("calls through any_cache are on Kokkos as on the host") {
  device_test::any_caches(kokkos_test::kokkos_device<Kokkos::DefaultExecutionSpace, false>{});
}

}  // namespace any_cases
