// Measured guards, and attention of every kind, on the CUDA backend.
#include "device.cuh"
#include "device/attended_tiles.hpp"
#include "device/probing.hpp"

TEST_CASE("merges that probes let pass, and how they are read, are on a device as on the host") {
  device_test::probed_merges(cuda_test::cuda_device{});
}

TEST_CASE("tracks of several tiles per warp are attended to on a device as on the host") {
  device_test::attended_tiles(cuda_test::cuda_device{});
}
