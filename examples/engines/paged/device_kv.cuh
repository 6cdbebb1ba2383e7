// K, V, what kvmeld knows of them, and the model in device memory, behind the calls of host_kv. A step sends
// its tokens and lists to the device and gets logits back; queries, keys, values and outputs stay there.
#pragma once

#include "batch.hpp"
#include "device_memory.cuh"
#include "device_model.cuh"
#include "page_pool.hpp"
#include "pool_layout.hpp"

#include <tiny_llama/model.hpp>

#include <kvmeld/cuda.cuh>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace paged_engine {
namespace kernels {

/// Rotates two channels of a row, half a head apart.
__device__ inline float2 turned(float const* row, std::uint32_t i, std::uint32_t half, float2 by) {
  float const a = row[i], b = row[i + half];
  return {a * by.x - b * by.y, b * by.x + a * by.y};
}

/// Rotates a row's query and puts it to its place, in half precision, as the library's attention multiplies
/// it; puts its key, rotated, and its value to the end of their tracks. A block per row.
template <class Ref>
__global__ void turn_and_store(Ref const cache, std::uint32_t layer, batch_row const* rows,
                               float2 const* turns, float const* q, float const* k, float const* v,
                               kvmeld::float16* query) {
  using element = kvmeld::element_traits<kvmeld::float16>;
  batch_row const mine = rows[blockIdx.x];
  kvmeld::shape const s = cache.extent();
  std::uint32_t const d = s.key_dim, half = d / 2;
  float2 const* const by = turns + std::size_t{mine.position} * half;
  for (std::uint32_t i = threadIdx.x; i < s.query_heads() * half; i += blockDim.x) {
    std::uint32_t const head = i / half, pair = i % half;
    float2 const x = turned(q + (std::size_t{blockIdx.x} * s.query_heads() + head) * d, pair, half, by[pair]);
    kvmeld::float16* const to = query + (std::size_t{mine.place} * s.query_heads() + head) * d + pair;
    to[0] = element::from_float(x.x);
    to[half] = element::from_float(x.y);
  }
  for (std::uint32_t i = threadIdx.x; i < s.kv_heads * half; i += blockDim.x) {
    std::uint32_t const head = i / half, pair = i % half;
    kvmeld::track const t = cache.where(layer, mine.slot, head);
    std::uint32_t const slot = cache.length(t) - mine.behind;
    std::size_t const row = (std::size_t{blockIdx.x} * s.kv_heads + head) * d;
    float2 const x = turned(k + row, pair, half, by[pair]);
    auto* const key = cache.keys.locate(t, slot).base;
    auto* const value = cache.values.locate(t, slot).base;
    key[pair] = element::from_float(x.x);
    key[pair + half] = element::from_float(x.y);
    value[pair] = element::from_float(v[row + pair]);
    value[pair + half] = element::from_float(v[row + pair + half]);
  }
}

}  // namespace kernels

/// As host_kv, of all heads. Policies are fixed at compile time here: one of them is enough device code.
template <class Policy> class device_kv {
public:
  using policy = Policy;

  device_kv(tiny_llama::model const& m, kv_sizes sizes, policy const& how, page_pool const& pages)
      : model_(m),
        pool_(m.shape(), sizes),
        pages_(&pages),
        memory_(pool_.elements()),
        host_table_(std::size_t{sizes.slots} * pool_.max_pages(), 0),
        table_(host_table_.size()),
        cache_(kvmeld::cuda_executor<>(), how, {rows(0), rows(1)}, options_of(pool_, table_.data())) {
    check(cudaMemset(memory_.data(), 0, pool_.elements() * sizeof(kvmeld::float16)), "cudaMemset");
    table_.upload(host_table_);
  }
  device_kv(device_kv const&) = delete;
  device_kv& operator=(device_kv const&) = delete;

  void set_page(std::uint32_t slot, std::size_t i, std::uint32_t page) {
    std::size_t const at = slot * pool_.max_pages() + i;
    if (host_table_[at] == static_cast<std::int32_t>(page)) return;
    host_table_[at] = static_cast<std::int32_t>(page);
    changed_ = {std::min(changed_.begin, at), std::max(changed_.end, at + 1)};
  }
  /// What has changed of the tables goes along with the calls that read them.
  auto& cache() {
    if (changed_.begin < changed_.end)
      table_.upload(host_table_.data() + changed_.begin, changed_.end - changed_.begin, changed_.begin);
    changed_ = {};
    return cache_;
  }
  auto const& cache() const { return cache_; }
  pool_layout const& pool() const { return pool_; }

  /// As host_kv::forward. The host's model is not asked: its weights are here.
  template <class Ranks>
  void forward(tiny_llama::model&, std::vector<int> const& tokens, std::vector<int> const& positions,
               std::vector<batch_part> const& batch, bool keeps_queries, Ranks&, std::vector<float>& logits) {
    most_ = 0;
    for (batch_part const& part : batch) most_ = std::max(most_, part.count);
    std::vector<std::uint32_t> slots, counts;
    std::vector<batch_row> in_order;
    place_.clear();
    for (batch_part const& part : batch) {
      auto const first = static_cast<std::uint32_t>(slots.size()) * most_;
      for (std::uint32_t i = 0; i < part.count; ++i) {
        in_order.push_back({static_cast<std::uint32_t>(tokens[part.first + i]),
                            static_cast<std::uint32_t>(positions[part.first + i]), part.slot, part.count - i,
                            first + i});
        place_.push_back(first + i);
      }
      slots.push_back(part.slot);
      counts.push_back(part.count);
    }
    slots_.upload(slots);
    counts_.upload(counts);
    kvmeld::shape const& s = pool_.extent();
    std::size_t const places = slots.size() * most_, layers = keeps_queries ? s.layers : 1;
    query_.resize(layers * places * model_.query_width());
    lse_.resize(layers * places * s.query_heads());
    out_.resize(places * model_.query_width());
    query_layer_ = keeps_queries ? places * model_.query_width() : 0;
    lse_layer_ = keeps_queries ? places * s.query_heads() : 0;
    model_.begin(in_order);
    for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
      model_.project(layer);
      kvmeld::float16* const query = query_.data() + layer * query_layer_;
      float* const lse = lse_.data() + layer * lse_layer_;
      kernels::turn_and_store<<<model_.count(), 128>>>(cache_.ref(), layer, model_.rows(), model_.turns(),
                                                       model_.query(), model_.key(), model_.value(), query);
      kvmeld::query_batch const of{layer, kvmeld::device_list{slots_.data()},
                                   kvmeld::device_list{counts_.data()},
                                   static_cast<std::uint32_t>(slots.size()), most_};
      kvmeld::attention::attend(
          cache_.executor(), of,
          kvmeld::rows_by_token<kvmeld::float16 const>(query, most_, s.query_heads(), s.key_dim),
          cache_.ref(), kvmeld::rows_by_token(out_.data(), most_, s.query_heads(), s.value_dim),
          kvmeld::rows_by_token(lse, most_, s.query_heads(), 1));
      model_.finish_layer(layer, out_.data());
    }
    model_.finish(logits);
  }
  /// Feeds the score with the queries of tokens that were kept, of the last forward().
  void observe(std::uint32_t layer, batch_part const& kept) {
    kvmeld::shape const& s = pool_.extent();
    std::size_t const place = place_[kept.first];
    kvmeld::float16 const* const query = query_.data() + layer * query_layer_ + place * model_.query_width();
    float const* const lse = lse_.data() + layer * lse_layer_ + place * s.query_heads();
    cache_.observe(
        {layer, kept.slot, kept.count},
        kvmeld::rows_by_token<kvmeld::float16 const>(query, kept.count, s.query_heads(), s.key_dim),
        kvmeld::rows_by_token<float const>(lse, kept.count, s.query_heads(), 1));
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
  void write_pages(std::vector<std::uint32_t> const& pages, std::vector<kvmeld::float16> const& saved) {
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
  static kvmeld::cache_options options_of(pool_layout const& pool, std::int32_t const* table) {
    kvmeld::cache_options out{pool.extent()};
    out.ledger_pages = pool.ledger(table);
    return out;
  }
  layout rows(std::size_t side) const { return pool_.rows(side, memory_.data(), table_.data(), nullptr); }

  struct range {
    std::size_t begin = ~std::size_t{0}, end = 0;
  };

  device_model model_;
  pool_layout pool_;
  page_pool const* pages_;
  device_array<kvmeld::float16> memory_;
  std::vector<std::int32_t> host_table_;
  device_array<std::int32_t> table_;
  kvmeld::merged_cache<kvmeld::cuda_executor<>, Policy, layout, layout> cache_;
  range changed_;  ///< of the table

  // Of the step under way.
  std::uint32_t most_ = 0;  ///< rows of a sequence
  std::vector<std::uint32_t>
      place_;  ///< of each row, among those of attention: [sequence of the step][most_]
  std::size_t query_layer_ = 0, lse_layer_ = 0;
  device_array<std::uint32_t> slots_, counts_;
  device_array<kvmeld::float16> query_;
  device_array<float> lse_, out_;
};

}  // namespace paged_engine
