// SPDX-License-Identifier: Apache-2.0
// Pieces of 16 bytes, which a lane reads or writes with one instruction.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/exec/unrolled.hpp>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Consecutive channels of a row.
template <class T> struct alignas(16) row_piece {
  static constexpr std::uint32_t size = 16 / sizeof(T);
  T x[size];
};

/// Element types that pieces are made of.
template <class T>
inline constexpr bool fits_pieces = std::is_default_constructible_v<T>&& std::is_trivially_copyable_v<T> &&
                                    (sizeof(T) == 4 || sizeof(T) == 2 || sizeof(T) == 1);

namespace detail {

template <class T>
using bits_of = std::conditional_t<sizeof(T) == 4, std::uint32_t,
                                   std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>;

}  // namespace detail

/// Whether 16 bytes may be read or written here at once.
KVMELD_HD inline bool is_piece_aligned(void const* p) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
}

/// Copies 16 bytes between two addresses that are aligned to 16 bytes.
KVMELD_HD inline void copy_piece(void* to, void const* from) {
#if defined(__CUDA_ARCH__)
  *static_cast<uint4*>(to) = *static_cast<uint4 const*>(from);
#else
  std::memcpy(to, from, 16);
#endif
}

/// Copies 8 bytes between two addresses that are aligned to 8 bytes.
KVMELD_HD inline void copy_half_piece(void* to, void const* from) {
#if defined(__CUDA_ARCH__)
  *static_cast<uint2*>(to) = *static_cast<uint2 const*>(from);
#else
  std::memcpy(to, from, 8);
#endif
}

/// Loads a piece into registers from an aligned address. On a device, words are taken apart in registers. A
/// piece that receives 16 bytes at once would have to lie in memory.
template <class T> KVMELD_HD row_piece<T> load_piece(void const* from) {
  row_piece<T> p;
#if defined(__CUDA_ARCH__)
  using bits = detail::bits_of<T>;
  uint4 const v = *static_cast<uint4 const*>(from);
  std::uint32_t const words[4] = {v.x, v.y, v.z, v.w};
  unrolled<row_piece<T>::size>([&](auto channel) {
    constexpr std::uint32_t c = decltype(channel)::value, byte = c * sizeof(T);
    bits const x = static_cast<bits>(words[byte / 4] >> byte % 4 * 8);
    std::memcpy(&p.x[c], &x, sizeof x);
  });
#else
  copy_piece(&p, from);
#endif
  return p;
}

/// The piece as four words, as it lies in memory. On a device, words are put together in registers.
template <class T> KVMELD_HD void pack_piece(row_piece<T> const& p, std::uint32_t (&words)[4]) {
#if defined(__CUDA_ARCH__)
  using bits = detail::bits_of<T>;
  words[0] = words[1] = words[2] = words[3] = 0;
  unrolled<row_piece<T>::size>([&](auto channel) {
    constexpr std::uint32_t c = decltype(channel)::value, byte = c * sizeof(T);
    bits x;
    std::memcpy(&x, &p.x[c], sizeof x);
    words[byte / 4] |= static_cast<std::uint32_t>(x) << byte % 4 * 8;
  });
#else
  std::memcpy(words, &p, sizeof words);
#endif
}

/// Stores a piece to an aligned address in memory, with one instruction. nvcc takes a store of a uint4 apart
/// where a branch beside it stores channel by channel.
template <class T> KVMELD_HD void store_piece(void* to, row_piece<T> const& p) {
#if defined(__CUDA_ARCH__)
  std::uint32_t words[4];
  pack_piece(p, words);
  asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
#else
  copy_piece(to, &p);
#endif
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
