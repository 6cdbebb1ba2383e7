// SPDX-License-Identifier: Apache-2.0
// The tuned forms of the host: one function per instruction set. A program chooses the set when it runs, and
// teams carry the choice. A unit compiles the functions that it calls, and no others.
#pragma once

#include <kvmeld/backend/host/tuned/instruction_set.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/exec/columns.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Pairs of channels that turn_run takes at most.
constexpr std::uint32_t most_turned = 64;

struct key_counts {
  std::uint32_t above, inside;
};

/// A function for each instruction set of this processor family: SSE2, AVX2 and AVX-512, or NEON alone.
template <class Function> using by_instruction_set = Function* const[3];

/// The kernels that read or write rows of storage type T: float, float16 or bfloat16. Other rows are floats
/// in scratch.
template <class T> struct typed_kernels {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>,
                "kvmeld: no kernel reads this element type");
  /// out[i * out_ld + j] = dot(a row i, b row j). Rows of b lie b_ld elements apart.
  static by_instruction_set<void(float const* a, std::uint32_t rows, std::uint32_t a_ld, T const* b,
                                 std::uint32_t columns, std::size_t b_ld, std::uint32_t d, float* out,
                                 std::uint32_t out_ld)>
      products;
  /// out[i] = dot(row, row at[i] of pool). Rows of the pool lie ld elements apart.
  static by_instruction_set<void(float const* row, T const* pool, std::size_t ld, std::uint32_t const* at,
                                 std::uint32_t count, std::uint32_t d, float* out)>
      dots;
  /// square[i] = dot(row i, row i) and, unless x is null, product[i] = dot(row i, x). Rows lie ld elements
  /// apart.
  static by_instruction_set<void(T const* rows, std::size_t ld, std::uint32_t count, std::uint32_t d,
                                 float const* x, float* square, float* product)>
      measures;
  /// Converts n elements to floats.
  static by_instruction_set<void(T const* from, std::uint32_t n, float* to)> decode;
  /// to[c] = sum over i < count of weight[i] * row[i][c], in the order and with the rounding of the generic
  /// loop.
  static by_instruction_set<void(T const* const* row, float const* weight, std::uint32_t count,
                                 std::uint32_t n, T* to)>
      blend;
  /// x[pivot] = sum of weight * x[member] of every set, in the order and with the rounding of the generic
  /// loop. Each channel x is a column of storage; columns lie `stride` elements apart. Reads all slots of the
  /// listed squares, `lanes` channels at a time. Returns how many channels it has done; fewer than `lanes`
  /// are left. `scratch`: [slots + sets][lanes] elements.
  static by_instruction_set<std::uint32_t(T* columns, std::int64_t stride, std::uint32_t channels,
                                          detail::column_set_list const& sets, void* scratch)>
      merge_columns;
  /// Whether no element is NaN or infinite.
  static by_instruction_set<bool(T const* x, std::uint32_t n)> all_finite;
  /// total[r][c] = factor[r] * total[r][c] + sum over t < tokens of p[r * p_ld + t] * v[t][c], for d channels
  /// c. Rows of v lie v_ld elements apart; rows of total lie total_ld apart.
  static by_instruction_set<void(float const* p, std::uint32_t rows, std::uint32_t p_ld, float const* factor,
                                 T const* v, std::size_t v_ld, std::uint32_t tokens, std::uint32_t d,
                                 float* total, std::size_t total_ld)>
      add_weighted;
};

/// The kernels that depend on no storage type. A template, so that a unit compiles those that it calls.
template <class = void> struct untyped_kernels {
  /// Updates the best column of each row, see tile_similarity.
  static by_instruction_set<void(float const* a, std::uint32_t rows, float const* inverse_row, float const* b,
                                 std::uint32_t columns, float const* inverse_column, std::uint32_t d,
                                 std::uint32_t first_column, std::uint32_t* best_key,
                                 std::uint32_t* best_column)>
      match_rows;
  /// bound[j] = the bits of `slack` times cosine(products[j], inverse_row, inverse_column[j]), or if
  /// `both_signs` times its magnitude. Without `both_signs`, 0 for cosines below 0. NaN stays NaN. Returns
  /// the first j with the largest bound, or any j if no bound is a number; n >= 1.
  static by_instruction_set<std::uint32_t(float const* products, std::uint32_t n, float inverse_row,
                                          float const* inverse_column, float slack, bool both_signs,
                                          std::uint32_t* bound)>
      bound_cosines;
  /// Zeroes `rows` rows of `bytes` each, `stride` bytes apart. Many bytes are written past the caches.
  static by_instruction_set<void(void* first, std::int64_t stride, std::uint32_t rows, std::size_t bytes)>
      clear_rows;
  /// memcpy, past the caches where whole lines are copied to whole lines.
  static by_instruction_set<void(void* to, void const* from, std::size_t bytes)> stream_row;
  /// Makes everything written past the caches visible to other threads too.
  static by_instruction_set<void()> drain;
  /// Counts the keys above `high` and those in [low, high]. Writes the latter to `out` in order, as long as
  /// `room` leaves space for a vector. `out` may be `keys`.
  static by_instruction_set<key_counts(std::uint32_t const* keys, std::uint32_t n, std::uint32_t low,
                                       std::uint32_t high, std::uint32_t* out, std::uint32_t room)>
      collect_keys;
  /// The same for scores by their order keys, without NaN: keys inside go to `keys`, their indices to `at`.
  /// Also out[i] = best for scores above `high`, and rest for all others.
  static by_instruction_set<key_counts(
      float const* scores, std::uint32_t n, std::uint32_t low, std::uint32_t high, std::uint8_t best,
      std::uint8_t rest, std::uint8_t* out, std::uint32_t* keys, std::uint32_t* at, std::uint32_t room)>
      partition_scores;
  /// Writes the ascending indices of the keys not below `bar`, or strictly above it, and returns how many.
  /// `out` has space for n indices and a vector more.
  static by_instruction_set<std::uint32_t(std::uint32_t const* keys, std::uint32_t n, std::uint32_t bar,
                                          bool strictly, std::uint32_t* out)>
      list_keys;
  /// The k-th highest of n keys; n >= k >= 1.
  static by_instruction_set<std::uint32_t(std::uint32_t const* keys, std::uint32_t n, std::uint32_t k)>
      kth_key;
  /// Turns the logits of a row, n >= 1, into weights exp(logit - highest) in place. Adds biases where `bias`
  /// is not null. If `before`, `highest` and `sum` hold those of the tiles before. Afterwards they hold those
  /// of all tiles. Returns the factor that rescales earlier sums.
  static by_instruction_set<float(float* logits, float const* bias, std::uint32_t n, float* highest,
                                  float* sum, bool before)>
      soften;
  /// out[j] += exp(logits[j] + bias[j] - norm); bias may be null.
  static by_instruction_set<void(float const* logits, float const* bias, std::uint32_t n, float norm,
                                 float* out)>
      add_exponentials;
  /// Rotates `pairs` pairs of channels of each of `count` rows of `dim` floats: pair p of row i by
  /// (at + i * step) * turns[p] turns, for `step` 1 or -1. At most most_turned pairs. The second channel of a
  /// pair is `apart` behind the first; 1: pairs lie side by side.
  static by_instruction_set<void(float* rows, std::uint32_t count, std::uint32_t dim, std::uint32_t pairs,
                                 std::uint32_t apart, double const* turns, std::int64_t at, int step)>
      turn_run;
  /// out[i] = log_of_degree(degree[i]).
  static by_instruction_set<void(float const* degree, std::uint32_t n, float* out)> log_degrees;
  /// Packs the elements of from[0 .. n) whose bit is set into `to`, in order. `to` must not lie behind
  /// `from`. Bits from n on are clear.
  static by_instruction_set<void(std::uint32_t* to, std::uint32_t const* from, std::uint64_t const* bits,
                                 std::uint32_t n)>
      pack_words;
  static by_instruction_set<void(std::uint16_t* to, std::uint16_t const* from, std::uint64_t const* bits,
                                 std::uint32_t n)>
      pack_halves;
};

// An attribute of each function says which instructions it may use, and no template parameter can supply that
// attribute. So kernels.inl is compiled once per instruction set.
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

// Under nvcc the arrays have no definition: a unit of nvcc calls no kernel, and others of the program may.
#if !defined(__CUDACC__)
#if defined(KVMELD_TUNED_X86)
#define KVMELD_EACH_SET(f)                                                                                   \
  { tuned_form::sse2::f, tuned_form::avx2::f, tuned_form::avx512::f }
#elif defined(KVMELD_TUNED_NEON)
#define KVMELD_EACH_SET(f)                                                                                   \
  { tuned_form::neon::f }
#else
#define KVMELD_EACH_SET(f)                                                                                   \
  {}
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
    untyped_kernels<T>::partition_scores = KVMELD_EACH_SET(partition_scores);
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
by_instruction_set<void(float*, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, double const*,
                        std::int64_t, int)>
    untyped_kernels<T>::turn_run = KVMELD_EACH_SET(turn_run);
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

/// The kernels of one instruction set. Calls have the parameters of typed_kernels and untyped_kernels.
struct host_kernels {
  /// The index of this instruction set in each array.
  std::uint32_t set;
  /// Floats in one vector.
  std::uint32_t lanes;

  /// Whether the kernels read and write the storage type T themselves.
  template <class T>
  static constexpr bool reads =
      std::is_same_v<T, float> || std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>;

  template <class T>
  void products(float const* a, std::uint32_t rows, std::uint32_t a_ld, T const* b, std::uint32_t columns,
                std::size_t b_ld, std::uint32_t d, float* out, std::uint32_t out_ld) const {
    typed_kernels<T>::products[set](a, rows, a_ld, b, columns, b_ld, d, out, out_ld);
  }
  template <class T>
  void dots(float const* row, T const* pool, std::size_t ld, std::uint32_t const* at, std::uint32_t count,
            std::uint32_t d, float* out) const {
    typed_kernels<T>::dots[set](row, pool, ld, at, count, d, out);
  }
  template <class T>
  void measures(T const* rows, std::size_t ld, std::uint32_t count, std::uint32_t d, float const* x,
                float* square, float* product) const {
    typed_kernels<T>::measures[set](rows, ld, count, d, x, square, product);
  }
  template <class T>
  void blend(T const* const* row, float const* weight, std::uint32_t count, std::uint32_t n, T* to) const {
    typed_kernels<T>::blend[set](row, weight, count, n, to);
  }
  template <class T>
  std::uint32_t merge_columns(T* columns, std::int64_t stride, std::uint32_t channels,
                              detail::column_set_list const& sets, void* scratch) const {
    return typed_kernels<T>::merge_columns[set](columns, stride, channels, sets, scratch);
  }
  template <class T> bool all_finite(T const* x, std::uint32_t n) const {
    return typed_kernels<T>::all_finite[set](x, n);
  }
  template <class T>
  void add_weighted(float const* p, std::uint32_t rows, std::uint32_t p_ld, float const* factor, T const* v,
                    std::size_t v_ld, std::uint32_t tokens, std::uint32_t d, float* total,
                    std::size_t total_ld) const {
    typed_kernels<T>::add_weighted[set](p, rows, p_ld, factor, v, v_ld, tokens, d, total, total_ld);
  }
  /// An engine's own types go through their element_traits.
  template <class T> void decode(T const* from, std::uint32_t n, float* to) const {
    if constexpr (std::is_same_v<T, float>) {
      std::memcpy(to, from, n * sizeof(float));
    } else if constexpr (reads<T>) {
      typed_kernels<T>::decode[set](from, n, to);
    } else {
      for (std::uint32_t i = 0; i < n; ++i) to[i] = element_traits<T>::to_float(from[i]);
    }
  }
  void match_rows(float const* a, std::uint32_t rows, float const* inverse_row, float const* b,
                  std::uint32_t columns, float const* inverse_column, std::uint32_t d,
                  std::uint32_t first_column, std::uint32_t* best_key, std::uint32_t* best_column) const {
    untyped_kernels<>::match_rows[set](a, rows, inverse_row, b, columns, inverse_column, d, first_column,
                                       best_key, best_column);
  }
  std::uint32_t bound_cosines(float const* products, std::uint32_t n, float inverse_row,
                              float const* inverse_column, float slack, bool both_signs,
                              std::uint32_t* bound) const {
    return untyped_kernels<>::bound_cosines[set](products, n, inverse_row, inverse_column, slack, both_signs,
                                                 bound);
  }
  void clear_rows(void* first, std::int64_t stride, std::uint32_t rows, std::size_t bytes) const {
    untyped_kernels<>::clear_rows[set](first, stride, rows, bytes);
  }
  void stream_row(void* to, void const* from, std::size_t bytes) const {
    untyped_kernels<>::stream_row[set](to, from, bytes);
  }
  void drain() const { untyped_kernels<>::drain[set](); }
  key_counts collect_keys(std::uint32_t const* keys, std::uint32_t n, std::uint32_t low, std::uint32_t high,
                          std::uint32_t* out, std::uint32_t room) const {
    return untyped_kernels<>::collect_keys[set](keys, n, low, high, out, room);
  }
  key_counts partition_scores(float const* scores, std::uint32_t n, std::uint32_t low, std::uint32_t high,
                              std::uint8_t best, std::uint8_t rest, std::uint8_t* out, std::uint32_t* keys,
                              std::uint32_t* at, std::uint32_t room) const {
    return untyped_kernels<>::partition_scores[set](scores, n, low, high, best, rest, out, keys, at, room);
  }
  std::uint32_t list_keys(std::uint32_t const* keys, std::uint32_t n, std::uint32_t bar, bool strictly,
                          std::uint32_t* out) const {
    return untyped_kernels<>::list_keys[set](keys, n, bar, strictly, out);
  }
  std::uint32_t kth_key(std::uint32_t const* keys, std::uint32_t n, std::uint32_t k) const {
    return untyped_kernels<>::kth_key[set](keys, n, k);
  }
  float soften(float* logits, float const* bias, std::uint32_t n, float* highest, float* sum,
               bool before) const {
    return untyped_kernels<>::soften[set](logits, bias, n, highest, sum, before);
  }
  void add_exponentials(float const* logits, float const* bias, std::uint32_t n, float norm,
                        float* out) const {
    untyped_kernels<>::add_exponentials[set](logits, bias, n, norm, out);
  }
  static constexpr std::uint32_t most_turned = kvmeld::most_turned;
  void turn_run(float* rows, std::uint32_t count, std::uint32_t dim, std::uint32_t pairs, std::uint32_t apart,
                double const* turns, std::int64_t at, int step) const {
    untyped_kernels<>::turn_run[set](rows, count, dim, pairs, apart, turns, at, step);
  }
  void log_degrees(float const* degree, std::uint32_t n, float* out) const {
    untyped_kernels<>::log_degrees[set](degree, n, out);
  }
  void pack_words(std::uint32_t* to, std::uint32_t const* from, std::uint64_t const* bits,
                  std::uint32_t n) const {
    untyped_kernels<>::pack_words[set](to, from, bits, n);
  }
  void pack_halves(std::uint16_t* to, std::uint16_t const* from, std::uint64_t const* bits,
                   std::uint32_t n) const {
    untyped_kernels<>::pack_halves[set](to, from, bits, n);
  }
  /// Packs elements of 4 or 2 bytes.
  template <class T> void pack(T* to, T const* from, std::uint64_t const* bits, std::uint32_t n) const {
    using raw = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
    auto* const target = reinterpret_cast<raw*>(to);
    auto const* const source = reinterpret_cast<raw const*>(from);
    if constexpr (sizeof(T) == 4) {
      pack_words(target, source, bits, n);
    } else {
      pack_halves(target, source, bits, n);
    }
  }
};

/// The kernels of an instruction set; null for `generic` and for sets that are not supported (`supports`).
inline host_kernels const* kernels_of(instruction_set s) {
  if (!supports(s)) return nullptr;
#if defined(KVMELD_TUNED_X86)
  static constexpr host_kernels sets[] = {
      {0, tuned_form::sse2::width}, {1, tuned_form::avx2::width}, {2, tuned_form::avx512::width}};
  switch (s) {
  case instruction_set::sse2: return &sets[0];
  case instruction_set::avx2: return &sets[1];
  case instruction_set::avx512: return &sets[2];
  default: break;
  }
#elif defined(KVMELD_TUNED_NEON)
  static constexpr host_kernels neon{0, tuned_form::neon::width};
  if (s == instruction_set::neon) return &neon;
#endif
  return nullptr;
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
