// SPDX-License-Identifier: Apache-2.0
// Pooling of scores along the slots, so that neighbours of an important entry count too (SnapKV).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// How a window of neighbouring scores becomes one score.
enum class pooling_mode : std::uint8_t {
  mean,         ///< mean over the neighbours that exist: divides by the valid count
  max,          ///< the strongest neighbour
  zero_padded,  ///< mean with zeros beyond the ends: divides by the kernel (parity with SnapKV's code)
};

/// Centred window of `kernel` slots; kernel 1 leaves scores as they are.
struct pooling {
  std::uint32_t kernel = 7;                ///< slots of the window, centred; 1: no pooling
  pooling_mode mode = pooling_mode::mean;  ///< how the window becomes one score

  /// Pooled value at `s` of value(0 .. n - 1). NaN counts as lowest under max.
  template <class Value> KVMELD_HD float at(std::uint32_t s, std::uint32_t n, Value value) const {
    std::uint32_t const reach = kernel / 2;
    std::uint32_t const begin = s > reach ? s - reach : 0;
    std::uint32_t const end = n - s > reach ? s + reach + 1 : n;
    float total = value(begin);
    for (std::uint32_t i = begin + 1; i < end; ++i) {
      float const x = value(i);
      if (mode == pooling_mode::max) {
        total = order_key(x) > order_key(total) ? x : total;
      } else {
        total += x;
      }
    }
    if (mode == pooling_mode::max) return total;
    return total / static_cast<float>(mode == pooling_mode::mean ? end - begin : kernel);
  }

  std::string problem() const {
    if (kernel % 2 == 0) {
      return refusal("policy", "pooling.kernel", kernel, "an odd number (1 means no pooling)");
    }
    return {};
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
