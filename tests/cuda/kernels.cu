// Every kind of kernel once: compiled for several architectures to look at registers, never run.
#include <kvmeld/cuda.cuh>

namespace {

template <class T, class Policy> void instantiate(Policy const& policy, T* rows) {
  kvmeld::shape const extent{2, 2, 2, 2, 128, 128, 256};
  kvmeld::limits sizes{extent};
  sizes.whole_plan = true;
  sizes.members = kvmeld::shares_entries<typename Policy::merge_type>::value ? 512 : 0;
  kvmeld::strided<T> const layout(rows, "LSTHC", extent, 128);
  kvmeld::merged_cache cache{kvmeld::cuda_executor<>(), policy, kvmeld::kv{layout, layout}, sizes};
  auto const q = kvmeld::rows_by_token<T const>(rows, 1, extent.query_heads(), extent.key_dim);
  auto const out = kvmeld::rows_by_token<T>(rows, 1, extent.query_heads(), extent.value_dim);
  cache.open(0, 100);
  cache.append({0}, {1});
  cache.commit({0}, {1});
  cache.observe({0, 0, 1}, q, kvmeld::rows_by_head<float const>(nullptr, 1, 4, 1));
  cache.plan({0}, kvmeld::budget::entries(50));
  cache.apply();
  cache.compress({0}, kvmeld::budget::entries(40));
  cache.fork(0, 1);
  kvmeld::attention::extend(cache.executor(), {}, {0, 0, 1}, q, cache.ref(), out);
  if constexpr (!decltype(cache)::shares) {
    kvmeld::attention::split_keys const split{4, {reinterpret_cast<float*>(rows), 1u << 20}};
    kvmeld::attention::extend(cache.executor(), {}, {0, 0, 1}, q, cache.ref(), out, {}, split);
  }
}

}  // namespace

void every_kernel(__nv_bfloat16* a, __half* b) {
  instantiate(kvmeld::preset::chelsea::llama3(), a);
  instantiate(kvmeld::preset::kvmerger::for_budget(), b);
  instantiate(kvmeld::preset::ems::shared(), a);
  instantiate(kvmeld::preset::cam::over_h2o(), b);
}
