// Policies that compute nothing from rows, on the CUDA backend.
#include "device.cuh"
#include "device/evicting.hpp"

TEST_CASE("evictions on a device are the host's") { device_test::evictions(cuda_test::cuda_device{}); }

TEST_CASE("evictions in tracks that several blocks share are the host's") {
  device_test::long_evictions(cuda_test::cuda_device{});
}
