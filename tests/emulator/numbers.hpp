// Numbers of a device: 16-bit floats, and roundings that C++ has no operator for.
#pragma once

#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulator {

enum class rounding { nearest, zero, down, up };

template <class To, class From> To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}

inline float from_half(std::uint16_t x) { return static_cast<float>(bits_as<_Float16>(x)); }
inline std::uint16_t to_half(float x) { return bits_as<std::uint16_t>(static_cast<_Float16>(x)); }
inline float from_bfloat16(std::uint16_t x) { return bits_as<float>(static_cast<std::uint32_t>(x) << 16); }
inline std::uint16_t to_bfloat16(float x) {
  if (std::isnan(x)) return 0x7fff;
  auto const bits = bits_as<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float toward_zero(double x) {
  float const f = static_cast<float>(x);
  return std::isfinite(f) && std::abs(static_cast<double>(f)) > std::abs(x) ? std::nextafter(f, 0.0f) : f;
}
/// Denormal numbers are zeros.
inline float flushed(float x) { return std::abs(x) < 1.17549435e-38f ? std::copysign(0.0f, x) : x; }

/// f() under another rounding; the values it uses have to be volatile.
template <class F> auto rounded(rounding r, F f) {
  if (r == rounding::nearest) return f();
  int const modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
  std::fesetround(modes[static_cast<int>(r)]);
  auto const x = f();
  std::fesetround(FE_TONEAREST);
  return x;
}

}  // namespace emulator
