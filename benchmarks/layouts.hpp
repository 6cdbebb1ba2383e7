// The keys' memory seen through other layouts of the same size: what lies in it is nothing to the timing.
#pragma once

#include "session.hpp"

#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/paged.hpp>
#include <kvmeld/layout/strided.hpp>
#include <kvmeld/layout/tiled.hpp>
#include <kvmeld/layout/transposed.hpp>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace kvmeld_bench {

constexpr std::uint32_t page_size = 16;
constexpr char const* layout_names[] = {"strided", "transposed", "tiled",
                                        "paged",   "vllm_keys",  "vllm_values"};

/// Rows of one layer and sequence: by head, along tokens, in 16-channel groups, and in pages of 16 tokens in
/// random order with rows side by side, in vLLM's groups of 16 bytes, and along the page's tokens.
template <class T> class other_layouts {
public:
  other_layouts(T* memory, kvmeld::shape const& extent)
      : memory_(memory), extent_(extent), table_(extent.capacity / page_size) {
    std::iota(table_.begin(), table_.end(), 0);
    std::uint32_t state = 5;
    for (std::size_t i = table_.size(); i > 1; --i) {
      state = state * 1664525u + 1013904223u;
      std::swap(table_[i - 1], table_[(state >> 8) % i]);
    }
  }
  other_layouts(other_layouts const&) = delete;
  other_layouts& operator=(other_layouts const&) = delete;

  /// Calls use(name, layout) for each.
  template <class Use> void each(Use use) const {
    std::int64_t const n = extent_.capacity, d = head_dim, x = 16 / sizeof(T);
    auto const pages = static_cast<std::uint32_t>(table_.size());
    kvmeld::pool_pages const from(memory_, kvmeld::table_rows(table_.data(), pages));
    kvmeld::strided<T> const groups(memory_, {0, 0, n * d, 16, n * 16}, extent_, head_dim / 16);
    kvmeld::page_strides const in_groups{page_size * d * extent_.kv_heads, 0, page_size * d, x,
                                         page_size * x};
    auto const dense = [&](char const* order) {
      return kvmeld::paged(from, page_size, kvmeld::dense_pages(order, pages, page_size, extent_, head_dim),
                           extent_, head_dim);
    };
    use(layout_names[0], kvmeld::strided<T>(memory_, "LSHTC", extent_, head_dim));
    use(layout_names[1], kvmeld::transposed<T>(memory_, "LSHCT", extent_, head_dim));
    use(layout_names[2], kvmeld::tiled(groups, 16));
    use(layout_names[3], dense("LPTHC"));
    use(layout_names[4], kvmeld::tiled(kvmeld::paged(from, page_size, in_groups, extent_,
                                                     head_dim / static_cast<std::uint32_t>(x)),
                                       static_cast<std::uint32_t>(x)));
    use(layout_names[5], dense("LPHCT"));
  }

private:
  T* memory_;
  kvmeld::shape extent_;
  std::vector<std::int32_t> table_;
};

}  // namespace kvmeld_bench
