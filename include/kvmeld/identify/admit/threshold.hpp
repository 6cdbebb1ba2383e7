// Admit whatever is similar enough.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/identify/admit/admit.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace admit {

/// A value for threshold::theta and for elements of threshold::per_layer: every candidate passes.
constexpr float everything = -2.0f;
/// A value for the same places as `everything`: no candidate passes.
constexpr float nothing = 2.0f;

/// Admits candidates with a similarity strictly above `theta` (KVMerger section 4.2; default 0.75), or, if
/// `inclusive`, of at least theta (EMS Eq. 5). Their number depends on the data: the budget only says whether
/// to compress at all. Similarities lie between -1 and 1, up to rounding. A theta of `everything` or
/// `nothing`, or any finite number beyond them, admits all candidates or none. What is not a candidate
/// merges under no threshold: a row with NaN or infinity; with EMS's resemblance, a pair that is not alike
/// in both keys and values.
struct threshold {
  float theta = 0.75f;     ///< least similarity
  bool inclusive = false;  ///< true: theta itself passes
  /// [layers] thresholds that `consecutive_threshold` uses instead of theta (calibrate/thresholds.hpp finds
  /// them); null: theta everywhere. The executor's phases read this memory. It stays unchanged as long as the
  /// policy is used.
  float const* per_layer = nullptr;

  /// Threshold of layer `layer` of the group of layers.
  KVMELD_HD float theta_in(std::uint32_t layer) const {
    return per_layer != nullptr ? per_layer[layer] : theta;
  }

  static constexpr char const* name = "threshold";
  static constexpr bool repeats = false;
  static constexpr bool meets_budget = false;

  KVMELD_HD admission allow(track_state const&, std::uint32_t, std::uint32_t) const {
    return {0xffffffffu, order_key(theta) + (inclusive ? 0u : 1u)};
  }
  std::string problem() const {
    if (is_finite(theta)) return {};
    return refusal("policy", "admit::threshold.theta", theta,
                   "a finite number, such as a cosine, everything or nothing");
  }
};

}  // namespace admit
}  // namespace KVMELD_ABI
}  // namespace kvmeld
