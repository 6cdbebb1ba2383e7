// The element types that matrix units multiply as they are stored.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// What 16 bits of an element mean to a matrix unit.
enum class matrix_format : std::uint8_t { none, f16, bf16 };

/// The format of an element type. Engines specialise it for their own 16-bit types. Elements of other types
/// are converted to float first.
template <class T> inline constexpr matrix_format matrix_format_of = matrix_format::none;
/// half is multiplied as it is stored.
template <> inline constexpr matrix_format matrix_format_of<half> = matrix_format::f16;
/// bfloat16 is multiplied as it is stored.
template <> inline constexpr matrix_format matrix_format_of<bfloat16> = matrix_format::bf16;

}  // namespace KVMELD_ABI
}  // namespace kvmeld
