// Calls replayed by CUDA graphs leave what the host's calls leave.
#include "device.cuh"
#include "device/twins.hpp"

namespace {

// 1,000 steps with lists of any length, compressed whenever a sequence has grown.
template <class Policy> void replays(Policy const& policy) {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  {
    cuda_test::cuda_device const on{stream};
    device_test::twins<cuda_test::cuda_device, __nv_bfloat16, Policy> pair(on, policy, 23);
    auto& host = pair.host();
    auto& device = pair.device();
    pair.both([](auto& c) {
      for (std::uint32_t slot : {0u, 1u, 2u}) c.open(slot, 100 + 20 * slot, 0, kvmeld::sequence_id{slot});
    });
    kvmeld::call_graph<kvmeld::cuda_executor<>> step(device.executor()), shrink(device.executor());
    device_test::noise n(5);
    std::uint32_t compressions = 0;
    for (int i = 0; i < 1000; ++i) {
      std::vector<std::uint32_t> slots, counts, accepted;
      for (std::uint32_t slot : {0u, 1u, 2u}) {
        bool const first = i == 0;
        if (!first && n.next() % 4 == 0) continue;
        slots.push_back(slot);
        counts.push_back(first ? 3 : (n.next() >> 8) % 4);
        accepted.push_back((n.next() >> 8) % (counts.back() + 1));
      }
      auto const calls = [&](auto& c) {
        c.append(slots, counts);
        c.commit(slots, accepted);
      };
      calls(host);
      if (i == 0) {
        step.record([&] { calls(device); });
      } else {
        step.replay([&] { calls(device); });
      }
      std::vector<std::uint32_t> due;
      for (std::uint32_t slot : {0u, 1u, 2u}) {
        if (compressions == 0 ? i == 40 : device.length_bound(slot) > 220) due.push_back(slot);
      }
      if (!due.empty()) {
        auto const budget = kvmeld::budget::entries(compressions == 0 ? 60 : 60 + n.next() % 100);
        auto const compress = [&](auto& c) { c.compress(due, budget, kvmeld::shortfall::evict_lowest); };
        compress(host);
        if (compressions++ == 0) {
          shrink.record([&] { compress(device); });
        } else {
          shrink.replay([&] { compress(device); });
        }
      }
      if (i % 50 == 20) device.request_lengths();
      device.poll_lengths();
      CHECK(cudaPeekAtLastError() == cudaSuccess);  // not ready is no error
      for (std::uint32_t slot : {0u, 1u, 2u}) REQUIRE(device.length_bound(slot) >= host.longest(slot));
      if (i % 100 == 99) {
        for (std::uint32_t slot : {0u, 1u, 2u}) pair.check(slot);
      }
    }
    CHECK(compressions > 5);
  }
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

}  // namespace

TEST_CASE("graphs replayed a thousand times leave what eager calls leave") {
  using kvmeld::quantity;
  replays(kvmeld::preset::streaming_llm::with_sinks());
  replays(kvmeld::preset::chelsea::with_schedule({0.45, 0.05, 3, 0.05}, quantity::entries(2),
                                                 quantity::entries(6)));
}

TEST_CASE("a replay needs a recording") {
  kvmeld::cuda_executor<> executor;
  kvmeld::call_graph<kvmeld::cuda_executor<>> graph(executor);
  CHECK_THROWS_WITH(graph.replay([] {}), "replay: graph is empty; it must be recorded first (call record)");
}
