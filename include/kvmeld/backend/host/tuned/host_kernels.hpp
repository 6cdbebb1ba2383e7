// The tuned forms of the host as a table of functions. Each instruction set has one table, and teams carry
// it.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

struct key_counts {
  std::uint32_t above, inside;
};

/// The kernels of one instruction set. Rows are floats in scratch unless a comment says otherwise.
struct host_kernels {
  /// out[i * out_ld + j] = dot(a row i, b row j). Rows of b are in storage type, b_ld elements apart.
  template <class T>
  using products_of = void (*)(float const* a, std::uint32_t rows, std::uint32_t a_ld, T const* b,
                               std::uint32_t columns, std::size_t b_ld, std::uint32_t d, float* out,
                               std::uint32_t out_ld);
  products_of<float> products_float;
  products_of<float16> products_half;
  products_of<bfloat16> products_bfloat16;
  /// out[i] = dot(row, row at[i] of pool). Rows of the pool are in storage type, ld elements apart.
  template <class T>
  using dots_of = void (*)(float const* row, T const* pool, std::size_t ld, std::uint32_t const* at,
                           std::uint32_t count, std::uint32_t d, float* out);
  dots_of<float> dots_float;
  dots_of<float16> dots_half;
  dots_of<bfloat16> dots_bfloat16;
  /// square[i] = dot(row i, row i) and, unless x is null, product[i] = dot(row i, x). Rows are in storage
  /// type, ld elements apart.
  template <class T>
  using measures_of = void (*)(T const* rows, std::size_t ld, std::uint32_t count, std::uint32_t d,
                               float const* x, float* square, float* product);
  measures_of<float> measures_float;
  measures_of<float16> measures_half;
  measures_of<bfloat16> measures_bfloat16;
  /// Updates the best column of each row, see tile_similarity.
  void (*match_rows)(float const* a, std::uint32_t rows, float const* inverse_row, float const* b,
                     std::uint32_t columns, float const* inverse_column, std::uint32_t d,
                     std::uint32_t first_column, std::uint32_t* best_key, std::uint32_t* best_column);
  /// bound[j] = the bits of `slack` times cosine(products[j], inverse_row, inverse_column[j]), or if
  /// `both_signs` times its magnitude. Without `both_signs`, 0 for cosines below 0. NaN stays NaN. Returns
  /// the first j with the largest bound, or any j if no bound is a number; n >= 1.
  std::uint32_t (*bound_cosines)(float const* products, std::uint32_t n, float inverse_row,
                                 float const* inverse_column, float slack, bool both_signs,
                                 std::uint32_t* bound);

  /// Converts n elements of storage to floats.
  void (*decode_half)(float16 const* from, std::uint32_t n, float* to);
  void (*decode_bfloat16)(bfloat16 const* from, std::uint32_t n, float* to);
  /// to[c] = sum over i < count of weight[i] * row[i][c], in the order and with the rounding of the generic
  /// loop.
  void (*blend_float)(float const* const* row, float const* weight, std::uint32_t count, std::uint32_t n,
                      float* to);
  void (*blend_half)(float16 const* const* row, float const* weight, std::uint32_t count, std::uint32_t n,
                     float16* to);
  void (*blend_bfloat16)(bfloat16 const* const* row, float const* weight, std::uint32_t count,
                         std::uint32_t n, bfloat16* to);
  /// Sets whose slots lie in [first, first + slots); both are multiples of `lanes`. The members of set n are
  /// member[begin[n]] .. member[begin[n + 1] - 1] (slots, ascending). `order` lists the sets by size. Bit i
  /// of `squares` says whether there are members among the `lanes` slots from first + i * lanes on.
  struct set_list {
    std::uint32_t first, slots, count;
    std::uint32_t const *pivot, *begin, *order, *member;
    float const* weight;
    std::uint64_t const* squares;
  };
  /// Floats in one vector.
  std::uint32_t lanes;
  /// x[pivot] = sum of weight * x[member] of every set, in the order and with the rounding of the generic
  /// loop. Each channel x is a column of storage; columns lie `stride` elements apart. Reads all slots of the
  /// listed squares, `lanes` channels at a time. Returns how many channels it has done; fewer than `lanes`
  /// are left. `scratch`: [slots + sets][lanes] elements.
  template <class T>
  using merge_columns_of = std::uint32_t (*)(T* columns, std::int64_t stride, std::uint32_t channels,
                                             set_list const& sets, void* scratch);
  merge_columns_of<float> merge_columns_float;
  merge_columns_of<float16> merge_columns_half;
  merge_columns_of<bfloat16> merge_columns_bfloat16;
  /// Zeroes `rows` rows of `bytes` each, `stride` bytes apart. Many bytes are written past the caches.
  void (*clear_rows)(void* first, std::int64_t stride, std::uint32_t rows, std::size_t bytes);
  /// memcpy, past the caches where whole lines are copied to whole lines.
  void (*stream_row)(void* to, void const* from, std::size_t bytes);
  /// Makes everything written past the caches visible to other threads too.
  void (*drain)();
  bool (*finite_float)(float const* x, std::uint32_t n);
  bool (*finite_half)(float16 const* x, std::uint32_t n);
  bool (*finite_bfloat16)(bfloat16 const* x, std::uint32_t n);
  /// Counts the keys above `high` and those in [low, high]. Writes the latter to `out` in order, as long as
  /// `room` leaves space for a vector. `out` may be `keys`.
  key_counts (*collect_keys)(std::uint32_t const* keys, std::uint32_t n, std::uint32_t low,
                             std::uint32_t high, std::uint32_t* out, std::uint32_t room);
  /// The same for scores by their order keys, without NaN: keys inside go to `keys`, their indices to `at`.
  /// Also out[i] = best for scores above `high`, and rest for all others.
  key_counts (*split_scores)(float const* scores, std::uint32_t n, std::uint32_t low, std::uint32_t high,
                             std::uint8_t best, std::uint8_t rest, std::uint8_t* out, std::uint32_t* keys,
                             std::uint32_t* at, std::uint32_t room);
  /// Writes the ascending indices of the keys not below `bar`, or strictly above it, and returns how many.
  /// `out` has space for n indices and a vector more.
  std::uint32_t (*list_keys)(std::uint32_t const* keys, std::uint32_t n, std::uint32_t bar, bool strictly,
                             std::uint32_t* out);
  /// The k-th highest of n keys; n >= k >= 1.
  std::uint32_t (*kth_key)(std::uint32_t const* keys, std::uint32_t n, std::uint32_t k);

  /// Turns the logits of a row, n >= 1, into weights exp(logit - highest) in place. Adds biases where `bias`
  /// is not null. If `before`, `highest` and `sum` hold those of the tiles before. Afterwards they hold those
  /// of all tiles. Returns the factor that rescales earlier sums.
  float (*soften)(float* logits, float const* bias, std::uint32_t n, float* highest, float* sum, bool before);
  /// total[r][c] = factor[r] * total[r][c] + sum over t < tokens of p[r * p_ld + t] * v[t][c], for d channels
  /// c. Rows of v are in storage type, v_ld elements apart; rows of total lie total_ld apart.
  template <class T>
  using add_weighted_of = void (*)(float const* p, std::uint32_t rows, std::uint32_t p_ld,
                                   float const* factor, T const* v, std::size_t v_ld, std::uint32_t tokens,
                                   std::uint32_t d, float* total, std::size_t total_ld);
  add_weighted_of<float> add_weighted_float;
  add_weighted_of<float16> add_weighted_half;
  add_weighted_of<bfloat16> add_weighted_bfloat16;
  /// out[j] += exp(logits[j] + bias[j] - norm); bias may be null.
  void (*add_exponentials)(float const* logits, float const* bias, std::uint32_t n, float norm, float* out);
  /// out[i] = log_of_degree(degree[i]).
  void (*log_degrees)(float const* degree, std::uint32_t n, float* out);

  /// Packs the elements of from[0 .. n) whose bit is set into `to`, in order. `to` must not lie behind
  /// `from`. Bits from n on are clear.
  void (*pack_words)(std::uint32_t* to, std::uint32_t const* from, std::uint64_t const* bits,
                     std::uint32_t n);
  void (*pack_halves)(std::uint16_t* to, std::uint16_t const* from, std::uint64_t const* bits,
                      std::uint32_t n);

  /// Converts contiguous storage of any type to floats; an engine's own types go through their
  /// element_traits.
  template <class T> void decode(T const* from, std::uint32_t n, float* to) const {
    if constexpr (std::is_same_v<T, float>) {
      std::memcpy(to, from, n * sizeof(float));
    } else if constexpr (std::is_same_v<T, float16>) {
      decode_half(from, n, to);
    } else if constexpr (std::is_same_v<T, bfloat16>) {
      decode_bfloat16(from, n, to);
    } else {
      for (std::uint32_t i = 0; i < n; ++i) to[i] = element_traits<T>::to_float(from[i]);
    }
  }
  /// Whether the kernels read and write the storage type T themselves.
  template <class T>
  static constexpr bool reads =
      std::is_same_v<T, float> || std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>;
  /// The kernel for T of the three for float, float16 and bfloat16.
  template <class T, class F, class H, class B> static constexpr auto of_type(F f, H h, B b) {
    static_assert(reads<T>, "kvmeld: no kernel reads this element type");
    if constexpr (std::is_same_v<T, float>) {
      return f;
    } else if constexpr (std::is_same_v<T, float16>) {
      return h;
    } else {
      return b;
    }
  }
  template <class T>
  void products(float const* a, std::uint32_t rows, std::uint32_t a_ld, T const* b, std::uint32_t columns,
                std::size_t b_ld, std::uint32_t d, float* out, std::uint32_t out_ld) const {
    of_type<T>(products_float, products_half, products_bfloat16)(a, rows, a_ld, b, columns, b_ld, d, out,
                                                                 out_ld);
  }
  template <class T>
  void dots(float const* row, T const* pool, std::size_t ld, std::uint32_t const* at, std::uint32_t count,
            std::uint32_t d, float* out) const {
    of_type<T>(dots_float, dots_half, dots_bfloat16)(row, pool, ld, at, count, d, out);
  }
  template <class T>
  void measures(T const* rows, std::size_t ld, std::uint32_t count, std::uint32_t d, float const* x,
                float* square, float* product) const {
    of_type<T>(measures_float, measures_half, measures_bfloat16)(rows, ld, count, d, x, square, product);
  }
  template <class T>
  void add_weighted(float const* p, std::uint32_t rows, std::uint32_t p_ld, float const* factor, T const* v,
                    std::size_t v_ld, std::uint32_t tokens, std::uint32_t d, float* total,
                    std::size_t total_ld) const {
    of_type<T>(add_weighted_float, add_weighted_half, add_weighted_bfloat16)(p, rows, p_ld, factor, v, v_ld,
                                                                             tokens, d, total, total_ld);
  }
  template <class T>
  void blend(T const* const* row, float const* weight, std::uint32_t count, std::uint32_t n, T* to) const {
    of_type<T>(blend_float, blend_half, blend_bfloat16)(row, weight, count, n, to);
  }
  template <class T>
  std::uint32_t merge_columns(T* columns, std::int64_t stride, std::uint32_t channels, set_list const& sets,
                              void* scratch) const {
    return of_type<T>(merge_columns_float, merge_columns_half,
                      merge_columns_bfloat16)(columns, stride, channels, sets, scratch);
  }
  /// Packs elements of 4 or 2 bytes, see pack_words.
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
  /// Whether no element is NaN or infinite.
  template <class T> bool all_finite(T const* x, std::uint32_t n) const {
    return of_type<T>(finite_float, finite_half, finite_bfloat16)(x, n);
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
