// SPDX-License-Identifier: Apache-2.0
// Rows in pages of a pool. Pages are found through block tables (vLLM, FlashInfer, TensorRT-LLM, SGLang), or
// through a pointer per block (LMDeploy).
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/page_table.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/layout_problem.hpp>
#include <kvmeld/layout/strided.hpp>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Strides within a pool. `page` is not used where every block has a pointer.
struct page_strides {
  std::int64_t page = 0, layer = 0, head = 0, token = 0, channel = 1;  ///< in elements, from one to the next
};

/// Dense strides for an order of the letters P(age) L(ayer) H(ead) T(oken of the page) C(hannel), outermost
/// first, of a pool of `pool_pages` pages: "LPTHC" is NHD and "LPHTC" HND with a tensor per layer, "LPHCT"
/// is the order of vLLM's values. null, or a string that is no permutation of these letters, gives token
/// stride 0, which the cache refuses.
inline page_strides dense_pages(char const* order, std::uint32_t pool_pages, std::uint32_t page_size,
                                shape const& s, std::uint32_t channels) {
  page_strides out{0, 0, 0, 0, 0};
  detail::fill_dense(order, {{'P', pool_pages, &out.page},
                             {'L', s.layers, &out.layer},
                             {'H', s.kv_heads, &out.head},
                             {'T', page_size, &out.token},
                             {'C', channels, &out.channel}});
  return out;
}

/// Pages by number: a page lies at pool + number * strides.page. Without `shared` (left out, or nullptr) no
/// page is shared, and the compiler knows that every row may be written. With an array of marks
/// (shareable_pages), other sequences use the page too where shared[number] is not 0, and nothing is written
/// to it; a null pointer marks no page. If `count` is given, debug builds (without NDEBUG) stop at a table
/// entry that names no page of the pool, also on devices.
template <class T, class Entry = std::int32_t, class Index = std::int32_t, class Shared = std::nullptr_t>
struct pool_pages {
  using element_type = T;
  static constexpr bool always_writable = std::is_same_v<Shared, std::nullptr_t>;
  T* pool;                         ///< page 0
  page_table<Entry, Index> table;  ///< which pages a track has
  Shared shared;                   ///< [page number] std::uint8_t const*, or nullptr
  std::uint32_t count;             ///< number of pages in the pool; 0: not given

  /// The pages that the table `pages` names, in the pool that begins at `first_page`.
  pool_pages(
      T* first_page, page_table<Entry, Index> pages,
      std::common_type_t<Shared> shared_pages = nullptr,  // not deduced from: the guides below say what is
      std::uint32_t number_of_pages = 0)
      : pool(first_page), table(pages), shared(shared_pages), count(number_of_pages) {}

  /// The number of the i-th page of a track.
  KVMELD_HD std::int64_t number(track where, std::uint32_t i) const {
    auto const page = static_cast<std::int64_t>(table.at(where, i));
    assert((count == 0 || (page >= 0 && page < std::int64_t{count})) &&
           "a block table names no page of the pool");
    return page;
  }
  KVMELD_HD T* base(track where, std::uint32_t i, page_strides const& st) const {
    return pool + number(where, i) * st.page;
  }
  /// Why these cannot be pages; empty if they can.
  std::string problem() const {
    if (pool == nullptr) return refusal("paged", "pool", "null", "page 0 of the pool");
    auto const address = reinterpret_cast<std::uintptr_t>(pool);
    if (address % alignof(T) == 0) return table_problem("paged", table.entries);
    return refusal("paged", message("address of the pool modulo ", alignof(T)), address % alignof(T),
                   "0, the alignment of an element");
  }
  /// How many pages the page stride has to reach, at least `needed`.
  std::uint32_t pages_by_stride(std::uint32_t needed) const { return max_of(count, needed); }
  KVMELD_HD bool writable([[maybe_unused]] track where, [[maybe_unused]] std::uint32_t i) const {
    if constexpr (always_writable) {
      return true;
    } else {
      return shared == nullptr || shared[number(where, i)] == 0;
    }
  }
};
/// Pages without marks.
template <class T, class Entry, class Index>
pool_pages(T*, page_table<Entry, Index>) -> pool_pages<T, Entry, Index>;
/// Pages without marks, and how many there are.
template <class T, class Entry, class Index>
pool_pages(T*, page_table<Entry, Index>, std::nullptr_t, std::uint32_t = 0) -> pool_pages<T, Entry, Index>;
/// Pages with an array of marks.
template <class T, class Entry, class Index>
pool_pages(T*, page_table<Entry, Index>, std::uint8_t const*, std::uint32_t = 0)
    -> pool_pages<T, Entry, Index, std::uint8_t const*>;
/// The type of pages with an array of marks.
template <class T, class Entry = std::int32_t, class Index = std::int32_t>
using shareable_pages = pool_pages<T, Entry, Index, std::uint8_t const*>;

/// Pages by pointer. Each pointer is to a block of bytes, in which K or V begins at byte `offset`.
template <class T, class Index = std::int32_t> struct pointed_pages {
  using element_type = T;
  static constexpr bool always_writable = true;
  page_table<void*, Index> table;  ///< which blocks a track has
  std::size_t offset = 0;          ///< in bytes, from the start of a block

  KVMELD_HD T* base(track where, std::uint32_t i, page_strides const&) const {
    void* const block = table.at(where, i);
    assert(block != nullptr && "a block table holds a null pointer");
    return reinterpret_cast<T*>(static_cast<std::byte*>(block) + offset);
  }
  /// Why these cannot be pages; empty if they can.
  std::string problem() const {
    if (offset % alignof(T) == 0) return table_problem("paged", table.entries);
    return refusal("paged", "offset", offset, "a multiple of ", alignof(T), ", the alignment of an element");
  }
  /// 1: the page stride is not used.
  static constexpr std::uint32_t pages_by_stride(std::uint32_t) { return 1; }
  KVMELD_HD bool writable(track, std::uint32_t) const { return true; }
};

/// Rows of a track in pages. The page size is any number from 1 on. Strides are free: K and V in one
/// allocation are two such layouts. The engine owns pool and tables. Pages behind the longest head of a
/// sequence are not touched, and may be given back once a compression has run (`pages_of`). The table must
/// name a valid page for every slot of a sequence, slots that are being appended included.
template <class Pages> class paged : public addressed_rows<paged<Pages>, typename Pages::element_type> {
public:
  using element_type = typename Pages::element_type;
  static constexpr bool always_writable = is_always_writable<Pages>::value;
  static constexpr int channel_run = 0;
  static constexpr int token_run = 1;

  /// Rows of `channels` channels in pages of `page_size` tokens.
  paged(Pages pages, std::uint32_t page_size, page_strides strides, shape const& s, std::uint32_t channels)
      : pages_(pages), strides_(strides), page_size_(page_size), capacity_(s.capacity), channels_(channels) {}

  KVMELD_HD segment<element_type> locate(track where, slot_t slot) const {
    std::uint32_t const page = slot / page_size_, token = slot - page * page_size_;
    element_type* const base =
        pages_.base(where, page, strides_) + std::int64_t{where.layer} * strides_.layer +
        std::int64_t{where.kv_head} * strides_.head + std::int64_t{token} * strides_.token;
    return {base, strides_.token, strides_.channel, min_of(page_size_ - token, capacity_ - slot)};
  }
  KVMELD_HD std::uint32_t channels() const { return channels_; }
  KVMELD_HD bool writable(track where, slot_t slot) const {
    return pages_.writable(where, slot / page_size_);
  }

  /// Why this layout cannot serve an extent; empty if it can. Tables are not read, since they may lie in a
  /// device's memory; validate_pages checks them.
  std::string problem(shape const& s) const {
    if (page_size_ == 0) return refusal("paged", "page_size", 0, "at least 1");
    if (capacity_ != s.capacity) {
      return refusal("paged", "capacity", capacity_, s.capacity, ", the shape's capacity");
    }
    if (std::string const problem = pages_.problem(); !problem.empty()) return problem;
    if (page_size_ > 1 && strides_.token == 0) {
      return refusal("paged", "token stride", 0,
                     "another number (a dense order is a permutation of the letters P, L, H, T, C)");
    }
    auto const& table = pages_.table;
    // Layers or heads with their own rows of the table have their own pages, and may have stride 0 in them.
    auto const shared = [](std::int64_t row_stride, std::int64_t stride, std::uint32_t count) {
      return row_stride != 0 && stride == 0 ? 1 : count;
    };
    std::string const problem = detail::strides_problem(
        "paged",
        {{"page stride", pages_.pages_by_stride(table_pages(s)), strides_.page},
         {"layer stride", shared(table.layer_stride, strides_.layer, s.layers), strides_.layer},
         {"head stride", shared(table.head_stride, strides_.head, s.kv_heads), strides_.head},
         {"token stride", min_of(page_size_, capacity_), strides_.token},
         {"channel stride", channels_, strides_.channel}},
        sizeof(element_type));
    if (!problem.empty()) return problem;
    auto const rows = [](std::int64_t stride, std::uint32_t count) { return stride == 0 ? 1 : count; };
    return detail::strides_problem(
        "paged",
        {{"sequence stride of the table", rows(table.sequence_stride, s.sequences), table.sequence_stride},
         {"layer stride of the table", rows(table.layer_stride, s.layers), table.layer_stride},
         {"head stride of the table", rows(table.head_stride, s.kv_heads), table.head_stride}},
        sizeof(*table.entries));
  }
  std::uint32_t page_size() const { return page_size_; }
  std::uint32_t capacity() const { return capacity_; }
  page_strides const& strides() const { return strides_; }
  /// The pages: table and pool, or table and offset.
  Pages const& pages() const { return pages_; }
  /// How many pages `slots` slots take.
  KVMELD_HD std::uint32_t pages_of(std::uint32_t slots) const { return ceil_div(slots, page_size_); }

private:
  /// 1 if a single page holds all slots of the cache; else 2, for two or more.
  std::uint32_t table_pages(shape const& s) const {
    auto const& table = pages_.table;
    bool const one = s.sequences == 1 && capacity_ <= page_size_ &&
                     (table.layer_stride == 0 || s.layers == 1) &&
                     (table.head_stride == 0 || s.kv_heads == 1);
    return one ? 1 : 2;
  }

  Pages pages_;
  page_strides strides_;
  std::uint32_t page_size_, capacity_, channels_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
