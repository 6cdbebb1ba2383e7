// Admit exactly what exceeds the budget.
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

/// As many of the best candidates as entries exceed the budget. With `consecutive_threshold` it means: find
/// the threshold per track that just meets the budget, then merge the most similar neighbouring sets until it
/// fits.
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
