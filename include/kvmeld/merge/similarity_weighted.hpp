// Weights by how much the members resemble their pivot (D2O).
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/merge/merge_function.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace merge {

/// Keys and values get the weights w_i = exp(u_i) / sum exp(u). u_i is the similarity of member i and the
/// pivot; u = 1 for the pivot itself (D2O section 3.3). Degrees add; `degrees` off is as the paper prints it.
struct similarity_weighted {
  bool degrees = true;  ///< degrees add; off: the degree stays the pivot's

  static constexpr char const* name = "similarity_weighted";
  static constexpr bool needs_score = false;
  static constexpr bool needs_similarity = true;
  static constexpr bool cooperative = false;
  static constexpr bool sums_degrees = true;
  constexpr bool carries_degree() const { return degrees; }
  std::size_t scratch_bytes(shape const&, int) const { return 0; }

  KVMELD_HD void weigh(wave_ref const& wave, tile const& t, slot_t pivot, member_list const& m) const {
    auto const likeness = [&](std::uint32_t i) {
      slot_t const s = m.slots[i];
      return std::exp(s == pivot ? 1.0f : wave.step.key_weight[wave.step.at(t.item, s)]);
    };
    float total = 0.0f;
    for (std::uint32_t i = 0; i < m.count; ++i) total += likeness(i);
    write_weights(wave, t, m, [&](std::uint32_t i) { return likeness(i) / total; });
  }
};

}  // namespace merge
}  // namespace KVMELD_ABI
}  // namespace kvmeld
