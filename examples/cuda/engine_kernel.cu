// An engine's own attention kernel over a merged cache. Its rows are where they always were; `cache.ledger()`
// is one more argument, a struct of plain pointers and numbers that tells lengths, degrees and positions.
// What changes in the kernel: a length per head, and the logarithm of how many tokens an entry stands for is
// added to its logit.
#include "support.cuh"

#include <thrust/device_vector.h>

#include <cfloat>
#include <cmath>
#include <vector>

struct kernel_arguments {
  __nv_bfloat16 const *keys, *values;  // [layers][sequences][tokens][heads][channels]
  float const* query;
  float* out;
  kvmeld::ledger_ref ledger;
};

// One query per head; a block per head, a thread per channel. Short, not fast: two passes over the keys.
__global__ void attend(kernel_arguments const a, std::uint32_t layer, std::uint32_t sequence) {
  extern __shared__ float logits[];
  kvmeld::shape const& s = a.ledger.extent;
  kvmeld::track const head = kvmeld::make_track(s, layer, sequence, blockIdx.x);
  std::uint32_t const d = s.key_dim, length = a.ledger.length[head.index];
  auto const row = [&](__nv_bfloat16 const* tensor, std::uint32_t slot) {
    std::size_t const token = (std::size_t{layer} * s.sequences + sequence) * s.capacity + slot;
    return tensor + (token * s.kv_heads + blockIdx.x) * d;
  };
  float const* const q = a.query + blockIdx.x * d;
  float most = -FLT_MAX, sum = 0.0f, mine = 0.0f;
  for (std::uint32_t t = threadIdx.x; t < length; t += blockDim.x) {
    __nv_bfloat16 const* const key = row(a.keys, t);
    float dot = 0.0f;
    for (std::uint32_t c = 0; c < d; ++c) dot += q[c] * __bfloat162float(key[c]);
    logits[t] = dot * rsqrtf(static_cast<float>(d)) + a.ledger.log_degree(head, t);
  }
  __syncthreads();
  for (std::uint32_t t = 0; t < length; ++t) most = fmaxf(most, logits[t]);
  for (std::uint32_t t = 0; t < length; ++t) {
    float const weight = expf(logits[t] - most);
    sum += weight;
    mine += weight * __bfloat162float(row(a.values, t)[threadIdx.x]);
  }
  a.out[blockIdx.x * d + threadIdx.x] = mine / sum;
}

int main() {
  if (!examples::has_device()) return examples::no_device;
  kvmeld::shape const extent{1, 1, 8, 1, 128, 128, 2048};
  examples::engine_tensors<__nv_bfloat16> engine(extent);
  kvmeld::merged_cache cache{kvmeld::cuda_executor<>(), kvmeld::preset::chelsea::llama3(),
                             kvmeld::kv{engine.keys(), engine.values()}, kvmeld::cache_options{extent}};
  std::size_t const floats = extent.query_heads() * extent.key_dim;
  std::vector<float> first(floats), merged(floats), ours(floats);
  thrust::device_vector<float> queries(floats, 0.1f), outputs(floats);
  float const* const query = thrust::raw_pointer_cast(queries.data());
  float* const out = thrust::raw_pointer_cast(outputs.data());
  auto const run = [&](std::vector<float>& result) {
    attend<<<extent.kv_heads, extent.key_dim, extent.capacity * sizeof(float)>>>(
        {engine.key_rows(), engine.value_rows(), query, out, cache.ledger()}, 0u, 0u);
    thrust::copy(outputs.begin(), outputs.end(), result.begin());
  };
  cache.open(0, 2000);
  run(first);
  cache.compress({0}, kvmeld::budget::ratio(0.5));
  run(merged);
  kvmeld::attention::attend(
      cache.executor(), {0, 0, 1}, kvmeld::rows_by_token(query, 1, extent.query_heads(), extent.key_dim),
      cache.ref(), kvmeld::rows_by_token(out, 1, extent.query_heads(), extent.value_dim));
  thrust::copy(outputs.begin(), outputs.end(), ours.begin());
  float change = 0.0f, apart = 0.0f;
  for (std::size_t i = 0; i < floats; ++i) {
    change = std::fmax(change, std::fabs(merged[i] - first[i]));
    apart = std::fmax(apart, std::fabs(merged[i] - ours[i]));
  }
  std::cout << "merging half of the entries moved the output by at most " << change
            << "; kvmeld's own attention differs from this kernel by " << apart << "\n";
  return apart < 1e-4f && all_printed() ? 0 : 1;
}
