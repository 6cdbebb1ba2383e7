// Nearly every kind of kernel once, and every call: compiled for several architectures to look at registers,
// never run.
#include <kvmeld/cuda.cuh>

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace {

template <class T, class Policy> void instantiate(Policy const& policy, T* rows) {
  kvmeld::shape const extent{2, 2, 2, 2, 128, 128, 256};
  kvmeld::cache_options options{extent};
  options.whole_plan = options.stats = true;
  options.members = kvmeld::shares_entries<typename Policy::merge_type>::value ? 512 : 0;
  kvmeld::strided<T> const layout(rows, "LSTHC", extent, 128);
  kvmeld::merged_cache cache{kvmeld::cuda_executor<>(), policy, kvmeld::kv{layout, layout}, options};
  auto const q = kvmeld::rows_by_token<T const>(rows, 1, extent.query_heads(), extent.key_dim);
  auto const out = kvmeld::rows_by_token<T>(rows, 1, extent.query_heads(), extent.value_dim);
  cache.open(0, 100);
  cache.append({0}, {1});
  cache.commit({0}, {1});
  cache.observe({0, 0, 1}, q, kvmeld::rows_by_head<float const>(nullptr, 1, 4, 1), {}, kvmeld::every_nth(10));
  cache.plan({0}, kvmeld::budget::entries(50));
  cache.apply();
  cache.compress({0}, kvmeld::budget::entries(40));
  cache.fork(0, 1);
  cache.observe_rows({0, 0, 1}, kvmeld::rows_by_head<float const>(nullptr, 1, 4, 256));
  cache.truncate(0, 20);
  cache.freeze(0, 2);
  cache.set_rounds(0, 0);
  cache.close(1);
  cache.request_lengths();
  cache.poll_lengths();
  cache.request_stats({0});
  cache.stats_ready();
  kvmeld::attention::attend(cache.executor(), {0, 0, 1}, q, cache.ref(), out);
  kvmeld::attention::split_keys const split{4, {reinterpret_cast<float*>(rows), 1u << 20}};
  kvmeld::attention::attend(cache.executor(), {0, 0, 1}, q, cache.ref(), out, {}, {}, split);
  if constexpr (!decltype(cache)::shares) {
    kvmeld::attention::attend_and_observe(cache, {0, 0, 1}, q, out,
                                          {reinterpret_cast<float*>(rows), 1u << 20});
  }
}

}  // namespace

// Layouts that lie in device memory, plans shared by heads, the bias written out, a graph over two caches.
void every_call(__nv_bfloat16* a, kvmeld::strided<__nv_bfloat16> const* at, cudaStream_t stream) {
  kvmeld::shape const extent{2, 2, 2, 2, 128, 128, 256};
  kvmeld::relocatable<kvmeld::strided<__nv_bfloat16>> const there(at, 128);
  kvmeld::cache_options options{extent};
  options.scope = kvmeld::plan_scope::layer;
  kvmeld::merged_cache cache{kvmeld::cuda_executor<>(stream), kvmeld::preset::chelsea::llama3(),
                             kvmeld::kv{there, there}, options};
  auto other = cache.clone(kvmeld::kv{there, there});
  kvmeld::call_graph<kvmeld::cuda_executor<>> graph(cache.executor());
  graph.include(other.executor());
  graph.record([&] {
    cache.compress({0}, kvmeld::budget::ratio(0.2));
    other.compress({0}, kvmeld::budget::ratio(0.2));
  });
  kvmeld::attention::write_log_degree(cache.executor(), cache.ref(), 0, {0},
                                      kvmeld::rows_by_head(a, 1, 2, 256));
  kvmeld::rope_params rope;
  rope.pairing = kvmeld::rope_pairing::half_split;
  cache.shift(0, 100, rope);
  cache.renumber(0, rope);
  kvmeld::page_metadata<> const notes{
      kvmeld::dense_places(kvmeld::table_rows<std::int32_t>(nullptr, 4), 64, extent), nullptr, nullptr};
  cache.export_page_metadata({0}, notes);
  kvmeld::attention::output_error(cache.executor(), {0, 0, 1},
                                  kvmeld::rows_by_token<__nv_bfloat16 const>(a, 1, 4, 128), cache.ref(),
                                  kvmeld::rows_by_token<float const>(nullptr, 1, 4, 128), {}, {});
  cache.adopt(1, 10, 10, notes);
  kvmeld::attention::write_log_degree_by_page(cache.executor(), cache.ref(), {0}, {10}, notes.places, a);
}

// Attention over 8-bit floats, with queries that become binary16 and with queries that are.
void attend_to_codes(kvmeld::fp8_e4m3* a, kvmeld::fp8_e5m2* b, __nv_bfloat16* q, __half* p) {
  kvmeld::shape const extent{2, 2, 2, 2, 128, 128, 256};
  kvmeld::scaled const keys{kvmeld::strided<kvmeld::fp8_e4m3>(a, "LSTHC", extent, 128), 0.5f};
  kvmeld::strided<kvmeld::fp8_e5m2> const values(b, "LSTHC", extent, 128);
  kvmeld::merged_cache cache{kvmeld::cuda_executor<>(), kvmeld::preset::streaming_llm::with_sinks(),
                             kvmeld::kv{keys, values}, kvmeld::cache_options{extent}};
  auto const attend = [&](auto* rows) {
    using T = std::remove_pointer_t<decltype(rows)>;
    kvmeld::attention::attend(cache.executor(), {0, 0, 1}, kvmeld::rows_by_token<T const>(rows, 1, 4, 128),
                              cache.ref(), kvmeld::rows_by_token(rows, 1, 4, 128));
  };
  attend(q);
  attend(p);
}

void every_kernel(__nv_bfloat16* a, __half* b) {
  instantiate(kvmeld::preset::chelsea::llama3(), a);
  instantiate(kvmeld::preset::kvmerger::for_budget(), b);
  instantiate(kvmeld::preset::ems::shared(), a);
  instantiate(kvmeld::preset::cam::over_h2o(), b);
}

// An engine's cooperative kernel: a template over element types, with a ref and many other members in one
// argument. Compilers of devices have had trouble with less.
template <class Q, class KV, class Out, class Ref> struct engine_arguments {
  Q const *query, *gate[6];
  Out *out, *more[6];
  float *sums, *scratch[4], scale, epsilon, clip[4];
  int const *tables[4], *lengths;
  std::uint32_t layers, sequence, heads, dim, hidden, experts, steps[5];
  bool norm, gelu, tied;
  Ref merged;
  KV const* shared;
  std::uint64_t marks[4];
};
template <class Q, class KV, class Out, class Ref>
__global__ void __launch_bounds__(256)
    engine_step(__grid_constant__ engine_arguments<Q, KV, Out, Ref> const a) {
  namespace cg = cooperative_groups;
  cg::grid_group const grid = cg::this_grid();
  cg::thread_block_tile<32> const warp = cg::tiled_partition<32>(cg::this_thread_block());
  float total = 0.0f;
  for (std::uint32_t layer = 0; layer < a.layers; ++layer) {
    for (std::uint32_t head = blockIdx.x; head < a.merged.extent().kv_heads; head += gridDim.x) {
      kvmeld::track const t = a.merged.where(layer, a.sequence, head);
      for (std::uint32_t s = threadIdx.x; s < a.merged.length(t); s += blockDim.x) {
        auto const key = a.merged.keys.locate(t, s);
        float logit = a.merged.log_degree(t, s) + static_cast<float>(a.merged.position(t, s)) * a.epsilon;
        for (std::uint32_t c = 0; c < a.dim; ++c) {
          logit += kvmeld::element_traits<Q>::to_float(a.query[c]) *
                   kvmeld::element_traits<KV>::to_float(key.base[c * key.channel_stride]);
        }
        total += logit * a.merged.degree(t, s) *
                 kvmeld::element_traits<KV>::to_float(a.merged.values.locate(t, s).base[0]);
      }
    }
    for (int step = 16; step > 0; step /= 2) total += warp.shfl_down(total, step);
    grid.sync();
  }
  if (warp.thread_rank() == 0) a.out[blockIdx.x] = kvmeld::element_traits<Out>::from_float(total);
}
template <class T> using strided_ref = kvmeld::cache_ref<kvmeld::strided<T>, kvmeld::transposed<T>>;
template <class T>
using paged_ref =
    kvmeld::cache_ref<kvmeld::paged<kvmeld::pool_pages<T>>, kvmeld::paged<kvmeld::pool_pages<T>>>;
void engine_steps(engine_arguments<__half, __half, float, strided_ref<__half>> const& a,
                  engine_arguments<float, __nv_bfloat16, __half, paged_ref<__nv_bfloat16>> const& b) {
  engine_step<<<1, 256>>>(a);
  engine_step<<<1, 256>>>(b);
}

// Names of kvmeld and of CUDA's headers do not meet: an engine may use both without a prefix.
using namespace kvmeld;
__global__ void beside_cuda(strided<half> from, strided<nv_bfloat16> into, float16* codes, half2* pairs,
                            ledger_ref ledger) {
  namespace cg = cooperative_groups;
  track const t = make_track(ledger.extent, 0, 0, 0);
  segment<half> const row = from.locate(t, 0);
  for (std::uint32_t c = cg::this_thread_block().thread_rank(); c < from.channels(); c += blockDim.x) {
    float const x = element_traits<half>::to_float(row.base[c]);
    into.locate(t, 0).base[c] = element_traits<nv_bfloat16>::from_float(x);
    codes[c] = element_traits<float16>::from_float(x);
    pairs[c] = half2(row.base[c], row.base[c]);
  }
}
