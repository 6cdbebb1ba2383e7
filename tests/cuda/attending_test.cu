// Attention of every kind, on the CUDA backend.
#include "device.cuh"
#include "device/attended_tiles.hpp"
#include "device/attending.hpp"

TEST_CASE("merged entries are attended to in every way on a device as on the host") {
  device_test::attended_merges(cuda_test::cuda_device{});
}

TEST_CASE("tracks of several tiles per warp are attended to on a device as on the host") {
  device_test::attended_tiles(cuda_test::cuda_device{});
}
