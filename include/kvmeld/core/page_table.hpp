// SPDX-License-Identifier: Apache-2.0
// Block tables: which pages of a pool a track has.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Where the pages of a track are listed. A track's row is sequence * sequence_stride + layer * layer_stride
/// + head * head_stride. Its i-th page is entries[row + i], or with `first` (CSR) entries[first[row] + i].
/// The arrays must lie in memory that phases can read. `sequence` is the cache's sequence, not a place in a
/// batch.
template <class Entry = std::int32_t, class Index = std::int32_t> struct page_table {
  Entry const* entries = nullptr;                                       ///< page numbers or pointers
  std::int64_t sequence_stride = 0, layer_stride = 0, head_stride = 0;  ///< in entries; CSR: in rows
  /// CSR: where each row begins in `entries`. null: a row begins at its number.
  Index const* first = nullptr;

  /// The number of a track's row in the list of pages.
  KVMELD_HD std::int64_t row(track where) const {
    return std::int64_t{where.sequence} * sequence_stride + std::int64_t{where.layer} * layer_stride +
           std::int64_t{where.kv_head} * head_stride;
  }
  /// Index in `entries` of the first page of a row.
  KVMELD_HD std::int64_t begin(std::int64_t row) const {
    return first == nullptr ? row : static_cast<std::int64_t>(first[row]);
  }
  /// The i-th page of a track.
  KVMELD_HD Entry at(track where, std::uint32_t i) const {
    return entries[begin(row(where)) + std::int64_t{i}];
  }
};

/// Why a page table cannot be read; empty if it can.
inline std::string table_problem(char const* call, void const* entries) {
  return entries != nullptr ? std::string()
                            : refusal(call, "page table", "null", "the table of K's and V's pages");
}

/// A dense table [sequence][max_pages]. All layers and heads of a sequence use the same pages.
template <class Entry> page_table<Entry> table_rows(Entry const* entries, std::uint32_t max_pages) {
  return {entries, max_pages};
}
/// FlashInfer's form: the pages of a sequence are entries first[sequence] .. first[sequence + 1] - 1. Where
/// heads are folded into the batch, there is a row per (sequence, head): `rows_per_sequence` is then the
/// number of KV heads, and heads may differ in length.
template <class Entry, class Index>
page_table<Entry, Index> table_csr(Index const* first, Entry const* entries,
                                   std::uint32_t rows_per_sequence = 1) {
  return {entries, rows_per_sequence, 0, rows_per_sequence > 1 ? 1 : 0, first};
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
