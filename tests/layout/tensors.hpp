// Memory for one tensor (K or V) in each layout, with one interface: view(), bytes(), and how coarse storage is.
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
  return most * (std::is_same_v<T, float> ? 0.0f : std::is_same_v<T, kvmeld::half> ? 0x1p-10f : 0x1p-7f);
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
  auto view() { return support::interleaved<T>(this->memory.data(), 8, this->extent, this->width); }
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
    for (std::uint32_t i = 0; i < n; ++i) table[i] = 2 * (n - 1 - i) + i % 2;
  }
  auto view() {
    return support::paged<T>(this->memory.data(), table.data(), shared.data(), Page, extent, this->width);
  }
  kvmeld::shape extent;
  std::vector<std::uint32_t> table;
  std::vector<std::uint8_t> shared;
};

struct int8_tensor {
  using element = std::int8_t;
  static constexpr bool quantised = true;
  int8_tensor(kvmeld::shape const& s, std::uint32_t channels)
      : codes(s.slots() * channels), scales(s.slots()), extent(s), width(channels) {}
  auto view() { return support::int8_rows(codes.data(), scales.data(), extent, width); }
  support::byte_list bytes() const {
    support::byte_list out = support::bytes_of(codes), more = support::bytes_of(scales);
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  float step(float const* row) const { return element_step<kvmeld::half>(row, width) * (0x1p10f / 127.0f); }
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  kvmeld::shape extent;
  std::uint32_t width;
};

}  // namespace layout_test
