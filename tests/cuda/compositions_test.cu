// Policies put together at run time, and what sequences live through, on the CUDA backend.
#include "device.cuh"
#include "device/compositions.hpp"
#include "device/sequences.hpp"

using cuda_test::cuda_device;

TEST_CASE("compositions on a device are the host's") { device_test::compositions(cuda_device{}); }

TEST_CASE("a ledger in pages") { device_test::ledgers_in_pages(cuda_device{}); }
TEST_CASE("scores that the engine brings") { device_test::given_scores(cuda_device{}); }

TEST_CASE("beginnings that sequences share are on a device as on the host") {
  device_test::shared_beginnings(cuda_device{});
}

TEST_CASE("a context shifted on a device is the host's") { device_test::shifts(cuda_device{}); }

TEST_CASE("positions dropped on a device are the host's") { device_test::dropped_positions(cuda_device{}); }

TEST_CASE("padded tracks on a device are the host's") { device_test::padded_tracks(cuda_device{}); }

TEST_CASE("notes of pages on a device are the host's") { device_test::pages(cuda_device{}); }

TEST_CASE("tracks of no length, of one entry and full ones on a device are the host's") {
  device_test::extremes(cuda_device{});
}

TEST_CASE("nothing is written beyond a track on a device") { device_test::overfull_tracks(cuda_device{}); }
