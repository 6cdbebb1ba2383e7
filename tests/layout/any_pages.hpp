// Tensors in pages: tables in any order, pages of any size, strides with gaps.
#pragma once

#include "any_tensor.hpp"

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace cross_test {

// Which page holds the i-th slots of a row of the table; pages are drawn from a pool with some that nobody
// uses.
struct page_draw {
  std::uint32_t size, per_row, count;  // slots of a page, pages of a row, pages of the pool
  std::vector<std::int32_t> table;     // [rows][per_row]

  page_draw(std::uint32_t capacity, std::uint32_t rows, dice& d)
      : size(d.chance(0.3) ? d.between(1, 4) : d.between(1, 33)),
        per_row(kvmeld::ceil_div(capacity, size)),
        count(rows * per_row + d.below(4)),
        table(count) {
    std::iota(table.begin(), table.end(), 0);
    for (std::uint32_t i = count; i > 1; --i) std::swap(table[i - 1], table[d.below(i)]);
    table.resize(std::size_t{rows} * per_row);
  }
  std::size_t page(std::uint32_t row, slot_t slot) const {
    return static_cast<std::size_t>(table[std::size_t{row} * per_row + slot / size]);
  }
  // Pages of each sequence that lie wholly in its frozen beginning are marked as others' too, sometimes.
  std::vector<std::uint8_t> shared(order const& o, dice& d) const {
    std::vector<std::uint8_t> out(count, 0);
    for (std::uint32_t q = 0; q < o.extent.sequences; ++q) {
      for (slot_t s = 0; s + size <= o.frozen[q]; s += size) out[page(q, s)] = d.chance(0.7) ? 1 : 0;
    }
    return out;
  }
};

// Strides of one page, with gaps between what lies in it. `letters`: the order of L, H, T within, outermost
// first; then C.
struct page_form {
  std::size_t layer = 0, head = 0, token = 0, page = 0;

  page_form(std::string const& letters, shape const& s, std::uint32_t size, std::uint32_t channels, dice& d) {
    page = channels;
    for (std::size_t i = letters.size(); i-- > 0;) {
      if (d.chance(0.5)) page += d.below(9);
      std::size_t& stride = letters[i] == 'L' ? layer : letters[i] == 'H' ? head : token;
      stride = page;
      page *= letters[i] == 'L' ? s.layers : letters[i] == 'H' ? s.kv_heads : size;
    }
    if (d.chance(0.5)) page += d.below(30);
  }
  kvmeld::page_strides strides() const {
    auto const i64 = [](std::size_t x) { return static_cast<std::int64_t>(x); };
    return {i64(page), i64(layer), i64(head), i64(token), 1};
  }
};

// NHD ("LTH"), HND ("LHT") and pages that hold all layers ("HTL"), through a dense table.
template <class T>
tensor_ptr paged_tensor(char const* name, std::string const& letters, order const& o, dice& d) {
  page_draw const p(o.extent.capacity, o.extent.sequences, d);
  page_form const f(letters, o.extent, p.size, o.channels, d);
  memory_of<T> m(name, p.count * f.page, d);
  kvmeld::pool_pages const from(m.base, kvmeld::table_rows(m.out->keep_list(p.table), p.per_row),
                                m.out->keep_list(p.shared(o, d)));
  return m.finish(kvmeld::paged(from, p.size, f.strides(), o.extent, o.channels), o.channels,
                  [=](track t, slot_t s, std::uint32_t c) {
                    return p.page(t.sequence, s) * f.page + t.layer * f.layer + t.kv_head * f.head +
                           s % p.size * f.token + c;
                  });
}

// FlashInfer's tables: rows begin where `first` says, with entries between them that are nobody's.
template <class T> tensor_ptr csr_tensor(order const& o, dice& d) {
  page_draw const p(o.extent.capacity, o.extent.sequences, d);
  page_form const f("LTH", o.extent, p.size, o.channels, d);
  memory_of<T> m("CSR", p.count * f.page, d);
  std::vector<std::int32_t> first, entries;
  for (std::uint32_t q = 0; q < o.extent.sequences; ++q) {
    entries.resize(entries.size() + d.below(3), -7);
    first.push_back(static_cast<std::int32_t>(entries.size()));
    for (std::uint32_t i = 0; i < p.per_row; ++i) entries.push_back(p.table[q * p.per_row + i]);
  }
  first.push_back(static_cast<std::int32_t>(entries.size()));
  kvmeld::pool_pages const from(m.base, kvmeld::table_csr(m.out->keep_list(first), m.out->keep_list(entries)),
                                m.out->keep_list(p.shared(o, d)));
  return m.finish(kvmeld::paged(from, p.size, f.strides(), o.extent, o.channels), o.channels,
                  [=](track t, slot_t s, std::uint32_t c) {
                    return p.page(t.sequence, s) * f.page + t.layer * f.layer + t.kv_head * f.head +
                           s % p.size * f.token + c;
                  });
}

// Heads folded into the batch: a row of the table per (sequence, head), indices of 64 bits.
template <class T> tensor_ptr folded_tensor(order const& o, dice& d) {
  std::uint32_t const heads = o.extent.kv_heads, rows = o.extent.sequences * heads;
  page_draw const p(o.extent.capacity, rows, d);
  page_form const f("LT", o.extent, p.size, o.channels, d);
  memory_of<T> m("folded heads", p.count * f.page, d);
  std::vector<std::int64_t> first;
  for (std::uint32_t r = 0; r <= rows; ++r) first.push_back(std::int64_t{r} * p.per_row);
  kvmeld::pool_pages const from(m.base,
                                kvmeld::table_csr(m.out->keep_list(first), m.out->keep_list(p.table), heads));
  return m.finish(kvmeld::paged(from, p.size, f.strides(), o.extent, o.channels), o.channels,
                  [=](track t, slot_t s, std::uint32_t c) {
                    return p.page(t.sequence * heads + t.kv_head, s) * f.page + t.layer * f.layer +
                           s % p.size * f.token + c;
                  });
}

// LMDeploy's: a pointer per block, K or V some bytes into it.
template <class T> tensor_ptr blocks_tensor(order const& o, dice& d) {
  page_draw const p(o.extent.capacity, o.extent.sequences, d);
  page_form const f("LHT", o.extent, p.size, o.channels, d);
  memory_of<T> m("blocks", p.count * (f.page + 40), d);
  std::size_t const before = d.below(40), block = f.page + 40;
  std::vector<void*> blocks;
  for (std::int32_t page : p.table) blocks.push_back(m.base + static_cast<std::size_t>(page) * block);
  kvmeld::pointed_pages<T> const from{kvmeld::table_rows<void*>(m.out->keep_list(blocks), p.per_row),
                                      before * sizeof(T)};
  return m.finish(kvmeld::paged(from, p.size, f.strides(), o.extent, o.channels), o.channels,
                  [=](track t, slot_t s, std::uint32_t c) {
                    return p.page(t.sequence, s) * block + before + t.layer * f.layer + t.kv_head * f.head +
                           s % p.size * f.token + c;
                  });
}

// vLLM's keys: pages [L][H][C / x][P][x].
template <class T> tensor_ptr vllm_keys_tensor(order const& o, dice& d) {
  page_draw const p(o.extent.capacity, o.extent.sequences, d);
  std::uint32_t const x = group_width(o.channels, 16 / sizeof(T));
  std::size_t const head = std::size_t{p.size} * o.channels, layer = head * o.extent.kv_heads,
                    page = layer * o.extent.layers;
  memory_of<T> m("vLLM's keys", p.count * page, d);
  kvmeld::page_strides const st{static_cast<std::int64_t>(page), static_cast<std::int64_t>(layer),
                                static_cast<std::int64_t>(head), x, std::int64_t{x} * p.size};
  kvmeld::pool_pages const from(m.base, kvmeld::table_rows(m.out->keep_list(p.table), p.per_row),
                                m.out->keep_list(p.shared(o, d)));
  return m.finish(kvmeld::tiled(kvmeld::paged(from, p.size, st, o.extent, o.channels / x), x), o.channels,
                  [=](track t, slot_t s, std::uint32_t c) {
                    return p.page(t.sequence, s) * page + t.layer * layer + t.kv_head * head +
                           (c / x * p.size + s % p.size) * x + c % x;
                  });
}

// vLLM's values: pages [L][H][C][P].
template <class T> tensor_ptr vllm_values_tensor(order const& o, dice& d) {
  page_draw const p(o.extent.capacity, o.extent.sequences, d);
  std::size_t const head = std::size_t{p.size} * o.channels, layer = head * o.extent.kv_heads,
                    page = layer * o.extent.layers;
  memory_of<T> m("vLLM's values", p.count * page, d);
  kvmeld::pool_pages const from(m.base, kvmeld::table_rows(m.out->keep_list(p.table), p.per_row),
                                m.out->keep_list(p.shared(o, d)));
  return m.finish(kvmeld::paged(from, p.size,
                                kvmeld::dense_pages("PLHCT", p.count, p.size, o.extent, o.channels), o.extent,
                                o.channels),
                  o.channels, [=](track t, slot_t s, std::uint32_t c) {
                    return p.page(t.sequence, s) * page + t.layer * layer + t.kv_head * head +
                           c * std::size_t{p.size} + s % p.size;
                  });
}

}  // namespace cross_test
