// SPDX-License-Identifier: Apache-2.0
// Arrays beside a pool of pages, with an element for every token of every page. They are addressed like the
// pages.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/page_table.hpp>
#include <kvmeld/core/types.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Where the element of an entry lies: page number * page_stride + layer * layer_stride + head * head_stride
/// + token of the page. `table` is the page table of K or V, in memory that phases can read. A layer_stride
/// or head_stride of 0 is for layers or heads that have pages of their own, with other numbers. An engine
/// that copies a page, swaps it out or sends it elsewhere has to do the same to these elements.
template <class Entry = std::int32_t, class Index = std::int32_t> struct page_places {
  page_table<Entry, Index> table;  ///< which pages a track has
  std::uint32_t page_size = 0;     ///< tokens of a page
  /// Distance from an index to the next, in elements of the array.
  std::int64_t page_stride = 0, layer_stride = 0, head_stride = 0;

  /// Index of a token's element.
  KVMELD_HD std::int64_t at(track where, slot_t slot) const {
    std::uint32_t const page = slot / page_size;
    return static_cast<std::int64_t>(table.at(where, page)) * page_stride +
           std::int64_t{where.layer} * layer_stride + std::int64_t{where.kv_head} * head_stride +
           std::int64_t{slot - page * page_size};
  }
  /// How many slots a track's pages for `slots` slots have, up to the end of the last page. In CSR form, no
  /// more pages count than its row has; else, where layers or heads have their own pages, no more than hold
  /// the track's own `length`.
  KVMELD_HD std::uint32_t covered(track where, std::uint32_t slots, std::uint32_t length) const {
    std::uint32_t pages = ceil_div(slots, page_size);
    if (table.first != nullptr) {
      std::int64_t const row = table.row(where);
      auto const there = static_cast<std::uint32_t>(table.first[row + 1] - table.first[row]);
      pages = min_of(pages, there);
    } else if (table.head_stride != 0 || table.layer_stride != 0) {
      pages = min_of(pages, ceil_div(length, page_size));
    }
    return pages * page_size;
  }
  /// The least page stride with which the elements of pages lie apart.
  std::uint64_t least_page_stride(shape const& s) const {
    return (s.layers - std::uint64_t{1}) * static_cast<std::uint64_t>(layer_stride) +
           (s.kv_heads - std::uint64_t{1}) * static_cast<std::uint64_t>(head_stride) + page_size;
  }
  std::string problem(char const* call) const {
    if (page_size == 0) return refusal(call, "page_size", 0, "at least 1");
    return table_problem(call, table.entries);
  }
};

/// Places in a dense array [page][layer][head][token].
template <class Entry, class Index>
page_places<Entry, Index> dense_places(page_table<Entry, Index> table, std::uint32_t page_size,
                                       shape const& s) {
  std::int64_t const head = page_size, layer = head * s.kv_heads;
  return {table, page_size, layer * s.layers, layer, head};
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
