// No score: for policies that look at positions and similarity only.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/score/score.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace score {

/// Every entry scores 0. Keeps no channel and needs no attention.
struct none {
  static constexpr char const* name = "none";
  static constexpr bool light = true;
  static constexpr bool needs_attention = false;
  static constexpr channel_list channels() { return {}; }

  KVMELD_HD channel_update update(std::uint32_t, std::uint32_t, std::uint32_t) const { return {-1, 0}; }
  KVMELD_HD std::uint32_t next_window(std::uint32_t, std::uint32_t) const { return 0; }
  template <class Team>
  KVMELD_HD void evaluate(Team const& team, ledger_ref const&, track, std::uint32_t length,
                          float* out) const {
    team.for_each(length, [&](std::uint32_t s) { out[s] = 0.0f; });
    team.sync();
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
