// Admit candidates whose similarity reaches a moving average (D2O).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/team_sum.hpp>
#include <kvmeld/identify/admit/admit.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace admit {

/// Admits candidates with a similarity of at least tau_t = beta * x_t + (1 - beta) * tau_{t-1}, per track.
/// x_t is the highest similarity of this compression's candidates. tau_0 is the mean similarity of the first
/// compression's candidates (D2O, Wan et al. 2024, section 3.3). A plan computes tau_t, and the track
/// remembers it when the plan is applied.
struct ema_threshold {
  float beta = 0.7f;  ///< weight of this compression's highest similarity, 0 to 1

  static constexpr char const* name = "ema_threshold";
  static constexpr bool repeats = false;
  static constexpr bool meets_budget = false;

  template <class Team>
  KVMELD_HD admission allow_from(Team const& team, wave_ref const& wave, std::uint32_t item,
                                 std::uint32_t candidates, std::uint32_t) const {
    float* const partial = team.template scratch<float>(team_partials);
    candidate const* const list = wave.candidates + wave.at(item, 0);
    std::uint32_t highest = 0;
    std::uint32_t matched = 0;
    team.for_each(candidates, [&](std::uint32_t i) {
      highest = max_of(highest, list[i].key);
      matched += list[i].key != 0 ? 1u : 0u;
    });
    highest = team.reduce(highest, op_max{});
    matched = team.reduce(matched, op_sum{});
    float const sum = team_sum(
        team, candidates, [&](std::uint32_t i) { return order_value(list[i].key); }, partial);
    track const where = wave.where(item);
    std::uint32_t const before = wave.ledger.word(where, track_word::threshold);
    if (matched == 0) return {0, 1};
    float const tau = before == 0 ? sum / static_cast<float>(matched)
                                  : beta * order_value(highest) + (1.0f - beta) * order_value(before);
    // The mean of one candidate is its own similarity, whatever rounding makes of it.
    std::uint32_t const least = before == 0 && matched == 1 ? highest : order_key(tau);
    if (team.lane() == 0) wave.ledger.word(where, track_word::next_threshold) = least;
    return {candidates, least};
  }
  std::string problem() const {
    if (is_within(static_cast<double>(beta), 0.0, 1.0)) return {};
    return refusal("policy", "admit::ema_threshold.beta", beta, "0 to 1");
  }
};

}  // namespace admit
}  // namespace KVMELD_ABI
}  // namespace kvmeld
