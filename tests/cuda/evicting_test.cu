// Policies that only evict, and their scores of rows, on the CUDA backend.
#include "device.cuh"
#include "device/evicting.hpp"
#include "device/row_scores.hpp"

TEST_CASE("evictions on a device are the host's") { device_test::evictions(cuda_test::cuda_device{}); }

TEST_CASE("evictions in tracks that several blocks share are the host's") {
  device_test::long_evictions(cuda_test::cuda_device{});
}

TEST_CASE("scores of rows are the host's, however many blocks share a track") {
  device_test::row_scores(cuda_test::cuda_device{});
}

TEST_CASE("calls come from a thread that has another device current") {
  int devices = 0;
  REQUIRE(cudaGetDeviceCount(&devices) == cudaSuccess);
  if (devices < 2) {
    MESSAGE("not tried: there is one device");
    return;
  }
  using device_test::extent;
  device_test::made_for const now({1, 1, 1, 1, 16, 8, 300});
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  {
    device_test::twins<cuda_test::cuda_device, __half, kvmeld::preset::streaming_llm::type> pair(
        cuda_test::cuda_device{stream}, kvmeld::preset::streaming_llm::with_sinks(3), 3);
    int current = 0;
    REQUIRE(cudaSetDevice(1) == cudaSuccess);
    pair.both([&](auto& c) {
      c.open(0, 200);
      c.compress({0}, kvmeld::budget::entries(90));
      c.append({0}, {3});
      c.commit({0}, {3});
    });
    auto copy = pair.device().executor();  // its staging is memory of the same device
    CHECK(copy.error() == cudaSuccess);
    pair.device().sync_lengths(0);
    CHECK(pair.device().executor().error() == cudaSuccess);
    REQUIRE(cudaGetDevice(&current) == cudaSuccess);
    CHECK(current == 1);
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    pair.check(0);
  }
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}
