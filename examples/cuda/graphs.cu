// Two CUDA graphs: one of a decode step, one of a compression. Both are captured once and replayed with other
// sequences, counts and budgets; nothing is allocated and nobody waits while they run.
//   example_cuda_graphs [tokens]
#include "support.cuh"

#include <cstdint>
#include <vector>

int main(int count, char** arguments) {
  if (!examples::has_device()) return examples::no_device;
  std::uint32_t const tokens = count_argument(count, arguments, 1, 1000, 1, 1u << 20);
  kvmeld::shape const extent{2, 4, 8, 4, 128, 128, 640};
  examples::engine_tensors<__nv_bfloat16> engine(extent);
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 1;
  int status = 0;
  {
    kvmeld::merged_cache cache{kvmeld::cuda_executor<>(stream), kvmeld::preset::streaming_llm::with_sinks(),
                               kvmeld::kv{engine.keys(), engine.values()}, kvmeld::cache_options{extent}};
    kvmeld::call_graph<kvmeld::cuda_executor<>> decode(cache.executor()), shrink(cache.executor());
    std::vector<std::uint32_t> running{0, 1, 2, 3}, one(4, 1);
    for (std::uint32_t slot : running) cache.open(slot, 200 + 50 * slot);

    auto const step = [&] {  // for `record` add your own kernels: those that write K and V, and the rest
      cache.append(running, one);
      cache.commit(running, one);
    };
    kvmeld::trigger const full{512, 64};  // compress at 576 entries, down to 512
    std::vector<std::uint32_t> due = running;
    auto const compress = [&] { cache.compress(due, kvmeld::budget::entries(full.limit)); };

    decode.record(step);  // with the most sequences that will come
    shrink.record(compress);
    std::uint32_t compressions = 0;
    for (std::uint32_t token = 1; token < tokens; ++token) {
      if (token == 2 * tokens / 5) {  // a sequence ends; the same graphs go on with three
        running.pop_back();
        one.pop_back();
      }
      decode.replay(step);
      due.clear();
      for (std::uint32_t slot : running) {
        if (cache.due(slot, full)) due.push_back(slot);
      }
      if (due.empty()) continue;
      shrink.replay(compress);
      ++compressions;
    }
    cache.sync_lengths(0);
    std::cout << tokens << " tokens by one graph, " << compressions
              << " compressions by another: sequence 0 has seen " << cache.tokens(0) << " tokens and holds "
              << cache.longest(0) << " entries\n";
    if (cache.executor().error() != cudaSuccess || cache.longest(0) >= full.limit + full.interval) status = 1;
  }
  cudaStreamDestroy(stream);
  return status == 0 && all_printed() ? 0 : 1;
}
