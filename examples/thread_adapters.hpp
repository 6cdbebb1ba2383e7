// An engine's threads as kvmeld's loops: call(count, body) runs body(i) once for every i < count.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <cstdint>
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

namespace examples {

/// One thread per part, as an engine has it that starts threads when it needs them.
inline void in_new_threads(std::uint32_t count, kvmeld::part_ref body) {
  std::vector<std::thread> threads;
  for (std::uint32_t i = 1; i < count; ++i) threads.emplace_back(body, i);
  body(0);
  for (std::thread& t : threads) t.join();
}

#if defined(_OPENMP)
inline void by_openmp(std::uint32_t count, kvmeld::part_ref body) {
#pragma omp parallel for schedule(static, 1) num_threads(static_cast <int>(count))
  for (std::uint32_t i = 0; i < count; ++i) body(i);
}
#endif

#if defined(EXAMPLE_TBB)
inline void by_tbb(std::uint32_t count, kvmeld::part_ref body) {
  oneapi::tbb::parallel_for(std::uint32_t{0}, count, body);
}
#endif

#if defined(EXAMPLE_TORCH)
inline void by_torch(std::uint32_t count, kvmeld::part_ref body) {
  at::parallel_for(0, count, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) body(static_cast<std::uint32_t>(i));
  });
}
#endif

#if defined(EXAMPLE_GGML)
/// ggml's threads run graphs. This graph is one operation of the caller's.
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

}  // namespace examples
