// Engines' layouts on the CUDA backend.
#include "device.cuh"
#include "device/layouts.hpp"

using cuda_test::cuda_device;

TEST_CASE("pages of a pool are on a device as on the host") { device_test::pages_of_engines(cuda_device{}); }

TEST_CASE("quantised rows and rings are on a device as on the host") {
  device_test::quantised_rows(cuda_device{});
}

TEST_CASE("rows along tokens and rows that move are on a device as on the host") {
  device_test::rows_elsewhere(cuda_device{});
}
