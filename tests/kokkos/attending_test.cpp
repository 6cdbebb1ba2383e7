// Attention of every kind, on Kokkos' default execution space.
#include "device.hpp"
#include "device/attending.hpp"

namespace attending_cases {

TEST_CASE("merged entries are attended to in every way on Kokkos as on the host") {
  device_test::attended_merges(kokkos_test::kokkos_device<Kokkos::DefaultExecutionSpace>{});
}

}  // namespace attending_cases
