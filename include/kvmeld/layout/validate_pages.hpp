// Whether block tables make sense, looked at on the host.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/paged.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Why these pages cannot hold the sequences; empty if they can. `lengths` [sequences] is how many slots of each sequence
/// its table has to cover (0: none, its entries are not looked at); `table_entries` is how many the arrays have. Finds page
/// numbers outside the pool, pages that two rows of the table use although nobody says they are shared, tables that are
/// too short, CSR rows that go backwards. Reads the tables: give host copies where they are a device's. One call costs a
/// pass over the entries and a byte per page.
template <class T, class Entry, class Index>
std::string validate_pages(paged<pool_pages<T, Entry, Index>> const& rows, shape const& s,
                           std::uint32_t number_of_pages, index_list lengths, std::size_t table_entries) {
  std::string problem = rows.problem(s);
  if (!problem.empty()) return problem;
  if (lengths.size() != s.sequences) {
    return message("validate_pages: ", lengths.size(), " lengths for ", s.sequences,
                   " sequences; give one each");
  }
  auto const& pages = rows.pages();
  auto const& table = pages.table;
  // Rows of the table that are one for several layers or heads are looked at once.
  std::uint32_t const layers = table.layer_stride == 0 ? 1 : s.layers;
  std::uint32_t const heads = table.head_stride == 0 ? 1 : s.kv_heads;
  std::vector<char> used(number_of_pages, 0);
  for (std::uint32_t sequence = 0; sequence < s.sequences; ++sequence) {
    if (lengths[sequence] > s.capacity) {
      return message("validate_pages: sequence ", sequence, " has ", lengths[sequence],
                     " slots; allowed are up to the capacity ", s.capacity);
    }
    std::uint32_t const wanted = rows.pages_of(lengths[sequence]);
    for (std::uint32_t n = 0; n < layers * heads && wanted != 0; ++n) {
      track const where = make_track(s, n / heads, sequence, n % heads);
      std::int64_t const row = table.row(where), begin = table.begin(row);
      std::int64_t end = static_cast<std::int64_t>(table_entries);
      if (table.first != nullptr) end = min_of(end, static_cast<std::int64_t>(table.first[row + 1]));
      if (table.first == nullptr && table.sequence_stride > 0 && layers * heads == 1) {
        end = min_of(end, begin + table.sequence_stride);
      }
      if (begin < 0 || begin + wanted > end) {
        return message("validate_pages: the table has ", end > begin ? end - begin : 0, " pages of sequence ",
                       sequence, ", but ", lengths[sequence], " slots take ", wanted, " pages of ",
                       rows.page_size());
      }
      for (std::uint32_t i = 0; i < wanted; ++i) {
        auto const page = static_cast<std::int64_t>(table.at(where, i));
        if (page < 0 || page >= std::int64_t{number_of_pages}) {
          return message("validate_pages: page ", i, " of sequence ", sequence, " is number ", page,
                         "; allowed are 0 to ", std::int64_t{number_of_pages} - 1);
        }
        bool const own = rows.writable(where, i * rows.page_size());
        if (own && used[static_cast<std::size_t>(page)] != 0) {
          return message("validate_pages: page number ", page, ", page ", i, " of sequence ", sequence,
                         ", is in use already; what sequences share has to be marked so");
        }
        used[static_cast<std::size_t>(page)] = 1;
      }
    }
  }
  return {};
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
