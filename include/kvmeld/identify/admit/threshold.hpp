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

/// For a threshold, and for entries of threshold::per_layer: every candidate passes.
constexpr float everything = -2.0f;
/// See everything: none passes.
constexpr float nothing = 2.0f;

/// Candidates with a similarity strictly above `theta` (KVMerger section 4.2; default 0.75), or, if
/// `inclusive`, of at least theta (EMS Eq. 5). How many that are depends on the data: the budget only says
/// whether to compress at all. Similarities lie between -1 and 1, but for rounding: a theta of `everything`
/// or `nothing`, or any other finite number beyond them, admits all candidates or none. What is no candidate
/// (a row that is no number; with EMS's resemblance, a pair that is not alike in both keys and values) merges
/// under no threshold.
struct threshold {
  float theta = 0.75f;     ///< least similarity
  bool inclusive = false;  ///< true: theta itself passes
  /// [layers], instead of theta in `consecutive_threshold` (calibrate/thresholds.hpp finds them); null: theta
  /// everywhere. Memory that the executor's phases read, unchanged as long as the policy is used.
  float const* per_layer = nullptr;

  /// Theta of a layer of the group.
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
