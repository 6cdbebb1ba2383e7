// Memory for one tensor (K or V) in each layout, with one interface: view(), bytes(), and how coarse storage
// is.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "support/cache_bytes.hpp"
#include "support/test_layouts.hpp"

namespace layout_test {

// Distance of neighbouring numbers of T around the largest magnitude of a row; 0 for float.
template <class T> float element_step(float const* row, std::uint32_t channels) {
  float most = 0.0f;
  for (std::uint32_t c = 0; c < channels; ++c) most = kvmeld::max_of(most, row[c] < 0.0f ? -row[c] : row[c]);
  return most * (std::is_same_v<T, float> ? 0.0f : std::is_same_v<T, kvmeld::float16> ? 0x1p-10f : 0x1p-7f);
}

template <class T> struct tensor_base {
  using element = T;
  static constexpr bool quantised = false;
  tensor_base(std::size_t elements, std::uint32_t channels) : memory(elements), width(channels) {}
  support::byte_list bytes() const { return support::bytes_of(memory); }
  float step(float const* row) const { return element_step<T>(row, width); }
  std::vector<T> memory;
  std::uint32_t width;
};

template <class T> struct strided_tensor : tensor_base<T> {
  strided_tensor(kvmeld::shape const& s, std::uint32_t channels)
      : tensor_base<T>(s.slots() * channels, channels), extent(s) {}
  auto view() { return kvmeld::strided<T>(this->memory.data(), "LSHTC", extent, this->width); }
  kvmeld::shape extent;
};

// Tokens outside heads, sequences outside layers.
template <class T> struct token_major_tensor : strided_tensor<T> {
  using strided_tensor<T>::strided_tensor;
  auto view() { return kvmeld::strided<T>(this->memory.data(), "SLTHC", this->extent, this->width); }
};

// As strided, through a layout that lies in memory.
template <class T> struct relocatable_tensor : strided_tensor<T> {
  relocatable_tensor(kvmeld::shape const& s, std::uint32_t channels)
      : strided_tensor<T>(s, channels), now(this->memory.data(), "LSHTC", s, channels) {}
  auto view() { return kvmeld::relocatable<kvmeld::strided<T>>(&now, this->width); }
  kvmeld::strided<T> now;
};

template <class T> struct transposed_tensor : strided_tensor<T> {
  using strided_tensor<T>::strided_tensor;
  auto view() { return kvmeld::transposed<T>(this->memory.data(), "LSHCT", this->extent, this->width); }
};

template <class T> struct interleaved_tensor : strided_tensor<T> {
  using strided_tensor<T>::strided_tensor;
  // [track][channels / 8][slot][8]
  auto view() {
    kvmeld::shape const& s = this->extent;
    std::int64_t const track = std::int64_t{s.capacity} * this->width, head = track * s.sequences;
    kvmeld::cache_strides const st{head * s.kv_heads, track, head, 8, std::int64_t{s.capacity} * 8};
    return kvmeld::tiled(kvmeld::strided<T>(this->memory.data(), st, s, this->width / 8), 8);
  }
};

// Pages in an order that is not the sequences', with some that nobody uses in between.
template <class T, std::uint32_t Page> struct paged_tensor : tensor_base<T> {
  static std::uint32_t pages(kvmeld::shape const& s) { return kvmeld::ceil_div(s.capacity, Page); }
  paged_tensor(kvmeld::shape const& s, std::uint32_t channels)
      : tensor_base<T>(std::size_t{2} * s.sequences * pages(s) * s.layers * s.kv_heads * Page * channels,
                       channels),
        extent(s),
        table(s.sequences * pages(s)),
        shared(2 * table.size(), 0) {
    auto const n = static_cast<std::uint32_t>(table.size());
    for (std::uint32_t i = 0; i < n; ++i) table[i] = static_cast<std::int32_t>(2 * (n - 1 - i) + i % 2);
  }
  auto view() {
    auto const count = static_cast<std::uint32_t>(2 * table.size());
    kvmeld::pool_pages const from(this->memory.data(), kvmeld::table_rows(table.data(), pages(extent)),
                                  shared.data());
    return kvmeld::paged(from, Page, kvmeld::dense_pages("PLHTC", count, Page, extent, this->width), extent,
                         this->width);
  }
  kvmeld::shape extent;
  std::vector<std::int32_t> table;
  std::vector<std::uint8_t> shared;
};

// vLLM's keys: pages [page][layer][head][channels / 8][token][8].
template <class T, std::uint32_t Page> struct vllm_keys_tensor : paged_tensor<T, Page> {
  using paged_tensor<T, Page>::paged_tensor;
  auto view() {
    kvmeld::shape const& s = this->extent;
    std::int64_t const head = std::int64_t{Page} * this->width;
    kvmeld::page_strides const st{head * s.kv_heads * s.layers, head * s.kv_heads, head, 8, 8 * Page};
    kvmeld::pool_pages const from(this->memory.data(),
                                  kvmeld::table_rows(this->table.data(), this->pages(s)));
    return kvmeld::tiled(kvmeld::paged(from, Page, st, s, this->width / 8), 8);
  }
};

// vLLM's values: pages [page][layer][head][channel][token]. Tables as FlashInfer has them.
template <class T, std::uint32_t Page> struct vllm_values_tensor : paged_tensor<T, Page> {
  vllm_values_tensor(kvmeld::shape const& s, std::uint32_t channels) : paged_tensor<T, Page>(s, channels) {
    for (std::uint32_t i = 0; i <= s.sequences; ++i)
      first.push_back(static_cast<std::int32_t>(i * this->pages(s)));
  }
  auto view() {
    auto const count = static_cast<std::uint32_t>(2 * this->table.size());
    kvmeld::pool_pages const from(this->memory.data(), kvmeld::table_csr(first.data(), this->table.data()));
    return kvmeld::paged(from, Page, kvmeld::dense_pages("PLHCT", count, Page, this->extent, this->width),
                         this->extent, this->width);
  }
  std::vector<std::int32_t> first;
};

// A pointer per block of a sequence and 5 tokens, K or V behind 3 rows of something else (LMDeploy).
template <class T> struct blocks_tensor : tensor_base<T> {
  static constexpr std::uint32_t page = 5;
  blocks_tensor(kvmeld::shape const& s, std::uint32_t channels)
      : tensor_base<T>(s.sequences * kvmeld::ceil_div(s.capacity, page) * block(s, channels), channels),
        extent(s) {
    std::size_t const count = this->memory.size() / block(s, channels);
    for (std::size_t i = 0; i < count; ++i)
      blocks.push_back(this->memory.data() + (count - 1 - i) * block(s, channels));
  }
  static std::size_t block(kvmeld::shape const& s, std::uint32_t channels) {
    return (std::size_t{s.layers} * s.kv_heads * page + 3) * channels;
  }
  auto view() {
    std::int64_t const row = this->width, head = row * page;
    kvmeld::pointed_pages<T> const from{
        kvmeld::table_rows<void*>(blocks.data(), kvmeld::ceil_div(extent.capacity, page)),
        3 * this->width * sizeof(T)};
    return kvmeld::paged(from, page, {0, head * extent.kv_heads, head, row, 1}, extent, this->width);
  }
  kvmeld::shape extent;
  std::vector<void*> blocks;
};

// A ring behind two sinks, begun elsewhere in every sequence.
template <class T> struct ring_tensor : strided_tensor<T> {
  ring_tensor(kvmeld::shape const& s, std::uint32_t channels) : strided_tensor<T>(s, channels) {
    for (std::uint32_t i = 0; i < s.sequences; ++i) start.push_back(5 * i + s.capacity - 3);
  }
  auto view() { return kvmeld::ring(strided_tensor<T>::view(), this->extent.capacity, 2, start.data()); }
  std::vector<std::uint32_t> start;
};

// 8-bit floats with one scale for all.
template <class T> struct scaled_tensor : strided_tensor<T> {
  using strided_tensor<T>::strided_tensor;
  static constexpr bool quantised = true;
  static constexpr float scale = 0.125f;
  auto view() { return kvmeld::scaled(strided_tensor<T>::view(), scale); }
  float step(float const* row) const {
    return element_step<kvmeld::float16>(row, this->width) *
           (std::is_same_v<T, kvmeld::fp8_e4m3> ? 0x1p7f : 0x1p8f);
  }
};

// Codes of int8 and a scale per row.
template <class Scale> struct int8_memory {
  using element = std::int8_t;
  static constexpr bool quantised = true;
  int8_memory(kvmeld::shape const& s, std::uint32_t channels)
      : codes(s.slots() * channels), scales(s.slots()), extent(s), width(channels) {}
  support::byte_list bytes() const {
    support::byte_list out = support::bytes_of(codes), more = support::bytes_of(scales);
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  std::vector<std::int8_t> codes;
  std::vector<Scale> scales;
  kvmeld::shape extent;
  std::uint32_t width;
};

// The library's, scales in binary16.
struct int8_rows_tensor : int8_memory<kvmeld::float16> {
  using int8_memory::int8_memory;
  auto view() {
    return kvmeld::int8_rows(kvmeld::strided<std::int8_t>(codes.data(), "LSTHC", extent, width),
                             kvmeld::strided<kvmeld::float16>(scales.data(), "LSHTC", extent, 1));
  }
  float step(float const* row) const {
    return element_step<kvmeld::float16>(row, width) * (0x1p10f / 120.0f);
  }
};

// ggml's blocks of 32 channels.
template <template <class> class Rows, std::uint32_t Bytes> struct ggml_tensor {
  using element = std::uint8_t;
  static constexpr bool quantised = true;
  ggml_tensor(kvmeld::shape const& s, std::uint32_t channels)
      : memory(s.slots() * channels / 32 * Bytes), extent(s), width(channels) {}
  auto view() {
    return Rows<kvmeld::strided<std::uint8_t>>(
        kvmeld::strided<std::uint8_t>(memory.data(), "LSHTC", extent, width / 32 * Bytes));
  }
  support::byte_list bytes() const { return support::bytes_of(memory); }
  float step(float const* row) const {
    return element_step<kvmeld::float16>(row, width) * (0x1p10f / 120.0f);
  }
  std::vector<std::uint8_t> memory;
  kvmeld::shape extent;
  std::uint32_t width;
};
using q8_0_tensor = ggml_tensor<kvmeld::q8_0_rows, 34>;

struct int8_tensor : int8_memory<float> {
  using int8_memory::int8_memory;
  auto view() { return support::int8_rows(codes.data(), scales.data(), extent, width); }
  float step(float const* row) const {
    return element_step<kvmeld::float16>(row, width) * (0x1p10f / 127.0f);
  }
};

}  // namespace layout_test
