// What may happen to the bytes of a saved sequence on their way.
#pragma once

#include <kvmeld/save/save.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "support/cache_bytes.hpp"

namespace saved_edits {

// The same bytes with a checksum that matches.
inline support::byte_list sealed(support::byte_list bytes) {
  std::uint32_t const sum = kvmeld::saved::checksum_of({bytes.data(), bytes.size()});
  std::memcpy(bytes.data() + offsetof(kvmeld::saved::header, checksum), &sum, sizeof sum);
  return bytes;
}

template <class T> support::byte_list with(support::byte_list bytes, std::size_t at, T x) {
  std::memcpy(bytes.data() + at, &x, sizeof x);
  return bytes;
}

// Some edits, mostly of single numbers; mostly under a size and a checksum that match.
template <class Choices> support::byte_list spoiled(support::byte_list bytes, Choices& c) {
  constexpr std::uint32_t words[] = {0u,          1u,          2u,          3u,          17u,
                                     0x3f800000u, 0x7fffffffu, 0x80000000u, 0xfffffffeu, 0xffffffffu,
                                     0x7fc00000u, 0x7f800000u, 0x7f7fffffu, 0x00000001u};
  for (std::uint32_t edits = 1 + c.below(4); edits > 0 && bytes.size() >= 4; --edits) {
    std::uint32_t const n = static_cast<std::uint32_t>(bytes.size());
    std::uint32_t const at = c.below(n);
    auto const here = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (c.below(16)) {
    case 0: bytes.resize(at); break;
    case 1: bytes.insert(here, c.below(9), static_cast<std::byte>(c.below(256))); break;
    case 2: bytes.erase(here, here + static_cast<std::ptrdiff_t>(c.below(kvmeld::min_of(n - at, 9u)))); break;
    case 3:
    case 4: bytes[at] ^= static_cast<std::byte>(1u << c.below(8)); break;
    case 5:
    case 6: bytes[at] = static_cast<std::byte>(c.below(256)); break;
    default: bytes = with(bytes, kvmeld::min_of(at / 4 * 4, n - 4), c.pick(words));
    }
  }
  if (bytes.size() < sizeof(kvmeld::saved::header) || c.below(16) == 15) return bytes;
  if (c.below(16) != 15)
    bytes = with(bytes, offsetof(kvmeld::saved::header, bytes), std::uint64_t{bytes.size()});
  return sealed(bytes);
}

}  // namespace saved_edits
