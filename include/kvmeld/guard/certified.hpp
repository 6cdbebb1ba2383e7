// The certified guard: a merge passes only while no query up to a norm can tell (KVMerger definition 3.1).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/guard/certificate.hpp>

#include <cmath>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace guard {

/// Sets are merged, thinned or left alone such that ||O - O*|| <= epsilon (Euclidean norm of one head's output) for every
/// query q with ||q|| <= query_norm: O is attention over all tokens as they came, O* over what is left of them after any
/// number of compressions, both with logits cap(scale q.k) + log degree, with or without a sink logit. Norms of all values,
/// measured when they are first met, enter the bound; `value_norm` extends it to values that come later. The derivation, and
/// what is not covered (windows, keys rotated at attention time, eviction), is in docs/guarded.md.
struct certified {
  float epsilon;     ///< largest change of an output, in the unit of the values
  float query_norm;  ///< of queries as attention takes them, rotated or not
  float value_norm =
      0.0f;              ///< bound on the norms of values to come; the largest seen counts if it is greater
  float scale = 0.0f;    ///< of attention_params; 0: 1 / sqrt(key_dim)
  float softcap = 0.0f;  ///< of attention_params; 0: none
  /// Rounds of one compression at most: what a round leaves over, a later one may merge among itself.
  std::uint32_t rounds = 16;

  static constexpr char const* name = "certified";

  /// The bound for keys of so many channels.
  KVMELD_HD attention_bound bound(std::uint32_t key_dim) const {
    float const s = scale != 0.0f ? scale : 1.0f / std::sqrt(static_cast<float>(key_dim));
    return {s * query_norm * rounding_up, softcap > 0.0f ? 1.0f / softcap : 0.0f};
  }
  static constexpr channel_list channels(channel_list of_score) { return with_certificates(of_score); }

  std::string problem() const {
    if (!(epsilon > 0.0f && is_finite(epsilon))) return above_zero("epsilon", epsilon);
    if (!(query_norm > 0.0f && is_finite(query_norm))) return above_zero("query_norm", query_norm);
    if (!(value_norm >= 0.0f && is_finite(value_norm))) {
      return from_zero("value_norm", value_norm, "the largest norm seen");
    }
    if (!(scale >= 0.0f && is_finite(scale))) return from_zero("scale", scale, "1 / sqrt(key_dim)");
    if (!(softcap >= 0.0f && is_finite(softcap))) return from_zero("softcap", softcap, "none");
    if (rounds == 0) return refusal("policy", "guard::certified.rounds", 0, "at least 1");
    return {};
  }

private:
  static std::string above_zero(char const* what, float value) {
    return refusal("policy", message("guard::certified.", what), value, "a finite number above 0");
  }
  static std::string from_zero(char const* what, float value, char const* zero) {
    return refusal("policy", message("guard::certified.", what), value, "0, which means ", zero,
                   ", or a finite number above 0");
  }
};

}  // namespace guard
}  // namespace KVMELD_ABI
}  // namespace kvmeld
