// SPDX-License-Identifier: Apache-2.0
// Checks block tables on the host.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/overlap.hpp>
#include <kvmeld/layout/paged.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

/// Why pages that are used overlap, in one layer and head; empty if they do not. The page stride may be less
/// than a page if the page numbers in use are multiples of some number.
template <class T, class Entry, class Index, class Shared>
std::string pages_apart_problem(paged<pool_pages<T, Entry, Index, Shared>> const& rows,
                                std::vector<char> const& used) {
  page_strides const& st = rows.strides();
  std::int64_t const tokens = min_of(rows.page_size(), rows.capacity()), channels = rows.channels();
  // Whether two elements of one page can lie `distance` apart.
  auto const within = [&](std::int64_t distance) {
    for (std::int64_t x = 1 - tokens; x < tokens; ++x) {
      std::int64_t const left = distance - x * st.token;
      if (left == 0 || (st.channel != 0 && left % st.channel == 0 && std::abs(left / st.channel) < channels))
        return true;
    }
    return false;
  };
  auto const reach = static_cast<std::int64_t>(magnitude_of(st.token)) * (tokens - 1) +
                     static_cast<std::int64_t>(magnitude_of(st.channel)) * (channels - 1);
  auto const apart = static_cast<std::int64_t>(magnitude_of(st.page));
  std::int64_t const neighbours =
      apart == 0 ? 0 : min_of<std::int64_t>(reach / apart, static_cast<std::int64_t>(used.size()) - 1);
  for (std::int64_t d = 1; d <= neighbours; ++d) {
    if (!within(d * apart)) continue;
    auto const further = static_cast<std::size_t>(d);
    for (std::size_t p = 0; p + further < used.size(); ++p) {
      if (used[p] == 0 || used[p + further] == 0) continue;
      return refusal("validate_pages", "page stride", st.page, "so large that the elements of page ", p,
                     " and page ", p + further, " lie apart");
    }
  }
  return {};
}

}  // namespace detail

/// Why these pages cannot hold the sequences; empty if they can. `lengths` [sequences] is how many slots of
/// each sequence its table has to cover (0: none, and its table entries are not checked). `table_entries` is
/// how many entries the table has. Finds page numbers outside the pool, used pages that overlap, pages that
/// two rows of the table use although `shared` does not mark them, tables that are too short, and CSR rows
/// that go backwards. The tables are read on the host: for tables of a device, pass host copies. One call
/// costs a pass over the table entries and a byte per page.
template <class T, class Entry, class Index, class Shared>
std::string validate_pages(paged<pool_pages<T, Entry, Index, Shared>> const& rows, shape const& s,
                           std::uint32_t number_of_pages, index_list lengths, std::size_t table_entries) {
  std::string problem = rows.problem(s);
  if (!problem.empty()) return problem;
  if (lengths.size() != s.sequences) {
    return refusal("validate_pages", "number of lengths", lengths.size(), s.sequences,
                   ", one for each sequence");
  }
  auto const& pages = rows.pages();
  auto const& table = pages.table;
  // A row of the table that serves several layers or heads is checked once.
  std::uint32_t const layers = table.layer_stride == 0 ? 1 : s.layers;
  std::uint32_t const heads = table.head_stride == 0 ? 1 : s.kv_heads;
  std::vector<char> used(number_of_pages, 0);
  for (std::uint32_t sequence = 0; sequence < s.sequences; ++sequence) {
    if (lengths[sequence] > s.capacity) {
      return refusal("validate_pages", message("lengths[", sequence, "]"), lengths[sequence], "at most ",
                     s.capacity, ", the capacity");
    }
    std::uint32_t const wanted = rows.pages_of(lengths[sequence]);
    if (wanted != 0 && number_of_pages == 0) {
      return refusal("validate_pages", "number_of_pages", 0, "at least ", wanted, ", because sequence ",
                     sequence, " has ", lengths[sequence], " slots");
    }
    for (std::uint32_t n = 0; n < layers * heads && wanted != 0; ++n) {
      track const where = make_track(s, n / heads, sequence, n % heads);
      std::int64_t const row = table.row(where), begin = table.begin(row);
      std::int64_t end = static_cast<std::int64_t>(table_entries);
      if (table.first != nullptr) end = min_of(end, static_cast<std::int64_t>(table.first[row + 1]));
      if (table.first == nullptr && table.sequence_stride > 0 && layers * heads == 1) {
        end = min_of(end, begin + table.sequence_stride);
      }
      bool const inside = begin >= 0 && begin <= end;
      if (!inside || end - begin < std::int64_t{wanted}) {
        return refusal("validate_pages", message("number of table entries of sequence ", sequence),
                       inside ? end - begin : 0, "at least ", wanted, ", because ", lengths[sequence],
                       " slots take so many pages of ", rows.page_size());
      }
      for (std::uint32_t i = 0; i < wanted; ++i) {
        auto const page = static_cast<std::int64_t>(table.at(where, i));
        if (page < 0 || page >= std::int64_t{number_of_pages}) {
          return refusal("validate_pages", message("page ", i, " of sequence ", sequence), page, "0 to ",
                         number_of_pages - 1, ", the pages of the pool");
        }
        bool const own = rows.writable(where, i * rows.page_size());
        if (own && used[static_cast<std::size_t>(page)] != 0) {
          return refusal("validate_pages", message("page ", i, " of sequence ", sequence), page,
                         "a page that is not in use already, or one that is marked as shared");
        }
        used[static_cast<std::size_t>(page)] = 1;
      }
    }
  }
  return detail::pages_apart_problem(rows, used);
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
