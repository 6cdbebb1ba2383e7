// Measured guards, and attention of every kind, on Kokkos' default execution space.
#include "device.hpp"
#include "device/probing.hpp"

namespace probed_cases {

TEST_CASE("merges that probes let pass, and how they are read, are on Kokkos as on the host") {
  device_test::probed_merges(kokkos_test::kokkos_device<Kokkos::DefaultExecutionSpace>{});
}

}  // namespace probed_cases
