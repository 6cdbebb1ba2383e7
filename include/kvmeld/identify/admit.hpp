// SPDX-License-Identifier: Apache-2.0
// The admission rules: a threshold, the budget, a share per round, a moving average.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/identify/admission.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
/// The share of the middle that Chelsea's round i removes: max(floor, initial - alpha * min(last, i)). The
/// middle is what lies between the first and the last entries that are pinned. `floor` is ours: the paper
/// requires r > 0 and gives no figure.
struct round_schedule {
  double initial = 0.35;   ///< share of the first round
  double alpha = 0.1;      ///< decrease from one round to the next
  std::uint32_t last = 2;  ///< from this round on the share stays the same
  double floor = 0.05;     ///< smallest share

  /// Share of round `round`, counted from 0.
  KVMELD_HD double share(std::uint32_t round) const {
    double const r = initial - alpha * static_cast<double>(min_of(last, round));
    return r > floor ? r : floor;
  }
  /// Number of edges that round `round` merges over `middle` entries: at least one, so that every round makes
  /// progress.
  KVMELD_HD std::uint32_t edges(std::uint32_t round, std::uint32_t middle) const {
    return max_of(std::uint32_t{1}, floor_share(share(round), middle));
  }
};

namespace admit {

/// A threshold, for threshold::theta and elements of threshold::per_layer, that every candidate passes.
constexpr float everything = -2.0f;
/// A threshold, for the same members, that no candidate passes.
constexpr float nothing = 2.0f;

/// Admits candidates with a similarity strictly above `theta` (KVMerger section 4.2; default 0.75), or, if
/// `inclusive`, of at least theta (EMS Eq. 5). Their number depends on the data: the budget only says whether
/// to compress at all. Compress with shortfall::keep, so that nothing is evicted to reach the budget.
/// Similarities lie between -1 and 1, up to rounding. A theta of `everything` or `nothing`, or any finite
/// number beyond them, admits all candidates or none. What is not a candidate merges under no threshold: a
/// row with NaN or infinity; with EMS's resemblance, a pair that is not alike in both keys and values.
struct threshold {
  float theta = 0.75f;     ///< least similarity
  bool inclusive = false;  ///< true: theta itself passes
  /// [layers] thresholds that `consecutive_threshold` uses instead of theta (calibrate/thresholds.hpp finds
  /// them); null: theta everywhere. The executor's phases read this memory. It stays unchanged as long as the
  /// policy is used.
  float const* per_layer = nullptr;

  /// Threshold of layer `layer` of the group of layers.
  KVMELD_HD float theta_in(std::uint32_t layer) const {
    return per_layer != nullptr ? per_layer[layer] : theta;
  }

  static constexpr char const* name = "threshold";

  KVMELD_HD admission allow(track_state const&, std::uint32_t, std::uint32_t) const {
    return {0xffffffffu, order_key(theta) + (inclusive ? 0u : 1u)};
  }
  std::string problem() const {
    if (is_finite(theta)) return {};
    return refusal("policy", "admit::threshold.theta", theta,
                   "a finite number, such as a cosine, everything or nothing");
  }
};

/// Admits as many of the best candidates as entries exceed the budget. With it, `consecutive_threshold` finds
/// per track a threshold that leaves at least as many sets as the budget wants. It then merges the most
/// similar neighbouring sets until the budget is met.
struct exact_budget {
  std::uint32_t bisections = 16;  ///< steps in which consecutive_threshold narrows its threshold

  static constexpr char const* name = "exact_budget";
  static constexpr admit_facts facts{&admit_facts::repeats, &admit_facts::meets_budget};

  KVMELD_HD admission allow(track_state const& s, std::uint32_t, std::uint32_t) const {
    return {s.excess(), 1};
  }
  std::string problem() const {
    if (bisections >= 1 && bisections <= 64) return {};
    return refusal("policy", "admit::exact_budget.bisections", bisections, "1 to 64");
  }
};

/// In round i, admits the best floor(r_i * middle) candidates of all chunks: at least one, but never more
/// than exceed the budget. `middle` is the size of the live-slot list.
struct top_share {
  round_schedule schedule{};  ///< r_i, the share of each round

  static constexpr char const* name = "top_share";
  static constexpr admit_facts facts{&admit_facts::repeats, &admit_facts::meets_budget};

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

/// Admits candidates with a similarity of at least tau_t = beta * x_t + (1 - beta) * tau_{t-1}, per track.
/// x_t is the highest similarity of this compression's candidates. tau_0 is the mean similarity of the first
/// compression's candidates (D2O, Wan et al. 2024, section 3.3). A plan computes tau_t, and the track
/// remembers it when the plan is applied.
struct ema_threshold {
  float beta = 0.7f;  ///< weight of this compression's highest similarity, 0 to 1

  static constexpr char const* name = "ema_threshold";

  template <class Round> KVMELD_HD admission allow_from(Round const& round, std::uint32_t candidates) const {
    auto const& team = round.team();
    float* const partial = team.template scratch<float>(team_partials);
    candidate const* const list = round.candidates();
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
    std::uint32_t const before = round.carried();
    if (matched == 0) return {0, 1};
    float const tau = before == 0 ? sum / static_cast<float>(matched)
                                  : beta * order_value(highest) + (1.0f - beta) * order_value(before);
    // The mean of one candidate is its own similarity, whatever rounding makes of it.
    std::uint32_t const least = before == 0 && matched == 1 ? highest : order_key(tau);
    if (team.lane() == 0) round.carry(least);
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
