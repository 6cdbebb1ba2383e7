// KVMerger's identifier: runs of consecutive entries that resemble their newest one (KVMerger section 4.2, alg. 1).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/select_k.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/identify/admit/admit.hpp>
#include <kvmeld/identify/admit/exact_budget.hpp>
#include <kvmeld/identify/admit/threshold.hpp>
#include <kvmeld/identify/consecutive_scan.hpp>
#include <kvmeld/identify/rows.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// Which member of a set its result is stored at.
enum class pivot_rule : std::uint8_t {
  highest_score,  ///< ties to the lower slot
  newest,         ///< the averaging baseline of the paper's second version
};

/// Scans the live-slot list from its newest entry to its oldest: the newest is the anchor, older entries join while
/// their cosine with it is strictly above theta; the first that fails becomes the next anchor.
/// With `admit::threshold` theta is given. With `admit::exact_budget` it is found per track by bisection such that at
/// least as many sets remain as the budget wants; then the most similar neighbouring sets (cosine of their anchors,
/// ties to the older pair) merge until the budget is met exactly.
template <class Admit = kvmeld::admit::exact_budget> struct consecutive_threshold {
  static_assert(
      std::is_same_v<Admit, kvmeld::admit::exact_budget> || std::is_same_v<Admit, kvmeld::admit::threshold>,
      "kvmeld: consecutive_threshold is a scan with one threshold: its admission is admit::threshold or "
      "admit::exact_budget");
  anchor_rule anchor = anchor_rule::fixed;
  pivot_rule pivot = pivot_rule::highest_score;
  bool break_at_gap = false;  ///< true: a protected entry in between ends a set
  Admit admission{};

  static constexpr char const* name = "consecutive_threshold";
  static constexpr bool repeats = false;
  static constexpr bool meets_budget = Admit::meets_budget;
  static constexpr bool needs_score = true;
  static constexpr bool makes_sets = true;
  static constexpr bool needs_keys = true;

  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(shape const& s, int lanes) const {
    return consecutive_scan_scratch(s.key_dim, static_cast<std::uint32_t>(lanes)) + select_k_scratch();
  }

  /// Leaves in candidates[i].target, for entry i of the live-slot list, the newest entry of its set.
  template <class Team, class Keys>
  KVMELD_HD void propose(Team const& team, wave_ref const& wave, Keys const& keys, tile const& t) const {
    track_state const s = wave.state[t.item];
    if (s.field == 0) return;
    consecutive_scan<Team, Keys> scan(team, wave, keys, t, anchor, break_at_gap);
    if constexpr (std::is_same_v<Admit, kvmeld::admit::exact_budget>) {
      std::uint32_t const others = s.alive - s.field;
      std::uint32_t const wanted = s.limit > others ? s.limit - others : 1;
      float low = -1.0625f;  // below every cosine: one set, gaps aside
      float high = 1.0625f;  // above every cosine, rounding included: every entry its own set
      for (std::uint32_t i = 0; i < admission.bisections; ++i) {
        if constexpr (has_kernels<Team>::value) {
          if (auto const* const tuned = team.kernels()) {
            std::uint32_t const steps = min_of(scan_bisections, admission.bisections - i);
            bisect(scan, *tuned, steps, wanted, low, high);
            i += steps - 1;
            continue;
          }
        }
        float const middle = 0.5f * (low + high);
        (scan.count(middle) >= wanted ? high : low) = middle;
      }
      std::uint32_t const sets = scan.mark(high);
      if (sets > wanted) scan.join_neighbours(sets, sets - wanted);
    } else {
      scan.mark(admission.theta_in(t.where.layer));
    }
  }

  template <class Team>
  KVMELD_HD void admit(Team const& team, wave_ref const& wave, std::uint32_t item, std::uint32_t) const {
    std::uint32_t const n = wave.state[item].field;
    slot_t const* const field = wave.field + wave.at(item, 0);
    candidate const* const marks = wave.candidates + wave.at(item, 0);
    float const* const score = wave.score + wave.at(item, 0);
    std::uint32_t merged = 0;
    team.for_each(n, [&](std::uint32_t newest) {
      if (marks[newest].target != newest) return;
      std::uint32_t oldest = newest;
      while (oldest > 0 && marks[oldest - 1].target == newest) --oldest;
      slot_t best = field[newest];
      if (pivot == pivot_rule::highest_score) {
        for (std::uint32_t i = newest; i-- > oldest;) {
          if (order_key(score[field[i]]) >= order_key(score[best])) best = field[i];
        }
      }
      for (std::uint32_t i = oldest; i <= newest; ++i) {
        if (field[i] == best) continue;
        std::size_t const e = wave.step.at(item, field[i]);
        wave.step.what[e] = fate::merge;
        wave.step.target[e] = best;
        ++merged;
      }
    });
    merged = team.reduce(merged, op_sum{});
    if (team.lane() == 0) wave.state[item].merged += merged;
    team.sync();
  }

  std::string problem() const { return admission.problem(); }

private:
  /// `steps` bisections at once: all thresholds that they may come to, as a heap whose node k splits an interval into
  /// those of 2k (lower) and 2k + 1. The outcome is that of one bisection after the other.
  template <class Scan, class Kernels>
  static void bisect(Scan& scan, Kernels const& tuned, std::uint32_t steps, std::uint32_t wanted, float& low,
                     float& high) {
    float lows[scan_thresholds + 1], highs[scan_thresholds + 1], middle[scan_thresholds + 1];
    std::uint32_t sets[scan_thresholds];
    std::uint32_t const nodes = (1u << steps) - 1;
    lows[1] = low;
    highs[1] = high;
    for (std::uint32_t k = 1; k <= nodes; ++k) {
      middle[k] = 0.5f * (lows[k] + highs[k]);
      for (std::uint32_t child = 2 * k; child <= 2 * k + 1 && child <= nodes; ++child) {
        lows[child] = child % 2 == 0 ? lows[k] : middle[k];
        highs[child] = child % 2 == 0 ? middle[k] : highs[k];
      }
    }
    scan.count_many(tuned, middle + 1, nodes, sets);
    for (std::uint32_t k = 1; k <= nodes;) {
      bool const enough = sets[k - 1] >= wanted;
      (enough ? high : low) = middle[k];
      k = 2 * k + (enough ? 0 : 1);
    }
  }
};

}  // namespace identify
}  // namespace KVMELD_ABI
}  // namespace kvmeld
