// A call that finds no memory leaves a cache as it was: every allocation of every call fails once, on a
// Kokkos space.
#include "device.hpp"

#include "faults/every_call.hpp"

namespace kokkos_faults_cases {

TEST_CASE("every allocation of every call fails once") {
  faults::outcome sum;
  faults::every_call(sum, kvmeld::kokkos_executor<Kokkos::DefaultExecutionSpace>(),
                     kvmeld::preset::h2o::defaults(), faults::usual_limits(false));
  MESSAGE(sum.failures << " failed allocations in " << sum.calls << " calls");
  CHECK(sum.failures > sum.calls);
}

}  // namespace kokkos_faults_cases
