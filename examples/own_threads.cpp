// The engine's own threads: an executor needs a loop over them, and nothing else. With OpenMP, oneTBB,
// PyTorch and ggml (llama.cpp) where they are, beside the pool that comes with kvmeld.
#include "support.hpp"

#include <cstdint>
#include <iostream>
#include <thread>
#include <vector>

#if defined(EXAMPLE_TBB)
#include <oneapi/tbb/parallel_for.h>
#endif
#if defined(EXAMPLE_TORCH)
#include <ATen/Parallel.h>
#endif
#if defined(EXAMPLE_GGML)
#include <ggml-cpu.h>
#include <ggml.h>
#endif

namespace {

// One thread per part, as an engine has it that starts threads when it needs them.
void in_new_threads(std::uint32_t count, kvmeld::part_ref body) {
  std::vector<std::thread> threads;
  for (std::uint32_t i = 1; i < count; ++i) threads.emplace_back(body, i);
  body(0);
  for (std::thread& t : threads) t.join();
}

#if defined(_OPENMP)
void by_openmp(std::uint32_t count, kvmeld::part_ref body) {
#pragma omp parallel for schedule(static, 1) num_threads(static_cast <int>(count))
  for (std::uint32_t i = 0; i < count; ++i) body(i);
}
#endif

#if defined(EXAMPLE_TBB)
void by_tbb(std::uint32_t count, kvmeld::part_ref body) {
  oneapi::tbb::parallel_for(std::uint32_t{0}, count, body);
}
#endif

#if defined(EXAMPLE_TORCH)
void by_torch(std::uint32_t count, kvmeld::part_ref body) {
  at::parallel_for(0, count, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) body(static_cast<std::uint32_t>(i));
  });
}
#endif

#if defined(EXAMPLE_GGML)
// ggml's threads run graphs. This graph is one operation of the caller's.
class by_ggml {
public:
  explicit by_ggml(ggml_threadpool* threads) : threads_(threads) {}
  void operator()(std::uint32_t count, kvmeld::part_ref body) const {
    struct job {
      std::uint32_t count;
      kvmeld::part_ref body;
    } now{count, body};
    ggml_context* const context =
        ggml_init({ggml_tensor_overhead() * 4 + ggml_graph_overhead_custom(4, false) + 256, nullptr, false});
    ggml_tensor* const none = ggml_new_tensor_1d(context, GGML_TYPE_F32, 1);
    auto const parts = [](ggml_tensor*, ggml_tensor const*, int thread, int threads, void* what) {
      job const& j = *static_cast<job const*>(what);
      for (auto i = static_cast<std::uint32_t>(thread); i < j.count; i += static_cast<std::uint32_t>(threads))
        j.body(i);
    };
    ggml_cgraph* const graph = ggml_new_graph_custom(context, 4, false);
    ggml_build_forward_expand(graph, ggml_map_custom1_inplace(context, none, parts, GGML_N_TASKS_MAX, &now));
    ggml_cplan plan = ggml_graph_plan(graph, static_cast<int>(count), threads_);
    ggml_graph_compute(graph, &plan);
    ggml_free(context);
  }

private:
  ggml_threadpool* threads_;
};
#endif

// Compresses 1,000 tokens to a fifth; returns the first key and the degrees that are left of each track.
std::vector<float> compressed_by(kvmeld::host_executor executor) {
  examples::engine_tensors engine;
  kvmeld::merged_cache cache{std::move(executor), kvmeld::preset::chelsea::llama3(),
                             kvmeld::kv{engine.keys(), engine.values()},
                             kvmeld::cache_options{engine.extent}};
  cache.open(0, 1000);
  cache.compress({0}, kvmeld::budget::ratio(0.2));
  std::vector<float> left;
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
  good = same("new threads", compressed_by(kvmeld::host_executor(in_new_threads, 4)), one) && good;
#if defined(_OPENMP)
  good = same("OpenMP", compressed_by(kvmeld::host_executor(by_openmp, 4)), one) && good;
#endif
#if defined(EXAMPLE_TBB)
  good = same("oneTBB", compressed_by(kvmeld::host_executor(by_tbb, 4)), one) && good;
#endif
#if defined(EXAMPLE_TORCH)
  good = same("PyTorch", compressed_by(kvmeld::host_executor(by_torch, 4)), one) && good;
#endif
#if defined(EXAMPLE_GGML)
  ggml_threadpool_params params = ggml_threadpool_params_default(4);
  ggml_threadpool* const threads = ggml_threadpool_new(&params);
  good = same("ggml", compressed_by(kvmeld::host_executor(by_ggml(threads), 4)), one) && good;
  ggml_threadpool_free(threads);
#endif
  return good ? 0 : 1;
}
