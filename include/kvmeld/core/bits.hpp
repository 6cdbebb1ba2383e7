// SPDX-License-Identifier: Apache-2.0
// Floats as bits: an order and a test for finite numbers that hold under -ffast-math too.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstdint>
#include <cstring>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The bits of a float.
KVMELD_HD inline std::uint32_t float_bits(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

/// The float with these bits.
KVMELD_HD inline float bits_float(std::uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

/// Reads an object whose address is a multiple of its size. On a device this is one access; a memcpy would be
/// taken apart into bytes if the compiler cannot see the alignment.
template <class T> KVMELD_HD T read_aligned(void const* from) {
#if defined(__CUDA_ARCH__)
  return *static_cast<T const*>(from);
#else
  T x;
  std::memcpy(&x, from, sizeof x);
  return x;
#endif
}
/// Writes an object whose address is a multiple of its size.
template <class T> KVMELD_HD void write_aligned(void* to, T x) {
#if defined(__CUDA_ARCH__)
  *static_cast<T*>(to) = x;
#else
  std::memcpy(to, &x, sizeof x);
#endif
}

/// Number of bits that are set.
KVMELD_HD inline std::uint32_t count_bits(std::uint32_t x) {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint32_t>(__popc(x));
#else
  x -= (x >> 1) & 0x55555555u;
  x = (x & 0x33333333u) + ((x >> 2) & 0x33333333u);
  return (((x + (x >> 4)) & 0x0f0f0f0fu) * 0x01010101u) >> 24;
#endif
}

/// Number of zeros below the lowest bit that is set; 32 if there is none.
KVMELD_HD inline std::uint32_t trailing_zeros(std::uint32_t x) { return count_bits((x & (0u - x)) - 1u); }

/// False for NaN and infinities. Reads exponent bits: std::isfinite is constant under -ffast-math.
KVMELD_HD inline bool is_finite(float x) { return (float_bits(x) & 0x7f800000u) != 0x7f800000u; }

/// False for a double that is NaN or infinite.
inline bool is_finite(double x) {
  std::uint64_t u;
  std::memcpy(&u, &x, sizeof u);
  return ((u >> 52) & 0x7ffu) != 0x7ffu;
}

/// Whether low <= x <= high. False for NaN; under -ffast-math comparisons alone would let NaN pass.
inline bool is_within(double x, double low, double high) { return is_finite(x) && x >= low && x <= high; }

/// A total order of floats as unsigned integers: a < b implies order_key(a) < order_key(b), -0 equals +0, and
/// every NaN maps to 0, below -infinity. All decisions compare these keys, so backends cannot disagree about
/// a tie.
KVMELD_HD inline std::uint32_t order_key(float x) {
  std::uint32_t const u = float_bits(x);
  std::uint32_t const magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0;
  if (magnitude == 0) return 0x80000000u;
  return (u & 0x80000000u) ? ~u : (u | 0x80000000u);
}

/// The float that has this order key. The key of the two zeros gives +0, and key 0 (NaN) gives 0.
KVMELD_HD inline float order_value(std::uint32_t key) {
  if (key == 0) return 0.0f;
  return bits_float((key & 0x80000000u) ? key & 0x7fffffffu : ~key);
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
