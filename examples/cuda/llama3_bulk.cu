// A cache of Llama-3-8B's shape, all 32 layers of 65,536 tokens, compressed to 20 %: the time of each group
// of layers, and of all of them over that of copying as many bytes on the device.
#include "support.cuh"

#include <cstdint>
#include <iomanip>

namespace {

class stopwatch {
public:
  explicit stopwatch(cudaStream_t stream) : stream_(stream) {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
    cudaEventRecord(begin_, stream_);
  }
  stopwatch(stopwatch const&) = delete;
  stopwatch& operator=(stopwatch const&) = delete;
  ~stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  float milliseconds() {
    float ms = 0.0f;
    cudaEventRecord(end_, stream_);
    cudaEventSynchronize(end_);
    cudaEventElapsedTime(&ms, begin_, end_);
    return ms;
  }

private:
  cudaStream_t stream_;
  cudaEvent_t begin_, end_;
};

}  // namespace

int main(int count, char** arguments) {
  if (!examples::has_device()) return examples::no_device;
  constexpr std::uint32_t group = 4;
  std::uint32_t const tokens = count_argument(count, arguments, 1, 65536, 512, 1u << 20);
  std::uint32_t const layers = count_argument(count, arguments, 2, 32, group, 1024);
  if (layers % group != 0) {
    std::cerr << "llama3_bulk: " << layers << " layers; they must be a multiple of " << group << "\n";
    return 2;
  }
  kvmeld::shape const extent{group, 1, 8, 4, 128, 128, tokens};
  examples::engine_tensors<__nv_bfloat16> engine(extent);
  if (!engine.there()) {
    std::cout << "SKIPPED: too little device memory for " << 2 * engine.bytes()
              << " bytes; give fewer tokens: llama3_bulk 16384\n";
    return examples::no_device;
  }
  auto const policy = kvmeld::preset::chelsea::llama3();
  kvmeld::budget const fifth = kvmeld::budget::ratio(0.2);
  float all = 0.0f;
  // Groups of layers one after another in the same memory: 8.6 GB of K and V pass through 1.1.
  kvmeld::merged_cache cache{kvmeld::cuda_executor<>(), policy, kvmeld::kv{engine.keys(), engine.values()},
                             kvmeld::cache_options{extent}};
  cudaStream_t const stream = cache.executor().stream();
  std::cout << std::fixed << std::setprecision(2);
  for (std::uint32_t first = 0; first < layers; first += group) {
    std::size_t const launched = cache.executor().launches();
    stopwatch watch(stream);
    cache.open(0, tokens);
    cache.compress({0}, fifth);
    float const ms = watch.milliseconds();
    all += ms;
    std::cout << "\rlayers " << first << "-" << first + group - 1 << " of " << layers << ": " << ms << " ms, "
              << cache.executor().launches() - launched << " launches " << std::flush;
    cache.sync_lengths(0);
    if (cache.executor().error() != cudaSuccess || cache.longest(0) != tokens / 5) {
      std::cout << "\n"
                << cudaGetErrorString(cache.executor().error()) << ", " << cache.longest(0) << " entries\n";
      return 1;
    }
    cache.close(0);
    examples::fill(stream, engine.key_rows(), engine.count(), extent.key_dim, first);
  }
  stopwatch copy(stream);
  cudaMemcpyAsync(const_cast<void*>(engine.values().data()), engine.keys().data(), engine.bytes(),
                  cudaMemcpyDeviceToDevice, stream);
  float const bound = copy.milliseconds() * 2 * layers / group;
  std::cout << "\nall " << layers << " layers: " << all << " ms, " << all / bound
            << " times a copy of K and V on the device (" << bound << " ms)\n";
  return all_printed() ? 0 : 1;
}
