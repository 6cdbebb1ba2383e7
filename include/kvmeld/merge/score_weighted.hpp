// Weights by score (EMS section 4.2, eq. 6, without its unit keys).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/merge/merge_function.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace merge {

/// k* = sum s_i k_i / sum s_i with scores s_i >= 0, and the same for values. Weights are equal if the sum of
/// scores is 0 or not finite. Degrees add.
struct score_weighted {
  static constexpr char const* name = "score_weighted";
  static constexpr bool needs_score = true;
  static constexpr bool cooperative = false;
  static constexpr bool sums_degrees = true;
  constexpr bool carries_degree() const { return true; }
  std::size_t scratch_bytes(shape const&, int) const { return 0; }

  KVMELD_HD void weigh(wave_ref const& wave, tile const& t, slot_t, member_list const& m) const {
    auto const score = [&](std::uint32_t i) { return wave.score[wave.at(t.item, m.slots[i])]; };
    float total = 0.0f;
    for (std::uint32_t i = 0; i < m.count; ++i) total += score(i);
    bool const usable = is_finite(total) && total > 0.0f;
    float const equal = 1.0f / static_cast<float>(m.count);
    write_weights(wave, t, m, [&](std::uint32_t i) { return usable ? score(i) / total : equal; });
  }
};

}  // namespace merge
}  // namespace KVMELD_ABI
}  // namespace kvmeld
