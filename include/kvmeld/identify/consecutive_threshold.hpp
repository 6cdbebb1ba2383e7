// SPDX-License-Identifier: Apache-2.0
// KVMerger's identifier: runs of consecutive entries that resemble their newest one (KVMerger section 4.2,
// alg. 1).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/identify/admission.hpp>
#include <kvmeld/identify/admit.hpp>
#include <kvmeld/identify/consecutive_scan.hpp>
#include <kvmeld/identify/listed_places.hpp>
#include <kvmeld/identify/remembering_scan.hpp>
#include <kvmeld/identify/rows.hpp>
#include <kvmeld/identify/scan_path.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// Which entry of a set is its pivot: the result lies in its slot.
enum class pivot_rule : std::uint8_t {
  highest_score,  ///< ties to the lower slot
  newest,         ///< the averaging baseline of the paper's second version
};

/// Scans the live-slot list from its newest entry to its oldest. The newest entry is the anchor. Older
/// entries join while their cosine with the anchor is strictly above theta; the first that fails becomes the
/// next anchor. With `admit::threshold`, theta is given. With `admit::exact_budget`, bisection finds a theta
/// per track such that at least as many sets remain as the budget wants. Then the most similar neighbouring
/// sets (cosine of their anchors, ties to the older pair) merge until the budget is met exactly.
///
/// A row with NaN or infinity between two entries ends a set, whatever the threshold: the sets on its two
/// sides never merge. A track with many such rows may stay above its budget.
template <class Admit = kvmeld::admit::exact_budget> struct consecutive_threshold {
  static_assert(
      std::is_same_v<Admit, kvmeld::admit::exact_budget> || std::is_same_v<Admit, kvmeld::admit::threshold>,
      "kvmeld: consecutive_threshold is a scan with one threshold: its admission is admit::threshold or "
      "admit::exact_budget");
  anchor_rule anchor = anchor_rule::fixed;       ///< what an entry is compared with
  pivot_rule pivot = pivot_rule::highest_score;  ///< in whose slot a result lies
  bool break_at_gap = false;                     ///< true: a protected entry in between ends a set too
  Admit admission{};                             ///< the threshold, or the budget that it is found for

  static constexpr char const* name = "consecutive_threshold";
  static constexpr bool to_budget =
      std::is_same_v<Admit, kvmeld::admit::exact_budget>;  ///< whether it finds its threshold itself
  static constexpr identify_facts facts =
      changed_facts(identify_facts{&identify_facts::needs_score, &identify_facts::needs_keys},
                    &identify_facts::meets_budget, to_budget);

  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(shape const& s, int lanes) const {
    return consecutive_scan_scratch(s.key_dim, static_cast<std::uint32_t>(lanes)) + select_k_scratch();
  }

  /// Leaves in candidates[i].target, for entry i of the live-slot list, the newest entry of its set.
  template <class Team, class Keys> KVMELD_HD void propose(proposal_tile<Team, Keys> const& tile) const {
    if (tile.state().live_count == 0) return;
    if constexpr (may_be_tuned<Team>) {
      if (is_tuned(tile.team())) {
        remembering_scan<Team, Keys> scan(tile, anchor, break_at_gap);
        return settle(scan, tile.where(), tile.state());
      }
    }
    consecutive_scan<Team, Keys> scan(tile, anchor, break_at_gap);
    settle(scan, tile.where(), tile.state());
  }

  template <class Round> KVMELD_HD void admit(Round& round) const {
    candidate const* const marks = round.candidates();
    round.for_each(round.live(), [&](std::uint32_t newest) {
      if (marks[newest].target != newest) return;
      std::uint32_t oldest = newest;
      while (oldest > 0 && marks[oldest - 1].target == newest) --oldest;
      std::uint32_t best = newest;
      if (pivot == pivot_rule::highest_score) {
        for (std::uint32_t i = newest; i-- > oldest;) {
          if (order_key(round.score(i)) >= order_key(round.score(best))) best = i;
        }
      }
      for (std::uint32_t i = oldest; i <= newest; ++i) {
        if (i != best) round.merge(i, best);
      }
    });
  }

  std::string problem() const { return admission.problem(); }

private:
  /// Finds the threshold of a track and marks its sets.
  template <class Scan> KVMELD_HD void settle(Scan& scan, track where, track_state const& s) const {
    if constexpr (to_budget) {
      std::uint32_t const others = s.alive - s.live_count;
      std::uint32_t const wanted = s.limit > others ? s.limit - others : 1;
      scan_bracket bracket;
      scan.bisect(admission.bisections, wanted, bracket);
      std::uint32_t const sets = scan.mark(bracket.high);
      if (sets > wanted) scan.join_neighbours(sets, sets - wanted);
    } else {
      scan.mark(admission.theta_in(where.layer));
    }
  }
};

}  // namespace identify
}  // namespace KVMELD_ABI
}  // namespace kvmeld
