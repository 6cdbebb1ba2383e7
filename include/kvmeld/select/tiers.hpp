// Four tiers by importance: pinned, centres, mergeable, irrelevant.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/select/selector.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace select {

/// EMS section 4.2. Pins the `sinks` first and `window` last entries and the `protect` best of the rest. The
/// next best become centres, as many as the budget has room for. Of the remaining entries, the best
/// (magnification - 1) * budget are mergeable, and the others irrelevant. Where the cache shares entries,
/// members compete with entries for these places: a token is ranked by its own score, whether it still has a
/// slot or not. Ties go to entries, then to the lower slot or member.
struct tiers {
  quantity sinks = quantity::entries(0);    ///< first entries that are pinned
  quantity window = quantity::entries(32);  ///< last entries that are pinned
  quantity protect = quantity::entries(0);  ///< best entries by score that are pinned, not centres
  double magnification = 4.0;               ///< gamma = (N_budget + N_tbm) / N_budget; tbm: to be merged

  static constexpr char const* name = "tiers";
  static constexpr bool needs_score = true;
  static constexpr bool makes_centers = true;
  static constexpr bool pins_exactly = true;

  KVMELD_HD pins pinned(std::uint32_t length, std::uint32_t limit, std::uint32_t frozen) const {
    pins p = resolve_pins(sinks, window, protect, length, limit, frozen);
    p.centers = min_of(length - p.total(), limit > p.total() ? limit - p.total() : 0);
    return p;
  }
  /// Number of tokens, besides pinned entries and centres, that are not irrelevant under this budget.
  KVMELD_HD std::uint32_t others(std::uint32_t limit) const {
    double const all = (magnification - 1.0) * static_cast<double>(limit);
    return all < 1e9 ? floor_share(magnification - 1.0, limit) : 1000000000u;  // more than a track can hold
  }

  template <class Team>
  KVMELD_HD void assign(Team const& team, wave_ref const& wave, std::uint32_t item, pins const& p) const {
    pin_ends(team, wave, item, p);
    track_state const& state = wave.state[item];
    std::uint32_t const n = state.length;
    float const* const score = wave.score + wave.at(item, 0);
    role* const roles = wave.roles + wave.at(item, 0);
    // A NaN score ranks lowest but stays eligible, so that the budget is met exactly.
    auto const open = [&](std::uint32_t s) {
      return roles[s] == role::mergeable ? eligible_key(score[s]) : 0u;
    };
    select_k(team, n, p.heavy, open, [&](std::uint32_t s) { roles[s] = role::pinned; });
    select_k(team, n, p.centers, open, [&](std::uint32_t s) { roles[s] = role::center; });

    std::uint32_t members = 0;
    std::uint32_t places = others(state.limit);
    if (wave.ledger.members.capacity != 0) {
      members = wave.ledger.members.count[wave.where(item).index];
      places = min_of(places, wave.ledger.members.capacity);
    }
    float const* const member_score = wave.member_score + wave.member_at(item, 0);
    std::uint8_t* const kept = wave.plan.member_kept + std::size_t{item} * wave.plan.member_stride;
    team.for_each(members, [&](std::uint32_t m) { kept[m] = 0; });
    team.for_each(n, [&](std::uint32_t s) {
      if (roles[s] == role::mergeable) roles[s] = role::irrelevant;
    });
    team.sync();
    select_k(
        team, n + members, places,
        [&](std::uint32_t i) {
          if (i >= n) return eligible_key(member_score[i - n]);
          return roles[i] == role::irrelevant ? eligible_key(score[i]) : 0u;
        },
        [&](std::uint32_t i) {
          if (i < n) {
            roles[i] = role::mergeable;
          } else {
            kept[i - n] = 1;
          }
        });
  }
  std::string problem() const {
    if (!is_within(magnification, 1.0, 1e6)) {
      return refusal("policy", "select::tiers.magnification", magnification, "1 to 1000000");
    }
    return first_problem({share_problem("select::tiers.sinks", sinks),
                          share_problem("select::tiers.window", window),
                          share_problem("select::tiers.protect", protect)});
  }
};

}  // namespace select
}  // namespace KVMELD_ABI
}  // namespace kvmeld
