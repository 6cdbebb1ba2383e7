// K, V and what kvmeld knows of them, for all sequences: the part of the engine that would lie on a device.
#pragma once

#include "attend.hpp"
#include "batch.hpp"
#include "page_pool.hpp"

#include <tiny_llama/config.hpp>

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace paged_engine {

/// One allocation [layer][K, V][page][token][head][channel], one table of pages per slot for all layers and heads.
template <class Policy> class host_kv {
public:
  using policy = Policy;

  host_kv(tiny_llama::config const& model, kv_sizes sizes, policy const& how, page_pool const& pages)
      : sizes_(sizes),
        extent_(extent_of(model, sizes)),
        query_heads_(static_cast<std::uint32_t>(model.heads)),
        most_pages_(kvmeld::ceil_div(sizes.capacity, sizes.page_size)),
        shared_(pages.shared()),
        memory_(std::size_t{2} * extent_.layers * side_elements()),
        table_(std::size_t{sizes.slots} * most_pages_, -1),
        cache_(kvmeld::host_executor(), how, tensors(), limits_of(extent_, sizes)) {}
  host_kv(host_kv const&) = delete;
  host_kv& operator=(host_kv const&) = delete;

  /// The engine writes the table; kvmeld reads it.
  void set_page(std::uint32_t slot, std::size_t i, std::uint32_t page) {
    table_[slot * most_pages_ + i] = static_cast<std::int32_t>(page);
  }
  auto& cache() { return cache_; }
  auto const& cache() const { return cache_; }
  std::uint32_t pages_of(std::uint32_t entries) const { return kvmeld::ceil_div(entries, sizes_.page_size); }

  /// Stores new rows at the end of their tracks and attends. Rows are [row][head][channel] of all the model's heads, of
  /// which this rank's are read and written. lse [row][query head of this rank].
  void attend(std::uint32_t layer, std::vector<batch_part> const& batch, float const* q, float const* k,
              float const* v, float* out, float* lse) {
    auto const items = static_cast<int>(batch.size() * extent_.kv_heads);
    std::size_t products = 0;  // few are done before other threads have woken up
    for (batch_part const& part : batch)
      products += std::size_t{part.count} * cache_.longest(part.slot) * extent_.query_heads();
#ifdef _OPENMP
#pragma omp parallel if (products > 8192)
#endif
    {
      head_scratch room;
#ifdef _OPENMP
#pragma omp for schedule(dynamic)
#endif
      for (int item = 0; item < items; ++item) {
        batch_part const& part = batch[static_cast<std::size_t>(item) / extent_.kv_heads];
        attend_head(layer, part, static_cast<std::uint32_t>(item) % extent_.kv_heads, q, k, v, out, lse,
                    room);
      }
    }
  }

  /// Feeds the score with the queries of tokens that were kept.
  void observe(std::uint32_t layer, batch_part const& part, float const* q, float const* lse) {
    std::uint32_t const d = extent_.key_dim, heads = extent_.query_heads();
    std::size_t const first = std::size_t{part.first} * query_heads_ + first_query_head();
    std::int64_t const row = std::int64_t{query_heads_} * d;
    cache_.observe({layer, part.slot, part.count}, kvmeld::head_rows<float const>{q + first * d, 0, d, row},
                   kvmeld::head_rows<float const>{lse + std::size_t{part.first} * heads, 0, 1, heads});
  }

  /// The rows of some pages, of all layers and both sides; and back into others.
  std::vector<kvmeld::half> read_pages(std::vector<std::uint32_t> const& pages) const {
    std::vector<kvmeld::half> rows;
    for_each_page(pages, [&](std::size_t at, std::size_t n) {
      rows.insert(rows.end(), memory_.begin() + static_cast<std::ptrdiff_t>(at),
                  memory_.begin() + static_cast<std::ptrdiff_t>(at + n));
    });
    return rows;
  }
  void write_pages(std::vector<std::uint32_t> const& pages, std::vector<kvmeld::half> const& rows) {
    auto from = rows.begin();
    for_each_page(pages, [&](std::size_t at, std::size_t n) {
      std::copy_n(from, n, memory_.begin() + static_cast<std::ptrdiff_t>(at));
      from += static_cast<std::ptrdiff_t>(n);
    });
  }

  /// Why the tables cannot be right, for sequences of so many entries per slot; empty if they can.
  std::string table_problem(std::vector<std::uint32_t> const& lengths) {
    return kvmeld::validate_pages(rows(0), extent_, sizes_.pages, lengths, table_.size());
  }
  kvmeld::shape const& extent() const { return extent_; }
  std::uint32_t page_size() const { return sizes_.page_size; }
  std::size_t page_bytes() const {
    return std::size_t{2} * extent_.layers * page_elements() * sizeof(kvmeld::half);
  }

private:
  using pool_rows = kvmeld::pool_pages<kvmeld::half>;
  using layout = kvmeld::paged<pool_rows>;

  static kvmeld::shape extent_of(tiny_llama::config const& c, kv_sizes const& sizes) {
    auto const u = [](int x) { return static_cast<std::uint32_t>(x); };
    std::uint32_t const heads = sizes.heads == 0 ? u(c.kv_heads) : sizes.heads;
    return {u(c.layers),   sizes.slots,   heads,         u(c.heads / c.kv_heads),
            u(c.head_dim), u(c.head_dim), sizes.capacity};
  }
  static kvmeld::limits limits_of(kvmeld::shape const& s, kv_sizes const& sizes) {
    kvmeld::limits l{s};
    l.first_kv_head = sizes.first_head;  // so that random draws are those of one rank with all heads
    return l;
  }
  std::size_t page_elements() const {
    return std::size_t{sizes_.page_size} * extent_.kv_heads * extent_.key_dim;
  }
  std::size_t side_elements() const { return sizes_.pages * page_elements(); }
  std::uint32_t first_query_head() const { return sizes_.first_head * extent_.group; }

  layout rows(std::size_t side) {
    std::int64_t const token = std::int64_t{extent_.kv_heads} * extent_.key_dim,
                       page = token * sizes_.page_size;
    kvmeld::page_strides const nhd{page, 2 * page * sizes_.pages, extent_.key_dim, token, 1};
    pool_rows const from(memory_.data() + side * side_elements(),
                         kvmeld::table_rows(table_.data(), most_pages_), shared_);
    return {from, sizes_.page_size, nhd, extent_, extent_.key_dim};
  }
  kvmeld::kv<layout, layout> tensors() { return {rows(0), rows(1)}; }

  void attend_head(std::uint32_t layer, batch_part const& part, std::uint32_t head, float const* q,
                   float const* k, float const* v, float* out, float* lse, head_scratch& room) const {
    auto const ref = cache_.ref();
    kvmeld::track const where = ref.where(layer, part.slot, head);
    std::uint32_t const d = extent_.key_dim, length = ref.length(where), global = sizes_.first_head + head;
    std::uint32_t const kv_heads = query_heads_ / extent_.group;
    for (std::uint32_t i = 0; i < part.count; ++i) {
      auto const key = ref.keys.locate(where, length - part.count + i);
      auto const value = ref.values.locate(where, length - part.count + i);
      std::size_t const from = (std::size_t{part.first + i} * kv_heads + global) * d;
      for (std::uint32_t c = 0; c < d; ++c) {
        key.base[c] = kvmeld::element_traits<kvmeld::half>::from_float(k[from + c]);
        value.base[c] = kvmeld::element_traits<kvmeld::half>::from_float(v[from + c]);
      }
    }
    gather(ref, where, room);
    for (std::uint32_t g = 0; g < extent_.group; ++g) {
      std::uint32_t const own = head * extent_.group + g;
      std::size_t const at = (std::size_t{part.first} * query_heads_ + first_query_head() + own) * d;
      paged_engine::attend({q + at, out + at, lse + std::size_t{part.first} * extent_.query_heads() + own,
                            part.count, query_heads_ * d, extent_.query_heads()},
                           d, room);
    }
  }

  template <class F> void for_each_page(std::vector<std::uint32_t> const& list, F f) const {
    for (std::uint32_t const page : list) {
      for (std::size_t side = 0; side < std::size_t{2} * extent_.layers; ++side) {
        f(side * side_elements() + page * page_elements(), page_elements());
      }
    }
  }

  kv_sizes sizes_;
  kvmeld::shape extent_;
  std::uint32_t query_heads_, most_pages_;
  std::uint8_t const* shared_;
  std::vector<kvmeld::half> memory_;
  std::vector<std::int32_t> table_;
  kvmeld::merged_cache<kvmeld::host_executor, Policy, layout, layout> cache_;
};

}  // namespace paged_engine
