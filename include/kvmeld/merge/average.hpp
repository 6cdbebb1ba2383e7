// Every entry of a set has the same weight, whatever its degree.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/merge/merge_function.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace merge {

/// k* = mean k_i, v* = mean v_i; degrees add (KVMerger's averaging baseline).
struct average {
  static constexpr char const* name = "average";
  static constexpr bool needs_score = false;
  static constexpr bool cooperative = false;
  static constexpr bool sums_degrees = true;
  constexpr bool carries_degree() const { return true; }
  std::size_t scratch_bytes(shape const&, int) const { return 0; }

  KVMELD_HD void weigh(wave_ref const& wave, tile const& t, slot_t, member_list const& m) const {
    float const w = 1.0f / static_cast<float>(m.count);
    write_weights(wave, t, m, [&](std::uint32_t) { return w; });
  }
};

}  // namespace merge
}  // namespace KVMELD_ABI
}  // namespace kvmeld
