// An engine's own attention kernel over a merged cache: `cache.ref()` is an argument like any other. What changes in the
// kernel is one addition: the logarithm of how many tokens an entry stands for.
#include "support.cuh"

#include <cfloat>
#include <cmath>
#include <vector>

// One query per head; a block per head, a thread per channel. Short, not fast: two passes over the keys.
template <class Ref>
__global__ void attend(Ref const cache, std::uint32_t layer, std::uint32_t sequence, float const* query,
                       float* out) {
  extern __shared__ float logits[];
  kvmeld::track const head = cache.where(layer, sequence, blockIdx.x);
  std::uint32_t const d = cache.extent().key_dim, length = cache.length(head);
  float const* const q = query + blockIdx.x * d;
  float most = -FLT_MAX, sum = 0.0f, mine = 0.0f;
  for (std::uint32_t s = threadIdx.x; s < length; s += blockDim.x) {
    auto const row = cache.keys.locate(head, s);
    float dot = 0.0f;
    for (std::uint32_t c = 0; c < d; ++c) dot += q[c] * __bfloat162float(row.base[c * row.channel_stride]);
    logits[s] = dot * rsqrtf(static_cast<float>(d)) + cache.log_degree(head, s);
  }
  __syncthreads();
  for (std::uint32_t s = 0; s < length; ++s) most = fmaxf(most, logits[s]);
  for (std::uint32_t s = 0; s < length; ++s) {
    auto const row = cache.values.locate(head, s);
    float const weight = expf(logits[s] - most);
    sum += weight;
    mine += weight * __bfloat162float(row.base[threadIdx.x * row.channel_stride]);
  }
  out[blockIdx.x * d + threadIdx.x] = mine / sum;
}

int main() {
  if (!examples::has_device()) return examples::no_device;
  kvmeld::shape const extent{1, 1, 8, 1, 128, 128, 2048};
  examples::engine_tensors<__nv_bfloat16> engine(extent);
  kvmeld::merged_cache cache{kvmeld::cuda_executor<>(), kvmeld::preset::chelsea::llama3(),
                             kvmeld::kv{engine.keys(), engine.values()}, kvmeld::limits{extent}};
  std::size_t const floats = extent.query_heads() * extent.key_dim;
  std::vector<float> host(floats, 0.1f), first(floats), merged(floats), ours(floats);
  float *query = nullptr, *out = nullptr;
  if (cudaMalloc(&query, floats * sizeof(float)) != cudaSuccess ||
      cudaMalloc(&out, floats * sizeof(float)) != cudaSuccess)
    return 1;
  cudaMemcpy(query, host.data(), floats * sizeof(float), cudaMemcpyHostToDevice);
  auto const run = [&](std::vector<float>& result) {
    attend<<<extent.kv_heads, extent.key_dim, extent.capacity * sizeof(float)>>>(cache.ref(), 0u, 0u, query,
                                                                                 out);
    cudaMemcpy(result.data(), out, floats * sizeof(float), cudaMemcpyDeviceToHost);
  };
  cache.open(0, 2000);
  run(first);
  cache.compress({0}, kvmeld::budget::ratio(0.5));
  run(merged);
  kvmeld::attention::extend(
      cache.executor(), {}, {0, 0, 1},
      kvmeld::rows_by_token<float const>(query, 1, extent.query_heads(), extent.key_dim), cache.ref(),
      kvmeld::rows_by_token(out, 1, extent.query_heads(), extent.value_dim));
  cudaMemcpy(ours.data(), out, floats * sizeof(float), cudaMemcpyDeviceToHost);
  float change = 0.0f, apart = 0.0f;
  for (std::size_t i = 0; i < floats; ++i) {
    change = std::fmax(change, std::fabs(merged[i] - first[i]));
    apart = std::fmax(apart, std::fabs(merged[i] - ours[i]));
  }
  std::cout << "merging half of the entries moved the output by at most " << change
            << "; kvmeld's own attention differs from this kernel by " << apart << "\n";
  cudaFree(query);
  cudaFree(out);
  return apart < 1e-4f ? 0 : 1;
}
