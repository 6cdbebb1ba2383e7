// Admit one candidate per entry above the budget.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/identify/admit/admit.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace admit {

/// Admits as many of the best candidates as entries exceed the budget. With it, `consecutive_threshold` finds
/// per track a threshold that leaves at least as many sets as the budget wants. It then merges the most
/// similar neighbouring sets until the budget is met.
struct exact_budget {
  std::uint32_t bisections = 16;  ///< steps in which consecutive_threshold narrows its threshold

  static constexpr char const* name = "exact_budget";
  static constexpr bool repeats = true;
  static constexpr bool meets_budget = true;

  KVMELD_HD admission allow(track_state const& s, std::uint32_t, std::uint32_t) const {
    return {s.excess(), 1};
  }
  std::string problem() const {
    if (bisections >= 1 && bisections <= 64) return {};
    return refusal("policy", "admit::exact_budget.bisections", bisections, "1 to 64");
  }
};

}  // namespace admit
}  // namespace KVMELD_ABI
}  // namespace kvmeld
