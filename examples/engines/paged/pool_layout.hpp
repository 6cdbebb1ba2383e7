// How the rows of K and V lie in the pool, on the host or on a device: one allocation [layer][K,
// V][page][token][head][channel].
#pragma once

#include "batch.hpp"

#include <tiny_llama/config.hpp>

#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace paged_engine {

class pool_layout {
public:
  /// Rows of pages with marks (a pointer) or without (std::nullptr_t).
  template <class Marks>
  using rows_type = kvmeld::paged<kvmeld::pool_pages<kvmeld::float16, std::int32_t, std::int32_t, Marks>>;

  pool_layout(tiny_llama::config const& c, kv_sizes const& sizes) : sizes_(sizes) {
    auto const u = [](int x) { return static_cast<std::uint32_t>(x); };
    extent_ = {u(c.layers),
               sizes.slots,
               sizes.heads == 0 ? u(c.kv_heads) : sizes.heads,
               u(c.heads / c.kv_heads),
               u(c.head_dim),
               u(c.head_dim),
               sizes.capacity};
  }

  kv_sizes const& sizes() const { return sizes_; }
  /// Where the ledger's numbers lie: in pages, as the rows do.
  kvmeld::ledger_pages ledger(std::int32_t const* table) const {
    return {sizes_.pages,
            kvmeld::dense_places(kvmeld::table_rows(table, max_pages()), sizes_.page_size, extent_)};
  }
  kvmeld::shape const& extent() const { return extent_; }
  /// Entries of a slot's row in the table.
  std::uint32_t max_pages() const { return pages_of(sizes_.capacity); }
  std::uint32_t pages_of(std::uint32_t entries) const { return kvmeld::ceil_div(entries, sizes_.page_size); }
  std::size_t page_elements() const {
    return std::size_t{sizes_.page_size} * extent_.kv_heads * extent_.key_dim;
  }
  std::size_t elements() const { return sides() * sizes_.pages * page_elements(); }
  /// Of all layers and both sides.
  std::size_t page_bytes() const { return sides() * page_elements() * sizeof(kvmeld::float16); }

  /// K (side 0) or V (side 1) as kvmeld sees them. `shared`: marks of the pages that nobody may write.
  template <class Marks>
  rows_type<Marks> rows(std::size_t side, kvmeld::float16* memory, std::int32_t const* table,
                        Marks shared) const {
    std::int64_t const token = std::int64_t{extent_.kv_heads} * extent_.key_dim;
    std::int64_t const page = token * sizes_.page_size;
    kvmeld::page_strides const nhd{page, 2 * page * sizes_.pages, extent_.key_dim, token, 1};
    kvmeld::pool_pages const from(memory + side * sizes_.pages * page_elements(),
                                  kvmeld::table_rows(table, max_pages()), shared, sizes_.pages);
    return {from, sizes_.page_size, nhd, extent_, extent_.key_dim};
  }
  /// Calls f(where its elements begin in the memory) for all layers and sides of some pages, one after the
  /// other.
  template <class F> void for_each_part(std::vector<std::uint32_t> const& pages, F f) const {
    for (std::uint32_t const page : pages) {
      for (std::size_t side = 0; side < sides(); ++side) {
        f((side * sizes_.pages + page) * page_elements());
      }
    }
  }
  std::size_t elements_of(std::size_t pages) const { return pages * sides() * page_elements(); }

private:
  std::size_t sides() const { return std::size_t{2} * extent_.layers; }

  kv_sizes sizes_;
  kvmeld::shape extent_;
};

}  // namespace paged_engine
