// SPDX-License-Identifier: Apache-2.0
// Kokkos' 16-bit types as element types of K and V, where they are types of their own. On hosts they are
// usually float.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>

#include <Kokkos_Core.hpp>
#include <Kokkos_Half.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {

#if defined(KOKKOS_HALF_T_IS_FLOAT) && !KOKKOS_HALF_T_IS_FLOAT
template <> struct element_traits<Kokkos::Experimental::half_t> {
  static constexpr char const* name = element_traits<float16>::name;
  static constexpr float lowest = -65504.0f;
  KVMELD_HD static float to_float(Kokkos::Experimental::half_t x) { return static_cast<float>(x); }
  KVMELD_HD static Kokkos::Experimental::half_t from_float(float x) {
    return Kokkos::Experimental::half_t(x);
  }
};
#endif

#if defined(KOKKOS_BHALF_T_IS_FLOAT) && !KOKKOS_BHALF_T_IS_FLOAT
template <> struct element_traits<Kokkos::Experimental::bhalf_t> {
  static constexpr char const* name = element_traits<bfloat16>::name;
  static constexpr float lowest = -3.38953139e+38f;
  KVMELD_HD static float to_float(Kokkos::Experimental::bhalf_t x) { return static_cast<float>(x); }
  KVMELD_HD static Kokkos::Experimental::bhalf_t from_float(float x) {
    return Kokkos::Experimental::bhalf_t(x);
  }
};
#endif

}  // namespace KVMELD_ABI
}  // namespace kvmeld
