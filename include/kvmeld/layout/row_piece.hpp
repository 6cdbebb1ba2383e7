// Pieces of 16 bytes, what a lane reads or writes with one instruction.
#pragma once

#include <kvmeld/core/config.hpp>

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

/// Whether 16 bytes at once may be read or written here.
KVMELD_HD inline bool is_piece_aligned(void const* p) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
}

/// 16 bytes between two such places.
KVMELD_HD inline void copy_piece(void* to, void const* from) {
#if defined(__CUDA_ARCH__)
  *static_cast<uint4*>(to) = *static_cast<uint4 const*>(from);
#else
  std::memcpy(to, from, 16);
#endif
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
