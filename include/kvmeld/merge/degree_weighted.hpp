// The centroid of the tokens behind a set (Chelsea section 4, eq. 7; ToMe's size-weighted mean).
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/merge/merge_function.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace merge {

/// k* = sum n_i k_i / sum n_i with degrees n_i, and the same for values. Degrees add. The merge is exact
/// under the log-degree bias if the members are equal.
struct degree_weighted {
  static constexpr char const* name = "degree_weighted";
  static constexpr bool needs_score = false;
  static constexpr bool cooperative = false;
  static constexpr bool sums_degrees = true;
  constexpr bool carries_degree() const { return true; }
  std::size_t scratch_bytes(shape const&, int) const { return 0; }

  KVMELD_HD void weigh(wave_ref const& wave, tile const& t, slot_t, member_list const& m) const {
    auto const degree = [&](std::uint32_t i) {
      return wave.ledger.degree[wave.ledger.at(t.where, m.slots[i])];
    };
    float total = 0.0f;
    for (std::uint32_t i = 0; i < m.count; ++i) total += degree(i);
    write_weights(wave, t, m, [&](std::uint32_t i) { return degree(i) / total; });
  }
};

}  // namespace merge
}  // namespace KVMELD_ABI
}  // namespace kvmeld
