// SPDX-License-Identifier: Apache-2.0
// The largest sizes, strides and positions, in one table (docs/limits.md), and arithmetic that cannot wrap.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The largest sizes that the library accepts. Within them no product of sizes and no address exceeds 64
/// bits, and counts of tracks, of query heads and of the slots of a track stay within 32 bits. The limits are
/// checked where the numbers enter.
namespace largest {
constexpr std::uint32_t tracks = 0x7fffffffu;            ///< layers x sequences x kv_heads
constexpr std::uint32_t query_heads = 0x7fffffffu;       ///< kv_heads * queries_per_kv_head
constexpr std::uint32_t capacity = 1u << 30;             ///< slots of a track
constexpr std::uint64_t slots = std::uint64_t{1} << 40;  ///< tracks x capacity
constexpr std::uint32_t queries_per_kv_head = 1u << 10;  ///< query heads per KV head
constexpr std::uint32_t channels = 1u << 16;             ///< channels of a key, and of a value
constexpr std::uint32_t joined_channels = 1u << 30;      ///< channels x tracks that share one plan
constexpr std::uint32_t members = 1u << 30;              ///< members of a track (policies that share entries)
constexpr std::uint64_t all_members = std::uint64_t{1} << 40;  ///< tracks x members
constexpr std::uint32_t table_floats = 1u << 26;  ///< floats of the table that a score keeps of a track
constexpr std::uint32_t threads = 1u << 12;       ///< threads of a host executor
constexpr std::uint32_t tokens = 0x7fffffffu;  ///< tokens seen by a sequence; its last position is one less
/// Bytes from a tensor's first element to any other, as its strides and extents give them.
constexpr std::int64_t tensor_bytes = std::int64_t{1} << 56;
constexpr float plan_weight =
    0x1p126f;                      ///< magnitude of a weight of a plan; ratios of norms come to 1e29 and more
constexpr float degree = 0x1p60f;  ///< degree of an entry, as an edited plan may make it
}  // namespace largest

/// a + b, or the largest number of T if the sum exceeds it.
template <class T> constexpr T saturated_sum(T a, T b) {
  static_assert(!std::numeric_limits<T>::is_signed, "kvmeld::saturated_sum is for unsigned numbers");
  return b > std::numeric_limits<T>::max() - a ? std::numeric_limits<T>::max() : static_cast<T>(a + b);
}

/// a * b, or the largest number of T if the product exceeds it.
template <class T> constexpr T saturated_product(T a, T b) {
  static_assert(!std::numeric_limits<T>::is_signed, "kvmeld::saturated_product is for unsigned numbers");
  return a != 0 && b > std::numeric_limits<T>::max() / a ? std::numeric_limits<T>::max()
                                                         : static_cast<T>(a * b);
}

/// |x|, also for the lowest number.
constexpr std::uint64_t magnitude_of(std::int64_t x) {
  return x < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(x) : static_cast<std::uint64_t>(x);
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
