// Arrays beside a pool of pages, with an element for every token of every page: addressed as the pages are.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/paged.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Where the element of an entry lies: page number * page_stride + layer * layer_stride + head * head_stride
/// + token of the page. `table` is the one that K or V are found by, in memory that phases can read. Whatever
/// an engine does to a page (copies it, swaps it out, sends it elsewhere) it does to these elements.
template <class Entry = std::int32_t, class Index = std::int32_t> struct page_places {
  page_table<Entry, Index> table;  ///< which pages a track has
  std::uint32_t page_size = 0;     ///< tokens of a page
  /// Elements of the array from one to the next.
  std::int64_t page_stride = 0, layer_stride = 0, head_stride = 0;

  /// Index of a token's element.
  KVMELD_HD std::int64_t at(track where, slot_t slot) const {
    std::uint32_t const page = slot / page_size;
    return static_cast<std::int64_t>(table.at(where, page)) * page_stride +
           std::int64_t{where.layer} * layer_stride + std::int64_t{where.kv_head} * head_stride +
           std::int64_t{slot - page * page_size};
  }
  /// Slots of a track up to the end of the pages that hold `slots` of its sequence; where the track has pages
  /// of its own, those that hold its own `length`, or in CSR form no more than it has.
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
  std::string problem(char const* call) const {
    if (page_size == 0) return refusal(call, "page_size", 0, "at least 1");
    return table_problem(call, table.entries);
  }
};

/// Dense [page][layer][head][token].
template <class Entry, class Index>
page_places<Entry, Index> dense_places(page_table<Entry, Index> table, std::uint32_t page_size,
                                       shape const& s) {
  std::int64_t const head = page_size, layer = head * s.kv_heads;
  return {table, page_size, layer * s.layers, layer, head};
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
