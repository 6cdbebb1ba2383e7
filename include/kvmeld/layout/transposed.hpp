// SPDX-License-Identifier: Apache-2.0
// Tensors whose contiguous run is along tokens: element (slot, channel) at channel * stride + slot.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/strided.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A tensor with the same addresses as `strided` with slot stride 1. Merging and compaction loop along
/// tokens, so that they stream memory instead of gathering it. This is the usual form of V in engines without
/// flash attention. The slot stride must be 1.
template <class T> class transposed : public addressed_rows<transposed<T>, T> {
public:
  static constexpr bool always_writable = true;
  static constexpr int channel_run = 1;
  static constexpr int token_run = 0;  ///< the whole track

  /// A tensor of rows of `channels` channels that begins at `base`.
  transposed(T* base, cache_strides strides, shape const& s, std::uint32_t channels)
      : base_(base), strides_(strides), channels_(channels), capacity_(s.capacity) {}
  /// A dense tensor in the given order, which ends in T; see dense_strides.
  transposed(T* base, char const* order, shape const& s, std::uint32_t channels)
      : transposed(base, dense_strides(order, s, channels), s, channels) {}

  KVMELD_HD segment<T> locate(track where, slot_t slot) const {
    return {detail::strided_address(base_, strides_, where, slot), 1, strides_.channel, capacity_ - slot};
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
