// The engine's own threads: an executor needs a loop over them, and nothing else. With OpenMP, oneTBB,
// PyTorch and ggml (llama.cpp) where they are, beside the pool that comes with kvmeld.
#include "all_printed.h"
#include "support.hpp"
#include "thread_adapters.hpp"

#include <cstdint>
#include <iostream>
#include <utility>
#include <vector>

namespace {

// Compresses 1,000 tokens to a fifth; returns what K, V and the degrees are then.
std::vector<float> compressed_by(kvmeld::host_executor executor) {
  examples::engine_tensors engine;
  kvmeld::merged_cache cache{std::move(executor), kvmeld::preset::chelsea::llama3(),
                             kvmeld::kv{engine.keys(), engine.values()},
                             kvmeld::cache_options{engine.extent}};
  cache.open(0, 1000);
  cache.compress({0}, kvmeld::budget::ratio(0.2));
  std::vector<float> left = engine.k;
  left.insert(left.end(), engine.v.begin(), engine.v.end());
  auto const ref = cache.ref();
  for (std::uint32_t layer = 0; layer < engine.extent.layers; ++layer) {
    for (std::uint32_t head = 0; head < engine.extent.kv_heads; ++head) {
      kvmeld::track const t = ref.where(layer, 0, head);
      for (kvmeld::slot_t s = 0; s < ref.length(t); ++s) left.push_back(ref.degree(t, s));
    }
  }
  return left;
}

bool same(char const* name, std::vector<float> const& left, std::vector<float> const& wanted) {
  std::cout << name << ": " << (left == wanted ? "the same entries as in one thread\n" : "OTHER ENTRIES\n");
  return left == wanted;
}

}  // namespace

int main() {
  std::vector<float> const one = compressed_by(kvmeld::host_executor(1));  // one thread, no synchronisation

  kvmeld::thread_pool pool;  // one thread per processor; give it to all executors, and use it yourself
  bool good = same("kvmeld's pool", compressed_by(kvmeld::host_executor(pool, pool.size())), one);
  good = same("new threads", compressed_by(kvmeld::host_executor(examples::in_new_threads, 4)), one) && good;
#if defined(_OPENMP)
  good = same("OpenMP", compressed_by(kvmeld::host_executor(examples::by_openmp, 4)), one) && good;
#endif
#if defined(EXAMPLE_TBB)
  good = same("oneTBB", compressed_by(kvmeld::host_executor(examples::by_tbb, 4)), one) && good;
#endif
#if defined(EXAMPLE_TORCH)
  good = same("PyTorch", compressed_by(kvmeld::host_executor(examples::by_torch, 4)), one) && good;
#endif
#if defined(EXAMPLE_GGML)
  ggml_threadpool_params params = ggml_threadpool_params_default(4);
  ggml_threadpool* const threads = ggml_threadpool_new(&params);
  good = same("ggml", compressed_by(kvmeld::host_executor(examples::by_ggml(threads), 4)), one) && good;
  ggml_threadpool_free(threads);
#endif
  return good && all_printed() ? 0 : 1;
}
