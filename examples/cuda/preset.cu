// A preset on a device: Chelsea shrinks 4,000 cached tokens to a fifth, in place, without waiting for
// anything.
//   example_cuda_preset [tokens, a multiple of 5]
#include "support.cuh"

#include <cstdint>

int main(int count, char** arguments) {
  if (!examples::has_device()) return examples::no_device;
  std::uint32_t const tokens = count_argument(count, arguments, 1, 4000, 500, 1u << 20);
  examples::engine_tensors<__nv_bfloat16> engine(
      {2, 1, 8, 4, 128, 128, tokens});  // yours: any tensors with strides
  cudaStream_t stream = nullptr;        // yours, too

  auto policy = kvmeld::preset::chelsea::llama3();
  kvmeld::merged_cache cache{kvmeld::cuda_executor<>(stream), policy,
                             kvmeld::kv{engine.keys(), engine.values()},
                             kvmeld::cache_options{engine.extent}};
  cache.open(0, tokens);                            // sequence 0 has that many tokens in K and V
  cache.compress({0}, kvmeld::budget::ratio(0.2));  // every layer and head: enqueued on the stream

  cache.sync_lengths(0);  // waits, for this line's sake; request_lengths and poll_lengths do not
  std::cout << "entries left: " << cache.longest(0) << ", after " << cache.rounds(0) << " rounds and "
            << cache.executor().launches() << " launches\n";
  return cache.executor().error() == cudaSuccess && cache.longest(0) == tokens / 5 && all_printed() ? 0 : 1;
}
