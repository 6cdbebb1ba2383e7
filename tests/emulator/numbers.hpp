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

inline float from_half(std::uint16_t x) {
  std::uint32_t const sign = std::uint32_t{x} >> 15 << 31, size = x & 0x7fffu;
  if (size >= 0x7c00) return bits_as<float>(sign | 0x7f800000u | size << 13);  // infinity, NaN
  return bits_as<float>(sign | bits_as<std::uint32_t>(bits_as<float>(size << 13) * 0x1p112f));
}
/// To nearest even.
inline std::uint16_t to_half(float x) {
  auto const bits = bits_as<std::uint32_t>(x);
  std::uint32_t const sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  std::uint32_t code;
  if (size > 0x7f800000u) {
    code = 0x7e00u | (size >> 13 & 0x1ffu);  // NaN
  } else if (size >= 0x477ff000u) {
    code = 0x7c00u;
  } else if (size < 0x38800000u) {  // below the smallest normal number: numbers near 0.5 have its steps
    code = bits_as<std::uint32_t>(bits_as<float>(size) + 0.5f) - bits_as<std::uint32_t>(0.5f);
  } else {
    code = (size + 0xfffu + (size >> 13 & 1u) - (112u << 23)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | code);
}
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
