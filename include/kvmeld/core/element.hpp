// SPDX-License-Identifier: Apache-2.0
// Storage types of K and V, their conversion to the float that all arithmetic uses, and what they are to a
// matrix unit.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// IEEE binary16 as bits. Conversion rounds to nearest even, overflows to infinity and keeps NaN.
struct float16 {
  std::uint16_t bits;  ///< the number as stored
};

/// bfloat16 as bits. Conversion rounds to nearest even and keeps NaN.
struct bfloat16 {
  std::uint16_t bits;  ///< the number as stored
};

/// Converts a storage type to and from float. Engines specialise it for their own types:
/// `static float to_float(T)`, `static T from_float(float)`, `static constexpr float lowest` (most negative
/// finite). With `static constexpr char const* name` a saved sequence says which type its rows have; types of
/// one name hold the same numbers.
template <class T> struct element_traits;

/// float needs no conversion.
template <> struct element_traits<float> {
  static constexpr char const* name = "float32";
  static constexpr float lowest = -3.402823466e+38f;
  KVMELD_HD static float to_float(float x) { return x; }
  KVMELD_HD static float from_float(float x) { return x; }
};

/// bfloat16 is a float without its last 16 bits.
template <> struct element_traits<bfloat16> {
  static constexpr char const* name = "bfloat16";
  static constexpr float lowest = -3.38953139e+38f;
  KVMELD_HD static float to_float(bfloat16 x) { return bits_float(std::uint32_t{x.bits} << 16); }
  KVMELD_HD static bfloat16 from_float(float x) {
    std::uint32_t const u = float_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40u)};
    return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
  }
};

/// Conversion of IEEE binary16.
template <> struct element_traits<float16> {
  static constexpr char const* name = "float16";
  static constexpr float lowest = -65504.0f;

  KVMELD_HD static float to_float(float16 x) {
    // Subnormals go through an integer. As subnormal floats they would be flushed to zero under -ffast-math.
    std::uint32_t const magnitude = x.bits & 0x7fffu;
    std::uint32_t const subnormal =
        float_bits(static_cast<float>(magnitude) * 5.9604644775390625e-8f);  // 2^-24
    std::uint32_t const normal = (magnitude << 13) + (magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u);
    return bits_float((magnitude < 0x0400u ? subnormal : normal) | (std::uint32_t{x.bits & 0x8000u} << 16));
  }

  KVMELD_HD static float16 from_float(float x) {
    std::uint32_t const u = float_bits(x);
    std::uint32_t const sign = (u >> 16) & 0x8000u;
    std::uint32_t const magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
    if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // rounds beyond 65504
    if (magnitude < 0x38800000u) {  // result subnormal: align to 2^-24 and round to nearest even
      std::uint32_t const shift = 126u - (magnitude >> 23);
      if (shift > 24u) return {static_cast<std::uint16_t>(sign)};
      std::uint32_t const mantissa = (magnitude & 0x7fffffu) | 0x800000u;
      std::uint32_t const kept = mantissa >> shift;
      std::uint32_t const rest = mantissa & ((1u << shift) - 1u);
      std::uint32_t const middle = 1u << (shift - 1u);
      std::uint32_t const up = rest > middle || (rest == middle && (kept & 1u)) ? 1u : 0u;
      return {static_cast<std::uint16_t>(sign | (kept + up))};
    }
    std::uint32_t const rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
    return {static_cast<std::uint16_t>(sign | (rounded >> 13))};
  }
};

/// What 16 bits of an element mean to a matrix unit.
enum class matrix_format : std::uint8_t { none, f16, bf16 };

/// The format of an element type. Engines specialise it for their own 16-bit types. Elements of other types
/// are converted to float first.
template <class T> inline constexpr matrix_format matrix_format_of = matrix_format::none;
/// float16 is multiplied as it is stored.
template <> inline constexpr matrix_format matrix_format_of<float16> = matrix_format::f16;
/// bfloat16 is multiplied as it is stored.
template <> inline constexpr matrix_format matrix_format_of<bfloat16> = matrix_format::bf16;

}  // namespace KVMELD_ABI
}  // namespace kvmeld
