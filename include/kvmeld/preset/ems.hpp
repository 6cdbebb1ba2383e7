// SPDX-License-Identifier: Apache-2.0
// EMS (Li et al., "EMS: Adaptive Evict-then-Merge Strategy for Head-wise KV Cache Compression", 2024).
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/admit.hpp>
#include <kvmeld/identify/nearest_center.hpp>
#include <kvmeld/merge/unit_direction.hpp>
#include <kvmeld/score/global_local.hpp>
#include <kvmeld/select/tiers.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace preset {
namespace ems {

/// EMS's parts, with members or without.
template <class Merge>
using form = policy<score::global_local, select::tiers, identify::nearest_center<admit::threshold>, Merge>;
/// EMS as printed: members keep their norms.
using shared_type = form<merge::shared>;
/// Each set is one ordinary entry, for any kernel.
using collapsed_type = form<merge::collapsed>;

namespace detail {
template <class Merge>
form<Merge> with(quantity local, std::uint32_t window, float tau, double magnification) {
  return {
      {window, {}}, {quantity::entries(0), local, quantity::entries(0), magnification}, {{tau, true}}, {}};
}
}  // namespace detail

/// As printed (section 4.2): the last 32 entries stay, and the rest of the budget is centres. Of the next
/// best tokens, up to three times the budget become members of the centre that their key and value resemble
/// (tau 0.6). Everything else is dropped. Needs a shared_ref for attention, and options.members of
/// members_for(budget). During generation, compress again whenever the trigger is due. Entries that left the
/// window then compete for the places of centres, the least important centres move into others with their
/// members, and the least important members are dropped.
inline shared_type shared(quantity local = quantity::entries(32), std::uint32_t window = 32, float tau = 0.6f,
                          double magnification = 4.0) {
  return detail::with<merge::shared>(local, window, tau, magnification);
}
/// The same sets as `shared` makes. Each set becomes one ordinary entry with a degree, which any kernel can
/// read.
inline collapsed_type collapsed(quantity local = quantity::entries(32), std::uint32_t window = 32,
                                float tau = 0.6f, double magnification = 4.0) {
  return detail::with<merge::collapsed>(local, window, tau, magnification);
}
/// For needle in a haystack (section 5.3): a window of 16 and tau 0.55.
inline shared_type needle() { return shared(quantity::entries(16), 16, 0.55f); }

/// Members per track (options.members) that a cache with this budget needs.
inline std::uint32_t members_for(std::uint32_t budget, double magnification = 4.0) {
  return floor_share(magnification - 1.0, budget);
}

}  // namespace ems
}  // namespace preset
}  // namespace KVMELD_ABI
}  // namespace kvmeld
