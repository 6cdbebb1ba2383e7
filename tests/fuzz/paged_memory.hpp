// An engine's K and V in pages, found through a table: for shadowed_life, beside support::engine_memory.
#pragma once

#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/paged.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "support/random_cache.hpp"

namespace fuzz {

struct paged_memory {
  kvmeld::shape extent;
  std::uint32_t page_size, row, count;
  std::string order;
  std::vector<std::int32_t> table;  // [sequence][row]: pages in random order
  std::vector<float> keys, values;

  paged_memory(kvmeld::shape const& s, std::uint32_t tokens_of_page, char const* letters, std::uint64_t seed)
      : extent(s),
        page_size(tokens_of_page),
        row(kvmeld::ceil_div(s.capacity, tokens_of_page)),
        count(row * s.sequences),
        order(letters),
        table(count),
        keys(std::size_t{count} * s.layers * s.kv_heads * page_size * s.key_dim),
        values(std::size_t{count} * s.layers * s.kv_heads * page_size * s.value_dim) {
    std::iota(table.begin(), table.end(), 0);
    support::dice d(seed);
    for (std::uint32_t i = count; i > 1; --i) std::swap(table[i - 1], table[d.below(i)]);
  }
  // Rows of one of the pools.
  auto pages(std::vector<float>& pool, std::uint32_t channels) {
    kvmeld::pool_pages const from(pool.data(), kvmeld::table_rows(table.data(), row), nullptr, count);
    return kvmeld::paged(from, page_size,
                         kvmeld::dense_pages(order.c_str(), count, page_size, extent, channels), extent,
                         channels);
  }
  auto tensors() { return kvmeld::kv{pages(keys, extent.key_dim), pages(values, extent.value_dim)}; }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out((keys.size() + values.size()) * sizeof(float));
    std::memcpy(out.data(), keys.data(), keys.size() * sizeof(float));
    std::memcpy(out.data() + keys.size() * sizeof(float), values.data(), values.size() * sizeof(float));
    return out;
  }
};

}  // namespace fuzz
