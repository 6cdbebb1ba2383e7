// SPDX-License-Identifier: Apache-2.0
// Which vector instructions the tuned forms use. A program chooses them at run time, so one program is fast
// on every processor.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstdint>
#include <initializer_list>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Instruction sets of the tuned forms. `generic` has no tuned forms: it runs plain loops in the fixed order
/// of summation.
enum class instruction_set : std::uint8_t {
  generic,
  sse2,    ///< every x86-64 processor
  avx2,    ///< with FMA and F16C
  avx512,  ///< F, BW, DQ and VL
  neon,    ///< every AArch64 processor
};

/// Whether this program has kernels for the set and this processor has its instructions.
inline bool supports(instruction_set s) {
  switch (s) {
  case instruction_set::generic: return true;
#if defined(KVMELD_TUNED_X86)
  case instruction_set::sse2: return true;
  case instruction_set::avx2:  // every processor with AVX2 has F16C, which clang++ 14 cannot ask for
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  case instruction_set::avx512:
    return supports(instruction_set::avx2) && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
#elif defined(KVMELD_TUNED_NEON)
  case instruction_set::neon: return true;
#endif
  default: return false;
  }
}

/// The widest set that `supports` holds for.
inline instruction_set best_instruction_set() {
  for (instruction_set s :
       {instruction_set::avx512, instruction_set::avx2, instruction_set::sse2, instruction_set::neon}) {
    if (supports(s)) return s;
  }
  return instruction_set::generic;
}

/// The name of the set in reports.
constexpr char const* name_of(instruction_set s) {
  constexpr char const* names[] = {"generic", "SSE2", "AVX2", "AVX-512", "NEON"};
  return names[static_cast<std::uint8_t>(s)];
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
