// SPDX-License-Identifier: Apache-2.0
// The CUDA Toolkit's own 16-bit types as element types of K and V.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// CUDA's IEEE binary16 type.
template <> struct element_traits<__half> {
  static constexpr char const* name = element_traits<float16>::name;
  static constexpr float lowest = -65504.0f;
  KVMELD_HD static float to_float(__half x) { return __half2float(x); }
  KVMELD_HD static __half from_float(float x) { return __float2half_rn(x); }
};

/// CUDA's bfloat16 type.
template <> struct element_traits<__nv_bfloat16> {
  static constexpr char const* name = element_traits<bfloat16>::name;
  static constexpr float lowest = -3.38953139e+38f;
  KVMELD_HD static float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
  KVMELD_HD static __nv_bfloat16 from_float(float x) { return __float2bfloat16_rn(x); }
};

/// The matrix unit multiplies __half as it is stored.
template <> inline constexpr matrix_format matrix_format_of<__half> = matrix_format::f16;
/// The matrix unit multiplies __nv_bfloat16 as it is stored.
template <> inline constexpr matrix_format matrix_format_of<__nv_bfloat16> = matrix_format::bf16;

}  // namespace KVMELD_ABI
}  // namespace kvmeld
