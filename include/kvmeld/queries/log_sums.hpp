// SPDX-License-Identifier: Apache-2.0
// Log-sum-exps as engines pass them: rows of one element, and the base of their logarithm.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/queries/queries.hpp>

#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Base of the logarithm of log-sum-exps. FlashAttention gives natural logarithms. FlashInfer and the decode
/// kernels of TensorRT-LLM give logarithms to base 2.
enum class lse_base : std::uint8_t { natural, two };

/// Whether a log-sum-exp can be used. It cannot where the query saw nothing, or where it became NaN or
/// infinite.
KVMELD_HD inline bool is_usable_lse(float x) { return is_finite(x) && x > element_traits<float>::lowest; }

/// One log-sum-exp per (sequence of a call, query head, query), in the base `base`. Converts from head_rows,
/// whose logarithms are natural. kvmeld computes with natural logarithms only. For base 2 it multiplies once,
/// rounded to float, where it reads or writes a log-sum-exp.
template <class T> struct log_sums {
  head_rows<T> rows;                  ///< null data: log-sum-exps are not given, or not wanted
  lse_base base = lse_base::natural;  ///< base of the logarithm

  log_sums() = default;
  /// Rows of logarithms to base `b`.
  template <class U, class = std::enable_if_t<std::is_convertible_v<U*, T*>>>
  KVMELD_HD log_sums(head_rows<U> r, lse_base b = lse_base::natural)
      : rows{r.data, r.sequence_stride, r.head_stride, r.row_stride}, base(b) {}
  /// The same rows with elements of T, such as read-only ones.
  template <class U, class = std::enable_if_t<std::is_convertible_v<U*, T*>>>
  KVMELD_HD log_sums(log_sums<U> const& other) : log_sums(other.rows, other.base) {}

  /// Whether log-sum-exps are given, or wanted.
  KVMELD_HD bool given() const { return rows.data != nullptr; }
  /// Reads one log-sum-exp as a natural logarithm. One that is not usable is returned as it is.
  KVMELD_HD float read(std::uint32_t sequence, std::uint32_t head, std::uint32_t query) const {
    float const x = *rows.row(sequence, head, query);
    return base == lse_base::two && is_usable_lse(x) ? x * 0.693147180559945f : x;
  }
  /// Converts a natural logarithm to the base of the rows, and writes it.
  KVMELD_HD void write(std::uint32_t sequence, std::uint32_t head, std::uint32_t query, float natural) const {
    *rows.row(sequence, head, query) =
        base == lse_base::two && is_usable_lse(natural) ? natural * 1.44269504088896f : natural;
  }
};

/// States that these rows hold logarithms to base 2.
template <class T> log_sums<T> in_base_two(head_rows<T> rows) { return {rows, lse_base::two}; }

}  // namespace KVMELD_ABI
}  // namespace kvmeld
