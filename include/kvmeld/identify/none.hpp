// No sets: entries stay apart, only a selector's zero class goes.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// Proposes nothing.
struct none {
  static constexpr char const* name = "none";
  static constexpr bool light = true;
  static constexpr bool repeats = false;
  static constexpr bool meets_budget = false;
  static constexpr bool needs_score = false;
  static constexpr bool makes_sets = false;
  static constexpr bool needs_keys = false;

  std::uint32_t tiles(shape const&) const { return 0; }
  std::size_t scratch_bytes(shape const&, int) const { return 0; }
  template <class Team, class Keys>
  KVMELD_HD void propose(Team const&, wave_ref const&, Keys const&, tile const&) const {}
  template <class Team>
  KVMELD_HD void admit(Team const&, wave_ref const&, std::uint32_t, std::uint32_t) const {}
};

}  // namespace identify
}  // namespace KVMELD_ABI
}  // namespace kvmeld
