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

// Where compilers have no tuned forms, the arrays have no definition, and nothing calls them.
#if defined(KVMELD_TUNED_X86) || defined(KVMELD_TUNED_NEON)
#if defined(KVMELD_TUNED_X86)
#define KVMELD_EACH_SET(f)                                                                                   \
  { tuned_form::sse2::f, tuned_form::avx2::f, tuned_form::avx512::f }
#else
#define KVMELD_EACH_SET(f)                                                                                   \
  { tuned_form::neon::f }
#endif
template <class T>
by_instruction_set<void(float const*, std::uint32_t, std::uint32_t, T const*, std::uint32_t, std::size_t,
                        std::uint32_t, float*, std::uint32_t)>
    typed_kernels<T>::products = KVMELD_EACH_SET(products<T>);
template <class T>
by_instruction_set<void(float const*, T const*, std::size_t, std::uint32_t const*, std::uint32_t,
                        std::uint32_t, float*)>
    typed_kernels<T>::dots = KVMELD_EACH_SET(dots<T>);
template <class T>
by_instruction_set<void(T const*, std::size_t, std::uint32_t, std::uint32_t, float const*, float*, float*)>
    typed_kernels<T>::measures = KVMELD_EACH_SET(measures<T>);
template <class T>
by_instruction_set<void(T const* const*, float const*, std::uint32_t, std::uint32_t, T*)>
    typed_kernels<T>::blend = KVMELD_EACH_SET(blend<T>);
template <class T>
by_instruction_set<std::uint32_t(T*, std::int64_t, std::uint32_t, detail::column_set_list const&, void*)>
    typed_kernels<T>::merge_columns = KVMELD_EACH_SET(merge_columns<T>);
template <class T>
by_instruction_set<bool(T const*, std::uint32_t)> typed_kernels<T>::all_finite = KVMELD_EACH_SET(all_finite);
template <class T>
by_instruction_set<void(float const*, std::uint32_t, std::uint32_t, float const*, T const*, std::size_t,
                        std::uint32_t, std::uint32_t, float*, std::size_t)>
    typed_kernels<T>::add_weighted = KVMELD_EACH_SET(add_weighted<T>);
template <class T>
by_instruction_set<void(T const*, std::uint32_t, float*)> typed_kernels<T>::decode =
    KVMELD_EACH_SET(decode<T>);
template <class T>
by_instruction_set<void(float const*, std::uint32_t, float const*, float const*, std::uint32_t, float const*,
                        std::uint32_t, std::uint32_t, std::uint32_t*, std::uint32_t*)>
    untyped_kernels<T>::match_rows = KVMELD_EACH_SET(match_rows);
template <class T>
by_instruction_set<std::uint32_t(float const*, std::uint32_t, float, float const*, float, bool,
                                 std::uint32_t*)>
    untyped_kernels<T>::bound_cosines = KVMELD_EACH_SET(bound_cosines);
template <class T>
by_instruction_set<void(void*, std::int64_t, std::uint32_t, std::size_t)> untyped_kernels<T>::clear_rows =
    KVMELD_EACH_SET(clear_rows);
template <class T>
by_instruction_set<void(void*, void const*, std::size_t)> untyped_kernels<T>::stream_row =
    KVMELD_EACH_SET(stream_row);
template <class T> by_instruction_set<void()> untyped_kernels<T>::drain = KVMELD_EACH_SET(drain);
template <class T>
by_instruction_set<key_counts(std::uint32_t const*, std::uint32_t, std::uint32_t, std::uint32_t,
                              std::uint32_t*, std::uint32_t)>
    untyped_kernels<T>::collect_keys = KVMELD_EACH_SET(collect_keys);
template <class T>
by_instruction_set<key_counts(float const*, std::uint32_t, std::uint32_t, std::uint32_t, std::uint8_t,
                              std::uint8_t, std::uint8_t*, std::uint32_t*, std::uint32_t*, std::uint32_t)>
    untyped_kernels<T>::split_scores = KVMELD_EACH_SET(split_scores);
template <class T>
by_instruction_set<std::uint32_t(std::uint32_t const*, std::uint32_t, std::uint32_t, bool, std::uint32_t*)>
    untyped_kernels<T>::list_keys = KVMELD_EACH_SET(list_keys);
template <class T>
by_instruction_set<std::uint32_t(std::uint32_t const*, std::uint32_t, std::uint32_t)>
    untyped_kernels<T>::kth_key = KVMELD_EACH_SET(kth_key);
template <class T>
by_instruction_set<float(float*, float const*, std::uint32_t, float*, float*, bool)>
    untyped_kernels<T>::soften = KVMELD_EACH_SET(soften);
template <class T>
by_instruction_set<void(float const*, float const*, std::uint32_t, float, float*)>
    untyped_kernels<T>::add_exponentials = KVMELD_EACH_SET(add_exponentials);
template <class T>
by_instruction_set<void(float const*, std::uint32_t, float*)> untyped_kernels<T>::log_degrees =
    KVMELD_EACH_SET(log_degrees);
template <class T>
by_instruction_set<void(std::uint32_t*, std::uint32_t const*, std::uint64_t const*, std::uint32_t)>
    untyped_kernels<T>::pack_words = KVMELD_EACH_SET(pack_words);
template <class T>
by_instruction_set<void(std::uint16_t*, std::uint16_t const*, std::uint64_t const*, std::uint32_t)>
    untyped_kernels<T>::pack_halves = KVMELD_EACH_SET(pack_halves);
#undef KVMELD_EACH_SET
#endif

/// The kernels of an instruction set; null for `generic` and for sets that are not supported (`supports`).
inline host_kernels const* kernels_of(instruction_set s) {
  static constexpr host_kernels sse2{0, 4}, avx2{1, 8}, avx512{2, 16}, neon{0, 4};
  if (!supports(s)) return nullptr;
  switch (s) {
  case instruction_set::sse2: return &sse2;
  case instruction_set::avx2: return &avx2;
  case instruction_set::avx512: return &avx512;
  case instruction_set::neon: return &neon;
  default: return nullptr;
  }
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
