// Scores from queries, on the CUDA backend.
#include "device.cuh"
#include "device/merging.hpp"
#include "device/observing.hpp"

TEST_CASE("observed scores on a device are the host's") {
  device_test::observed_scores(cuda_test::cuda_device{});
}

TEST_CASE("merges that follow observed thresholds on a device are the host's") {
  device_test::observed_merges(cuda_test::cuda_device{});
}
