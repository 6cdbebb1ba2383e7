// Policies that merge, on the CUDA backend.
#include "device.cuh"
#include "device/merging.hpp"
#include "device/shared_scores.hpp"

using cuda_test::cuda_device;

TEST_CASE("merges on a device are the host's") { device_test::merges(cuda_device{}); }

TEST_CASE("sets ended by gaps, chained or by a threshold are on a device the host's") {
  device_test::sets_otherwise(cuda_device{});
}

TEST_CASE("sets by a threshold for each layer are on a device the host's") {
  device_test::thresholds_per_layer(cuda_device{});
}

TEST_CASE("rounds that hardly any track needs are made where one does") {
  device_test::unlikely_rounds(cuda_device{});
}

TEST_CASE("shared entries on a device are the host's") { device_test::shared_entries(cuda_device{}); }

TEST_CASE("scores of members on a device are the host's") { device_test::scores_of_members(cuda_device{}); }

TEST_CASE("merges of rows that lie anywhere, of wide rows, and of heads with one plan are the host's") {
  device_test::merges_of_shapes(cuda_device{});
}

TEST_CASE("merges in tracks that several blocks share are the host's") {
  device_test::long_merges(cuda_device{});
}
