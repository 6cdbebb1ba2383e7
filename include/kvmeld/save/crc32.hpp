// CRC-32 (ISO 3309, reflected 0x04C11DB7). It detects every change of a single byte and every burst of up to
// 32 bits.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {
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
}  // namespace detail

/// Continues the checksum `before` over the next `n` bytes; `before` is 0 for the first bytes.
constexpr std::uint32_t crc32(std::byte const* data, std::size_t n, std::uint32_t before = 0) {
  std::uint32_t x = ~before;
  for (std::size_t i = 0; i < n; ++i) {
    x = (x >> 8) ^ detail::crc32_of_byte.at[(x ^ std::to_integer<std::uint32_t>(data[i])) & 0xffu];
  }
  return ~x;
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
