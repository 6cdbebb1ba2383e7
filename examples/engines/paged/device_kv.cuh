// K, V and what kvmeld knows of them in device memory, behind the calls of host_kv; the model's matrices stay
// on the host, so that the engine above is the same text.
#pragma once

#include "batch.hpp"
#include "page_pool.hpp"
#include "pool_layout.hpp"

#include <tiny_llama/config.hpp>

#include <kvmeld/cuda.cuh>

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace paged_engine {

inline void check(cudaError_t result, char const* what) {
  if (result != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
}

/// An array in device memory.
template <class T> class device_array {
public:
  explicit device_array(std::size_t count = 0) { resize(count); }
  device_array(device_array const&) = delete;
  device_array& operator=(device_array const&) = delete;
  ~device_array() { cudaFree(data_); }

  /// What was in it is lost where it grows.
  void resize(std::size_t count) {
    if (count <= count_) return;
    cudaFree(data_);
    data_ = nullptr;
    check(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc");
    count_ = count;
  }
  void upload(T const* from, std::size_t count, std::size_t at = 0) {
    resize(at + count);
    check(cudaMemcpy(data_ + at, from, count * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  void download(T* to, std::size_t count, std::size_t at = 0) const {
    check(cudaMemcpy(to, data_ + at, count * sizeof(T), cudaMemcpyDeviceToHost), "download");
  }
  T* data() const { return data_; }

private:
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

/// New rows to the end of their tracks: a block per row of the batch, `part` tells whose it is.
template <class Ref>
__global__ void store_rows(Ref const cache, std::uint32_t layer, batch_part const* parts,
                           std::uint32_t const* part, float const* k, float const* v) {
  using element = kvmeld::element_traits<kvmeld::float16>;
  batch_part const mine = parts[part[blockIdx.x]];
  std::uint32_t const d = cache.extent().key_dim, heads = cache.extent().kv_heads;
  for (std::uint32_t i = threadIdx.x; i < heads * d; i += blockDim.x) {
    kvmeld::track const head = cache.where(layer, mine.slot, i / d);
    std::uint32_t const slot = cache.length(head) - mine.count + (blockIdx.x - mine.first);
    std::size_t const from = std::size_t{blockIdx.x} * heads * d + i;
    cache.keys.locate(head, slot).base[i % d] = element::from_float(k[from]);
    cache.values.locate(head, slot).base[i % d] = element::from_float(v[from]);
  }
}

/// Two channels of a row, by the device's own conversion: keys that turn have them in pairs.
__device__ inline float2 channels_of(kvmeld::float16 const* row, std::uint32_t pair) {
  return __half22float2(reinterpret_cast<__half2 const*>(row)[pair]);
}

/// The engine's own attention: a block per row and query head, with shared memory of attend_bytes(). Lengths
/// are each head's own, and log_degree is the bias.
template <class Ref>
__global__ void attend_rows(Ref const cache, std::uint32_t layer, batch_part const* parts,
                            std::uint32_t const* part, float const* query, float* out, float* lse) {
  extern __shared__ kvmeld::float16 const* value_rows[];
  float* const weights = reinterpret_cast<float*>(value_rows + cache.extent().capacity);
  __shared__ float most, sum;
  std::uint32_t const row = blockIdx.x, d = cache.extent().key_dim, heads = gridDim.y;
  batch_part const mine = parts[part[row]];
  kvmeld::track const head = cache.where(layer, mine.slot, blockIdx.y / cache.extent().queries_per_kv_head);
  std::uint32_t const seen = cache.length(head) - (mine.first + mine.count - 1 - row);
  auto const* const q = reinterpret_cast<float2 const*>(query + (std::size_t{row} * heads + blockIdx.y) * d);
  for (std::uint32_t s = threadIdx.x; s < seen; s += blockDim.x) {
    kvmeld::float16 const* const key = cache.keys.locate(head, s).base;
    float dot = 0.0f;
    for (std::uint32_t i = 0; i < d / 2; ++i) {
      float2 const k = channels_of(key, i), x = q[i];
      dot += x.x * k.x + x.y * k.y;
    }
    weights[s] = dot * rsqrtf(static_cast<float>(d)) + cache.log_degree(head, s);
    value_rows[s] = cache.values.locate(head, s).base;  // looked up once, not for every channel
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    most = -FLT_MAX;
    for (std::uint32_t s = 0; s < seen; ++s) most = fmaxf(most, weights[s]);
  }
  __syncthreads();
  for (std::uint32_t s = threadIdx.x; s < seen; s += blockDim.x) weights[s] = expf(weights[s] - most);
  __syncthreads();
  if (threadIdx.x == 0) {
    sum = 0.0f;
    for (std::uint32_t s = 0; s < seen; ++s) sum += weights[s];
    lse[std::size_t{row} * heads + blockIdx.y] = most + logf(sum);
  }
  __syncthreads();
  auto* const to = reinterpret_cast<float2*>(out + (std::size_t{row} * heads + blockIdx.y) * d);
  for (std::uint32_t i = threadIdx.x; i < d / 2; i += blockDim.x) {
    float2 result{0.0f, 0.0f};
    for (std::uint32_t s = 0; s < seen; ++s) {
      float2 const v = channels_of(value_rows[s], i);
      result.x += weights[s] * v.x;
      result.y += weights[s] * v.y;
    }
    to[i] = {result.x / sum, result.y / sum};
  }
}
/// Its shared memory: a pointer and a weight for every slot.
inline std::size_t attend_bytes(kvmeld::shape const& s) {
  return s.capacity * (sizeof(kvmeld::float16 const*) + sizeof(float));
}

/// As host_kv, of all heads. Policies are fixed at compile time here: one of them is enough device code.
template <class Policy> class device_kv {
public:
  using policy = Policy;

  device_kv(tiny_llama::config const& model, kv_sizes sizes, policy const& how, page_pool const& pages)
      : pool_(model, sizes),
        pages_(&pages),
        memory_(pool_.elements()),
        host_table_(std::size_t{sizes.slots} * pool_.max_pages(), 0),
        table_(host_table_.size()),
        cache_(kvmeld::cuda_executor<>(), how, {rows(0), rows(1)}, kvmeld::cache_options{pool_.extent()}) {
    check(cudaMemset(memory_.data(), 0, pool_.elements() * sizeof(kvmeld::float16)), "cudaMemset");
    upload_tables();
  }
  device_kv(device_kv const&) = delete;
  device_kv& operator=(device_kv const&) = delete;

  void set_page(std::uint32_t slot, std::size_t i, std::uint32_t page) {
    host_table_[slot * pool_.max_pages() + i] = static_cast<std::int32_t>(page);
  }
  /// Tables go along with the calls that read them.
  auto& cache() {
    upload_tables();
    return cache_;
  }
  auto const& cache() const { return cache_; }
  pool_layout const& pool() const { return pool_; }

  void attend(std::uint32_t layer, std::vector<batch_part> const& batch, float const* q, float const* k,
              float const* v, float* out, float* lse) {
    std::vector<std::uint32_t> part;
    for (std::uint32_t i = 0; i < batch.size(); ++i) part.insert(part.end(), batch[i].count, i);
    auto const rows = static_cast<std::uint32_t>(part.size());
    std::uint32_t const heads = pool_.extent().query_heads();
    std::size_t const own = std::size_t{rows} * pool_.extent().kv_heads * pool_.extent().key_dim,
                      all = own * pool_.extent().queries_per_kv_head;
    parts_.upload(batch.data(), batch.size());
    part_.upload(part.data(), rows);
    query_.upload(q, all);
    key_.upload(k, own);
    value_.upload(v, own);
    out_.resize(all);
    lse_.resize(std::size_t{rows} * heads);
    store_rows<<<rows, 128>>>(cache_.ref(), layer, parts_.data(), part_.data(), key_.data(), value_.data());
    attend_rows<<<dim3(rows, heads), 128, attend_bytes(pool_.extent())>>>(
        cache_.ref(), layer, parts_.data(), part_.data(), query_.data(), out_.data(), lse_.data());
    check(cudaGetLastError(), "attend_rows");
    out_.download(out, all);
    lse_.download(lse, std::size_t{rows} * heads);
  }
  void observe(std::uint32_t layer, batch_part const& part, float const* q, float const* lse) {
    std::uint32_t const heads = pool_.extent().query_heads(), d = pool_.extent().key_dim;
    query_.upload(q + std::size_t{part.first} * heads * d, std::size_t{part.count} * heads * d);
    lse_.upload(lse + std::size_t{part.first} * heads, std::size_t{part.count} * heads);
    cache_.observe({layer, part.slot, part.count},
                   kvmeld::rows_by_token<float const>(query_.data(), part.count, heads, d),
                   kvmeld::rows_by_token<float const>(lse_.data(), part.count, heads, 1));
  }

  std::vector<kvmeld::float16> read_pages(std::vector<std::uint32_t> const& pages) const {
    std::vector<kvmeld::float16> out(pool_.elements_of(pages.size()));
    kvmeld::float16* to = out.data();
    pool_.for_each_part(pages, [&](std::size_t at) {
      memory_.download(to, pool_.page_elements(), at);
      to += pool_.page_elements();
    });
    return out;
  }
  void export_page_metadata(std::vector<std::uint32_t> const& pages,
                            std::vector<kvmeld::float16> const& saved) {
    kvmeld::float16 const* from = saved.data();
    pool_.for_each_part(pages, [&](std::size_t at) {
      memory_.upload(from, pool_.page_elements(), at);
      from += pool_.page_elements();
    });
  }
  /// Looks at the host's copy of the tables.
  std::string table_problem(std::vector<std::uint32_t> const& lengths) {
    return kvmeld::validate_pages(pool_.rows(0, memory_.data(), host_table_.data(), pages_->shared()),
                                  pool_.extent(), pool_.sizes().pages, lengths, host_table_.size());
  }

private:
  using layout = pool_layout::rows_type<std::nullptr_t>;

  /// Pages that others use lie in frozen beginnings, so marks would only keep the host from knowing lengths.
  layout rows(std::size_t side) const { return pool_.rows(side, memory_.data(), table_.data(), nullptr); }
  void upload_tables() { table_.upload(host_table_.data(), host_table_.size()); }

  pool_layout pool_;
  page_pool const* pages_;
  device_array<kvmeld::float16> memory_;
  std::vector<std::int32_t> host_table_;
  device_array<std::int32_t> table_;
  kvmeld::merged_cache<kvmeld::cuda_executor<>, Policy, layout, layout> cache_;
  device_array<batch_part> parts_;
  device_array<std::uint32_t> part_;
  device_array<float> query_, key_, value_, out_, lse_;
};

}  // namespace paged_engine
