// SPDX-License-Identifier: Apache-2.0
// Writes numbers to bytes and reads them back, in this machine's byte order. Without memory, a writer only
// counts bytes. A checksum tells whether bytes have changed.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/span.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

class byte_writer {
public:
  byte_writer() = default;
  explicit byte_writer(std::byte* to) : to_(to) {}

  template <class T> void put(T const* x, std::size_t n) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (to_ != nullptr && n != 0) std::memcpy(to_ + bytes_, x, n * sizeof(T));
    bytes_ += n * sizeof(T);
  }
  template <class T> void put(T const& x) { put(&x, 1); }
  std::size_t bytes() const { return bytes_; }

private:
  std::byte* to_ = nullptr;
  std::size_t bytes_ = 0;
};

class byte_reader {
public:
  explicit byte_reader(span<std::byte const> from) : from_(from) {}

  /// Returns false and reads nothing if fewer bytes are left.
  template <class T> bool get(T* x, std::size_t n) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (n > (from_.size() - at_) / sizeof(T)) return false;
    if (n != 0) std::memcpy(x, from_.data() + at_, n * sizeof(T));
    at_ += n * sizeof(T);
    return true;
  }
  template <class T> bool get(T& x) { return get(&x, 1); }
  std::size_t at() const { return at_; }
  std::size_t left() const { return from_.size() - at_; }

private:
  span<std::byte const> from_;
  std::size_t at_ = 0;
};

struct crc32_table {
  std::uint32_t at[256] = {};
  constexpr crc32_table() {
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t x = i;
      for (int bit = 0; bit < 8; ++bit) x = (x >> 1) ^ ((x & 1u) != 0 ? 0xedb88320u : 0u);
      at[i] = x;
    }
  }
};
inline constexpr crc32_table crc32_of_byte{};

/// CRC-32 (ISO 3309, reflected 0x04C11DB7): it detects every change of a single byte and every burst of up to
/// 32 bits. Continues the checksum `before` over the next `n` bytes; `before` is 0 for the first bytes.
constexpr std::uint32_t crc32(std::byte const* data, std::size_t n, std::uint32_t before = 0) {
  std::uint32_t x = ~before;
  for (std::size_t i = 0; i < n; ++i) {
    x = (x >> 8) ^ crc32_of_byte.at[(x ^ std::to_integer<std::uint32_t>(data[i])) & 0xffu];
  }
  return ~x;
}

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
