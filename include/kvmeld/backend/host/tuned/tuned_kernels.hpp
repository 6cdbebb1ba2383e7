// The kernels of every instruction set that this compiler can compile for.
#pragma once

#include <kvmeld/backend/host/tuned/host_kernels.hpp>
#include <kvmeld/backend/host/tuned/instruction_set.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

// An attribute of each function says which instructions it may use, and no template parameter can supply that
// attribute. So kernels.inl is compiled once per instruction set.
namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

#if defined(KVMELD_TUNED_X86)
namespace avx512 {
#define KVMELD_SIMD_WIDTH 16
#define KVMELD_ENTRY __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))) inline
#define KVMELD_SIMD KVMELD_ENTRY __attribute__((always_inline))
#include "kernels.inl"
#undef KVMELD_SIMD_WIDTH
#undef KVMELD_ENTRY
}  // namespace avx512
namespace avx2 {
#define KVMELD_SIMD_WIDTH 8
#define KVMELD_ENTRY __attribute__((target("avx2,fma,f16c"))) inline
#include "kernels.inl"
#undef KVMELD_SIMD_WIDTH
#undef KVMELD_ENTRY
}  // namespace avx2
namespace sse2 {
#define KVMELD_SIMD_WIDTH 4
#define KVMELD_ENTRY inline
#include "kernels.inl"
#undef KVMELD_SIMD_WIDTH
#undef KVMELD_ENTRY
#undef KVMELD_SIMD
}  // namespace sse2
#elif defined(KVMELD_TUNED_NEON)
namespace neon {
#define KVMELD_SIMD_WIDTH 4
#define KVMELD_ENTRY inline
#define KVMELD_SIMD KVMELD_ENTRY __attribute__((always_inline))
#include "kernels.inl"
#undef KVMELD_SIMD_WIDTH
#undef KVMELD_ENTRY
#undef KVMELD_SIMD
}  // namespace neon
#endif

}  // namespace tuned_form

/// The kernels of an instruction set; null for `generic` and for sets that are not supported (`supports`). It
/// is a template so that one unit of a program can compile the kernels for all: see
/// <kvmeld/backend/host/extern_kernels.hpp>.
template <class = void> host_kernels const* kernels_of(instruction_set s) {
  if (!supports(s)) return nullptr;
  switch (s) {
#if defined(KVMELD_TUNED_X86)
  case instruction_set::sse2: return tuned_form::sse2::table();
  case instruction_set::avx2: return tuned_form::avx2::table();
  case instruction_set::avx512: return tuned_form::avx512::table();
#elif defined(KVMELD_TUNED_NEON)
  case instruction_set::neon: return tuned_form::neon::table();
#endif
  default: return nullptr;
  }
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
