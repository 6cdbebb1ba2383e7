// Caches whose type is hidden, on the CUDA backend.
#include "device.cuh"
#include "device/any.hpp"

TEST_CASE("calls through any_cache are on a device as on the host") {
  device_test::any_caches(cuda_test::cuda_device{});
}
