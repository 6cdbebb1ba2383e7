// Rectangular tensors in any order of (layer, sequence, head, slot, channel).
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Element strides of a cache tensor, 64-bit. 0 for an extent of one.
struct cache_strides {
  std::int64_t layer = 0, sequence = 0, head = 0, slot = 0, channel = 1;
};

/// Where an element lies: base + layer*l + sequence*s + head*h + slot*t + channel*c.
template <class T> KVMELD_HD T* strided_address(T* base, cache_strides const& st, track where, slot_t slot) {
  return base + std::int64_t{where.layer} * st.layer + std::int64_t{where.sequence} * st.sequence +
         std::int64_t{where.kv_head} * st.head + std::int64_t{slot} * st.slot;
}

/// Dense strides for an order of the letters L(ayer) S(equence) H(ead) T(oken slot) C(hannel), outermost first:
/// "LSTHC" is token-major, "LSHTC" head-major, "LSHCT" transposed. Any other string gives slot stride 0, which the
/// cache refuses.
inline cache_strides dense_strides(char const* order, shape const& s, std::uint32_t channels) {
  cache_strides out{0, 0, 0, 0, 0};
  std::string const letters(order);
  std::string sorted;
  for (char c : {'C', 'H', 'L', 'S', 'T'}) {
    if (letters.find(c) != std::string::npos) sorted += c;
  }
  if (letters.size() != 5 || sorted.size() != 5) return out;
  std::int64_t stride = 1;
  for (std::size_t i = letters.size(); i-- > 0;) {
    switch (letters[i]) {
    case 'L':
      out.layer = stride;
      stride *= s.layers;
      break;
    case 'S':
      out.sequence = stride;
      stride *= s.sequences;
      break;
    case 'H':
      out.head = stride;
      stride *= s.kv_heads;
      break;
    case 'T':
      out.slot = stride;
      stride *= s.capacity;
      break;
    default:
      out.channel = stride;
      stride *= channels;
      break;
    }
  }
  return out;
}

/// A tensor whose rows are read and written row by row; best with channel stride 1.
/// Element type float, half, bfloat16 or any type with element_traits. The engine owns the memory.
template <class T> class strided : public addressed_rows<strided<T>, T> {
public:
  static constexpr bool always_writable = true;
  static constexpr int channel_run = 0;  ///< the whole row
  static constexpr int token_run = 1;

  strided(T* base, cache_strides strides, shape const& s, std::uint32_t channels)
      : base_(base), strides_(strides), channels_(channels), capacity_(s.capacity) {}
  /// Dense tensor in the given order, see dense_strides.
  strided(T* base, char const* order, shape const& s, std::uint32_t channels)
      : strided(base, dense_strides(order, s, channels), s, channels) {}

  KVMELD_HD segment<T> locate(track where, slot_t slot) const {
    return {strided_address(base_, strides_, where, slot), strides_.slot, strides_.channel, capacity_ - slot};
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

}  // namespace KVMELD_ABI
}  // namespace kvmeld
