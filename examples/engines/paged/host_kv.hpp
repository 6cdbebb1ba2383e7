// K, V and what kvmeld knows of them, for all sequences: the part of the engine that would lie on a device.
#pragma once

#include "attend.hpp"
#include "batch.hpp"
#include "page_pool.hpp"
#include "pool_layout.hpp"

#include <tiny_llama/model.hpp>
#include <tiny_llama/threads.hpp>

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace paged_engine {

/// One pool, and one table of pages per slot for all layers and heads.
template <class Policy> class host_kv {
public:
  using policy = Policy;

  host_kv(tiny_llama::model const& m, kv_sizes sizes, policy const& how, page_pool const& pages)
      : pool_(m.shape(), sizes),
        query_heads_(static_cast<std::uint32_t>(m.shape().heads)),
        shared_(pages.shared()),
        memory_(pool_.elements()),
        table_(std::size_t{sizes.slots} * pool_.max_pages(), -1),
        cache_(tiny_llama::executor(), how, {rows(0), rows(1)}, limits_of(pool_, table_.data())) {}
  host_kv(host_kv const&) = delete;
  host_kv& operator=(host_kv const&) = delete;

  /// The engine writes the table; kvmeld reads it.
  void set_page(std::uint32_t slot, std::size_t i, std::uint32_t page) {
    table_[slot * pool_.max_pages() + i] = static_cast<std::int32_t>(page);
  }
  auto& cache() { return cache_; }
  auto const& cache() const { return cache_; }
  pool_layout const& pool() const { return pool_; }

  /// One pass over the rows of a batch: logits [row][vocabulary]. `keeps_queries`: observe() will ask for
  /// them.
  template <class Ranks>
  void forward(tiny_llama::model& m, std::vector<int> const& tokens, std::vector<int> const& positions,
               std::vector<batch_part> const& batch, bool keeps_queries, Ranks& ranks,
               std::vector<float>& logits) {
    auto const n = tokens.size();
    std::size_t const width = std::size_t{query_heads_} * extent().key_dim, layers = extent().layers;
    query_layer_ = n * width;
    lse_layer_ = keeps_queries ? n * extent().query_heads() : 0;
    if (keeps_queries) queries_.resize(layers * query_layer_);
    lse_.resize((keeps_queries ? layers : 1) * n * extent().query_heads());
    auto const hook = [&](int which, float const* q, float const* k, float const* v, float* out) {
      auto const layer = static_cast<std::size_t>(which);
      attend(static_cast<std::uint32_t>(which), batch, q, k, v, out, lse_.data() + layer * lse_layer_);
      ranks.gather(out, n, width);
      if (keeps_queries) std::copy_n(q, n * width, queries_.data() + layer * query_layer_);
    };
    m.forward_batch(tokens.data(), positions.data(), static_cast<int>(n), hook, logits);
  }

  /// Feeds the score with the queries of tokens that were kept, of the last forward().
  void observe(std::uint32_t layer, batch_part const& kept) {
    std::uint32_t const d = extent().key_dim, heads = extent().query_heads();
    float const* const q = queries_.data() + layer * query_layer_;
    float const* const lse = lse_.data() + layer * lse_layer_;
    std::size_t const first = std::size_t{kept.first} * query_heads_ + first_query_head();
    std::int64_t const row = std::int64_t{query_heads_} * d;
    cache_.observe({layer, kept.slot, kept.count}, kvmeld::head_rows<float const>{q + first * d, 0, d, row},
                   kvmeld::head_rows<float const>{lse + std::size_t{kept.first} * heads, 0, 1, heads});
  }

  /// The rows of some pages, of all layers and both sides; and back into others.
  std::vector<kvmeld::float16> read_pages(std::vector<std::uint32_t> const& pages) const {
    std::vector<kvmeld::float16> out;
    out.reserve(pool_.elements_of(pages.size()));
    pool_.for_each_part(pages, [&](std::size_t at) {
      auto const from = memory_.begin() + static_cast<std::ptrdiff_t>(at);
      out.insert(out.end(), from, from + static_cast<std::ptrdiff_t>(pool_.page_elements()));
    });
    return out;
  }
  void write_pages(std::vector<std::uint32_t> const& pages, std::vector<kvmeld::float16> const& saved) {
    auto from = saved.begin();
    pool_.for_each_part(pages, [&](std::size_t at) {
      auto const next = from + static_cast<std::ptrdiff_t>(pool_.page_elements());
      std::copy(from, next, memory_.begin() + static_cast<std::ptrdiff_t>(at));
      from = next;
    });
  }

  /// Why the tables cannot be right, for sequences of so many entries per slot; empty if they can.
  std::string table_problem(std::vector<std::uint32_t> const& lengths) {
    return kvmeld::validate_pages(rows(0), pool_.extent(), pool_.sizes().pages, lengths, table_.size());
  }

private:
  using layout = pool_layout::rows_type<std::uint8_t const*>;

  static kvmeld::cache_options limits_of(pool_layout const& pool, std::int32_t const* table) {
    kvmeld::cache_options l{pool.extent()};
    l.ledger_pages = pool.ledger(table);
    l.first_kv_head = pool.sizes().first_head;  // so that random draws are those of one rank with all heads
    return l;
  }
  layout rows(std::size_t side) { return pool_.rows(side, memory_.data(), table_.data(), shared_); }
  kvmeld::shape const& extent() const { return pool_.extent(); }
  std::uint32_t first_query_head() const { return pool_.sizes().first_head * extent().queries_per_kv_head; }

  /// Stores new rows at the end of their tracks and attends. Rows are [row][head][channel] of all the model's
  /// heads, of which this rank's are read and written. lse [row][query head of this rank].
  void attend(std::uint32_t layer, std::vector<batch_part> const& batch, float const* q, float const* k,
              float const* v, float* out, float* lse) {
    std::size_t const items = batch.size() * extent().kv_heads;
    std::size_t products = 0;  // few are done before other threads have woken up
    for (batch_part const& part : batch)
      products += std::size_t{part.count} * cache_.longest(part.slot) * extent().query_heads();
    std::size_t const parts = std::size_t{4} * tiny_llama::pool().size();
    std::size_t const each = products > 8192 ? (items + parts - 1) / parts : items;
    tiny_llama::in_pieces(items, each, [&](std::size_t first, std::size_t last) {
      head_scratch room;
      for (std::size_t item = first; item < last; ++item) {
        attend_head(layer, batch[item / extent().kv_heads],
                    static_cast<std::uint32_t>(item % extent().kv_heads), q, k, v, out, lse, room);
      }
    });
  }

  void attend_head(std::uint32_t layer, batch_part const& part, std::uint32_t head, float const* q,
                   float const* k, float const* v, float* out, float* lse, head_scratch& room) const {
    auto const ref = cache_.ref();
    kvmeld::track const where = ref.where(layer, part.slot, head);
    std::uint32_t const d = extent().key_dim, length = ref.length(where),
                        global = pool_.sizes().first_head + head;
    std::uint32_t const kv_heads = query_heads_ / extent().queries_per_kv_head;
    for (std::uint32_t i = 0; i < part.count; ++i) {
      auto const key = ref.keys.locate(where, length - part.count + i);
      auto const value = ref.values.locate(where, length - part.count + i);
      std::size_t const from = (std::size_t{part.first + i} * kv_heads + global) * d;
      for (std::uint32_t c = 0; c < d; ++c) {
        key.base[c] = kvmeld::element_traits<kvmeld::float16>::from_float(k[from + c]);
        value.base[c] = kvmeld::element_traits<kvmeld::float16>::from_float(v[from + c]);
      }
    }
    gather(ref, where, room);
    for (std::uint32_t g = 0; g < extent().queries_per_kv_head; ++g) {
      std::uint32_t const own = head * extent().queries_per_kv_head + g;
      std::size_t const at = (std::size_t{part.first} * query_heads_ + first_query_head() + own) * d;
      paged_engine::attend({q + at, out + at, lse + std::size_t{part.first} * extent().query_heads() + own,
                            part.count, query_heads_ * d, extent().query_heads()},
                           d, room);
    }
  }

  pool_layout pool_;
  std::uint32_t query_heads_;
  std::uint8_t const* shared_;
  std::vector<kvmeld::float16> memory_;
  std::vector<std::int32_t> table_;
  kvmeld::merged_cache<kvmeld::host_executor, Policy, layout, layout> cache_;

  // Of the last pass: [layer][row][head].
  std::size_t query_layer_ = 0, lse_layer_ = 0;
  std::vector<float> queries_, lse_;
};

}  // namespace paged_engine
