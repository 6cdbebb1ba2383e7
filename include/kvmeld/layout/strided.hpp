// SPDX-License-Identifier: Apache-2.0
// Rectangular tensors in any order of (layer, sequence, head, slot, channel), also from another library's
// strided view.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/strided.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Element strides of a cache tensor, 64-bit. The stride of an extent of one is not used, and may be 0.
struct cache_strides {
  /// In elements, from one index to the next.
  std::int64_t layer = 0, sequence = 0, head = 0, slot = 0, channel = 1;
};

namespace detail {

/// Address of channel 0 of a slot: base + layer*l + sequence*s + head*h + slot*t.
template <class T> KVMELD_HD T* strided_address(T* base, cache_strides const& st, track where, slot_t slot) {
  return base + std::int64_t{where.layer} * st.layer + std::int64_t{where.sequence} * st.sequence +
         std::int64_t{where.kv_head} * st.head + std::int64_t{slot} * st.slot;
}

/// A letter of a dense order: the axis that it stands for.
struct dense_letter {
  char letter;           ///< as in the order
  std::uint32_t count;   ///< extent of the axis
  std::int64_t* stride;  ///< receives the stride of the axis
};

/// Computes the strides of a dense order, outermost letter first. Leaves them alone if the order is null or
/// no permutation of the letters. A stride too large for 63 bits becomes the largest number of 63 bits.
inline void fill_dense(char const* order, dense_letter const (&letters)[5]) {
  std::string const given(order == nullptr ? "" : order);
  if (given.size() != 5) return;
  for (dense_letter const& l : letters) {
    if (given.find(l.letter) == std::string::npos) return;
  }
  constexpr std::uint64_t most = 0x7fffffffffffffffu;
  std::uint64_t stride = 1;
  for (std::size_t i = given.size(); i-- > 0;) {
    for (dense_letter const& l : letters) {
      if (l.letter != given[i]) continue;
      *l.stride = static_cast<std::int64_t>(min_of(stride, most));
      stride = saturated_product(stride, std::uint64_t{l.count});
    }
  }
}

}  // namespace detail

/// Dense strides for an order of the letters L(ayer) S(equence) H(ead) T(oken slot) C(hannel), outermost
/// first: "LSTHC" is token-major, "LSHTC" head-major, "LSHCT" transposed. null, or a string that is no
/// permutation of these letters, gives slot stride 0, which the cache refuses.
inline cache_strides dense_strides(char const* order, shape const& s, std::uint32_t channels) {
  cache_strides out{0, 0, 0, 0, 0};
  detail::fill_dense(order, {{'L', s.layers, &out.layer},
                             {'S', s.sequences, &out.sequence},
                             {'H', s.kv_heads, &out.head},
                             {'T', s.capacity, &out.slot},
                             {'C', channels, &out.channel}});
  return out;
}

/// A rectangular tensor that is read and written row by row. It is fastest with channel stride 1.
/// The element type is float, float16, bfloat16 or any type with element_traits. The engine owns the memory.
template <class T> class strided : public addressed_rows<strided<T>, T> {
public:
  static constexpr bool always_writable = true;
  static constexpr int channel_run = 0;  ///< the whole row
  static constexpr int token_run = 1;

  /// A tensor of rows of `channels` channels that begins at `base`.
  strided(T* base, cache_strides strides, shape const& s, std::uint32_t channels)
      : base_(base), strides_(strides), channels_(channels), capacity_(s.capacity) {}
  /// A dense tensor in the given order, see dense_strides.
  strided(T* base, char const* order, shape const& s, std::uint32_t channels)
      : strided(base, dense_strides(order, s, channels), s, channels) {}

  KVMELD_HD segment<T> locate(track where, slot_t slot) const {
    return {detail::strided_address(base_, strides_, where, slot), strides_.slot, strides_.channel,
            capacity_ - slot};
  }
  KVMELD_HD std::uint32_t channels() const { return channels_; }
  KVMELD_HD bool writable(track, slot_t) const { return true; }
  void const* data() const { return base_; }
  cache_strides const& strides() const { return strides_; }
  std::uint32_t capacity() const { return capacity_; }

private:
  T* base_;
  cache_strides strides_;
  std::uint32_t channels_, capacity_;
};

namespace detail {

/// The tensor at `base` with the last `Rank` axes of (layer, sequence, head, slot, channel); other axes have
/// extent one. Uses view.extent(i), and view.stride(i) in elements.
template <std::size_t Rank, class T, class View> strided<T> strided_view(T* base, View const& view) {
  auto const extent = [&](std::size_t from_the_right) {
    return Rank > from_the_right ? static_cast<std::uint32_t>(view.extent(Rank - 1 - from_the_right)) : 1u;
  };
  auto const stride = [&](std::size_t from_the_right) {
    return Rank > from_the_right ? static_cast<std::int64_t>(view.stride(Rank - 1 - from_the_right)) : 0;
  };
  shape s{};
  s.layers = extent(4);
  s.sequences = extent(3);
  s.kv_heads = extent(2);
  s.capacity = extent(1);
  return {base, cache_strides{stride(4), stride(3), stride(2), stride(1), stride(0)}, s, extent(0)};
}

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
