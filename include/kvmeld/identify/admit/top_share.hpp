// Admit a share of the live entries per round (Chelsea section 4).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/identify/admit/admit.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace admit {

/// In round i, admits the best floor(r_i * middle) candidates of all chunks: at least one, but never more
/// than exceed the budget. `middle` is the size of the live-slot list.
struct top_share {
  round_schedule schedule{};  ///< r_i, the share of each round

  static constexpr char const* name = "top_share";
  static constexpr bool repeats = true;
  static constexpr bool meets_budget = true;

  KVMELD_HD admission allow(track_state const& s, std::uint32_t middle, std::uint32_t round) const {
    return {min_of(schedule.edges(round, middle), s.excess()), 1};
  }
  std::string problem() const {
    if (!(is_within(schedule.initial, 0.0, 1.0) && schedule.initial > 0.0)) {
      return refusal("policy", "admit::top_share.schedule.initial", schedule.initial,
                     "above 0 and at most 1");
    }
    if (!is_within(schedule.alpha, 0.0, 1.0)) {
      return refusal("policy", "admit::top_share.schedule.alpha", schedule.alpha, "0 to 1");
    }
    if (!is_within(schedule.floor, 0.0, 1.0)) {
      return refusal("policy", "admit::top_share.schedule.floor", schedule.floor, "0 to 1");
    }
    return {};
  }
};

}  // namespace admit
}  // namespace KVMELD_ABI
}  // namespace kvmeld
