// SPDX-License-Identifier: Apache-2.0
// 8-bit floats as storage types.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// OCP E4M3 as bits: no infinities, up to 448. Conversion rounds to nearest even, saturates and keeps NaN.
struct fp8_e4m3 {
  std::uint8_t bits;  ///< sign, four bits of exponent, three of mantissa
};

/// OCP E5M2 as bits, up to 57344. Conversion rounds to nearest even, saturates (infinities too) and keeps
/// NaN.
struct fp8_e5m2 {
  std::uint8_t bits;  ///< sign, five bits of exponent, two of mantissa
};

namespace detail {

/// Codes with `Mantissa` bits of mantissa and an exponent biased by `Bias`. `Most` is the code of the largest
/// number.
template <std::uint32_t Mantissa, std::uint32_t Bias, std::uint8_t Most, std::uint8_t NaN> struct fp8_code {
  KVMELD_HD static float decode(std::uint8_t code) {
    std::uint32_t const magnitude = code & 0x7fu, sign = std::uint32_t{code & 0x80u} << 24;
    std::uint32_t const exponent = magnitude >> Mantissa, mantissa = magnitude & ((1u << Mantissa) - 1u);
    if (magnitude > Most) {
      bool const infinite = Most + 1u != NaN && magnitude == Most + 1u;  // E5M2 has one code for infinity
      return bits_float(sign | (infinite ? 0x7f800000u : 0x7fc00000u));
    }
    constexpr float step = power_of_two(1 - static_cast<int>(Bias + Mantissa));
    if (exponent == 0) return bits_float(sign | float_bits(static_cast<float>(mantissa) * step));
    return bits_float(sign | ((exponent + 127u - Bias) << 23) | (mantissa << (23u - Mantissa)));
  }

  KVMELD_HD static std::uint8_t encode(float x) {
    std::uint32_t const u = float_bits(x), magnitude = u & 0x7fffffffu;
    auto const sign = static_cast<std::uint8_t>((u >> 24) & 0x80u);
    if (magnitude > 0x7f800000u) return static_cast<std::uint8_t>(sign | NaN);
    std::uint32_t code;
    if (magnitude < (128u - Bias) << 23) {  // result subnormal: align to its step and round to nearest even
      std::uint32_t const shift = 151u - Bias - Mantissa - (magnitude >> 23);
      if (shift > 24u) return sign;
      std::uint32_t const whole = (magnitude & 0x7fffffu) | 0x800000u;
      std::uint32_t const rest = whole & ((1u << shift) - 1u), middle = 1u << (shift - 1u);
      code = whole >> shift;
      code += rest > middle || (rest == middle && (code & 1u) != 0) ? 1u : 0u;
    } else {
      constexpr std::uint32_t shift = 23u - Mantissa;
      code = (magnitude - ((127u - Bias) << 23) + (1u << (shift - 1u)) - 1u + ((magnitude >> shift) & 1u)) >>
             shift;
    }
    return static_cast<std::uint8_t>(sign | (code > Most ? Most : code));
  }

private:
  KVMELD_HD static constexpr float power_of_two(int power) {
    float x = 1.0f;
    for (; power < 0; ++power) x *= 0.5f;
    return x;
  }
};

using e4m3_code = fp8_code<3, 7, 0x7e, 0x7f>;
using e5m2_code = fp8_code<2, 15, 0x7b, 0x7f>;

}  // namespace detail

/// Conversion saturates at 448.
template <> struct element_traits<fp8_e4m3> {
  static constexpr char const* name = "fp8_e4m3";
  static constexpr float lowest = -448.0f;
  KVMELD_HD static float to_float(fp8_e4m3 x) { return detail::e4m3_code::decode(x.bits); }
  KVMELD_HD static fp8_e4m3 from_float(float x) { return {detail::e4m3_code::encode(x)}; }
};
/// Conversion saturates at 57344.
template <> struct element_traits<fp8_e5m2> {
  static constexpr char const* name = "fp8_e5m2";
  static constexpr float lowest = -57344.0f;
  KVMELD_HD static float to_float(fp8_e5m2 x) { return detail::e5m2_code::decode(x.bits); }
  KVMELD_HD static fp8_e5m2 from_float(float x) { return {detail::e5m2_code::encode(x)}; }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
