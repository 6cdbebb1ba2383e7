// Floats as bits: ordering and finiteness that survive -ffast-math.
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

/// An object whose address is a multiple of its size: one access on a device, whose compiler takes a memcpy
/// apart into bytes where it cannot see the alignment.
template <class T> KVMELD_HD T read_aligned(void const* from) {
#if defined(__CUDA_ARCH__)
  return *static_cast<T const*>(from);
#else
  T x;
  std::memcpy(&x, from, sizeof x);
  return x;
#endif
}
/// The same the other way.
template <class T> KVMELD_HD void write_aligned(void* to, T x) {
#if defined(__CUDA_ARCH__)
  *static_cast<T*>(to) = x;
#else
  std::memcpy(to, &x, sizeof x);
#endif
}

/// Bits that are set.
KVMELD_HD inline std::uint32_t count_bits(std::uint32_t x) {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint32_t>(__popc(x));
#else
  x -= (x >> 1) & 0x55555555u;
  x = (x & 0x33333333u) + ((x >> 2) & 0x33333333u);
  return (((x + (x >> 4)) & 0x0f0f0f0fu) * 0x01010101u) >> 24;
#endif
}

/// False for NaN and infinities. Reads exponent bits: std::isfinite is constant under -ffast-math.
KVMELD_HD inline bool is_finite(float x) { return (float_bits(x) & 0x7f800000u) != 0x7f800000u; }

/// The same of a double.
inline bool is_finite(double x) {
  std::uint64_t u;
  std::memcpy(&u, &x, sizeof u);
  return ((u >> 52) & 0x7ffu) != 0x7ffu;
}

/// Whether low <= x <= high: false for NaN, which comparisons alone let pass under -ffast-math.
inline bool is_within(double x, double low, double high) { return is_finite(x) && x >= low && x <= high; }

/// Total order of floats as unsigned integers: a < b implies order_key(a) < order_key(b); -0 equals +0; every
/// NaN maps to 0, below -infinity. All decisions compare these keys, so that no backend can disagree about a
/// tie.
KVMELD_HD inline std::uint32_t order_key(float x) {
  std::uint32_t const u = float_bits(x);
  std::uint32_t const magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0;
  if (magnitude == 0) return 0x80000000u;
  return (u & 0x80000000u) ? ~u : (u | 0x80000000u);
}

/// The float that has this order key; of the two zeros +0, and 0 where there was no number.
KVMELD_HD inline float order_value(std::uint32_t key) {
  if (key == 0) return 0.0f;
  return bits_float((key & 0x80000000u) ? key & 0x7fffffffu : ~key);
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
