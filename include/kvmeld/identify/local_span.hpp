// SPDX-License-Identifier: Apache-2.0
// CaM's identifier: it may spread what the base policy evicts evenly over the local tokens ("CaM: Cache
// Merging for Memory-efficient LLMs Inference", 2024, section 3.3 and alg. 1).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/random.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// How CaM's rate p_i = clamp(A_i / mean A of the targets, 0, 1) becomes the mask M (eq. 14).
enum class mask_mode : std::uint8_t {
  bernoulli,  ///< M = 1 with probability p, as printed; the draw depends on seed, layer, id of the sequence,
              ///< head and position alone
  expected,   ///< M = p: the mean of the draws, without variance
  threshold,  ///< M = 1 where p > 0.5: the condition of theorem 3.3, mean A < 2 A_i
  given,      ///< M as the caller gives it, whatever p: see local_span::given
};

/// Every mergeable entry leaves. It spreads over the first `targets` entries of the local window that the
/// selector pinned (track_state::recents). Its mask is the step's value weight, which the merge function
/// divides. It drops where the mask is 0. Needs accumulated attention as its score; 0/0 gives p = 0 and x/0
/// gives 1; scores that are NaN or infinite count as 0. Targets are one run of slots. Rows with NaN or
/// infinity neither spread (they drop) nor receive. If the window has such rows, its longest run without any
/// counts as the window (the earlier of equal runs). If there is no such run, all mergeable entries drop. No
/// target is frozen or lies in a slot that a layout refuses to write: the window begins after those.
struct local_span {
  static constexpr std::uint32_t whole_window = 0xffffffffu;  ///< for `targets`: as many as there are

  mask_mode mode = mask_mode::expected;  ///< how rates become masks
  std::uint32_t targets = whole_window;  ///< m: local tokens that receive, at most the window
  std::uint64_t seed = 0;                ///< seed of the draws
  /// Divide by the highest score among sinks and recents instead of the targets' mean, as the authors' code
  /// does.
  bool reference_max = false;
  /// [tracks][capacity], for mask_mode::given: how much of the entry in each slot merges if it is evicted,
  /// from 0 (it drops) to 1 (all of it spreads). Numbers above 1 count as 1; numbers below 0 and NaN count as
  /// 0. Tracks are numbered as in the cache: ledger_ref::at. Phases read this memory. It stays unchanged
  /// while a compression runs. Scores then have no effect on masks.
  float const* given = nullptr;

  static constexpr char const* name = "local_span";
  static constexpr identify_facts facts = changed_facts(
      identify_facts{&identify_facts::meets_budget, &identify_facts::drops_unmerged,
                     &identify_facts::needs_score, &identify_facts::makes_spans, &identify_facts::light},
      &identify_facts::makes_sets, false);

  template <class Round> KVMELD_HD void admit(Round& round) const {
    run const to = find_targets(round);
    float const yardstick = to.count == 0 ? 0.0f : denominator(round, to);  // the same on every lane
    round.for_each(round.state().length, [&](slot_t i) {
      if (!round.is_mergeable(i)) return;
      float const share =
          to.count != 0 && round.ledger().usable(round.where(), i) ? share_of(round, i, yardstick) : 0.0f;
      if (share > 0.0f) {
        round.spread_slot(i, to.first, to.count, share);
      } else {
        round.drop_slot(i);
      }
    });
  }

  /// clamp(evicted / denominator, 0, 1) with 0/0 = 0 and x/0 = 1.
  KVMELD_HD static float rate(float evicted, float denominator) {
    if (!(evicted > 0.0f)) return 0.0f;
    return denominator > evicted ? evicted / denominator : 1.0f;
  }

  std::string problem() const {
    if (mode == mask_mode::given && given == nullptr)
      return refusal("policy", "identify::local_span.given", "null",
                     "an array of masks, because mode is given");
    if (targets != 0) return {};
    return refusal("policy", "identify::local_span.targets", 0, "at least 1, or whole_window");
  }

private:
  struct run {
    slot_t first;
    std::uint32_t count;
  };

  KVMELD_HD static float counted(float score) { return is_finite(score) ? score : 0.0f; }

  template <class Round> KVMELD_HD run find_targets(Round const& round) const {
    track_state const& s = round.state();
    track const where = round.where();
    slot_t const begin = max_of(s.shielded, s.length - s.recents);
    auto const fits = [&](slot_t i) {
      return round.role_of(i) == role::pinned && round.ledger().usable(where, i);
    };
    std::uint32_t unfit = 0;
    round.for_each(s.length - begin, [&](std::uint32_t i) { unfit += fits(begin + i) ? 0u : 1u; });
    unfit = round.team().reduce(unfit, op_sum{});
    run best{begin, s.length - begin};
    if (unfit != 0) {  // rare: every lane looks for itself
      best.count = 0;
      run now{begin, 0};
      for (slot_t i = begin; i < s.length; ++i) {
        now = fits(i) ? run{now.first, now.count + 1} : run{i + 1, 0};
        if (now.count > best.count) best = now;
      }
    }
    return {best.first, min_of(best.count, targets)};
  }

  template <class Round> KVMELD_HD float denominator(Round const& round, run to) const {
    track_state const& s = round.state();
    auto const& team = round.team();
    if (!reference_max) {
      float* const partial = team.template scratch<float>(team_partials);
      auto const score = [&](std::uint32_t i) { return counted(round.score_of(to.first + i)); };
      return team_sum(team, to.count, score, partial) / static_cast<float>(to.count);
    }
    std::uint32_t most = order_key(0.0f);
    round.for_each(s.sinks + s.recents, [&](std::uint32_t i) {
      slot_t const slot = i < s.sinks ? i : s.length - s.recents + (i - s.sinks);
      most = max_of(most, order_key(counted(round.score_of(slot))));
    });
    return order_value(team.reduce(most, op_max{}));
  }

  template <class Round> KVMELD_HD float share_of(Round const& round, slot_t s, float yardstick) const {
    track const where = round.where();
    if (mode == mask_mode::given) return given_mask(given[round.ledger().at(where, s)]);
    return mask(round.ledger(), where, s, rate(counted(round.score_of(s)), yardstick));
  }

  KVMELD_HD static float given_mask(float m) {
    // Compares order keys, because -ffast-math may take a comparison with NaN for true. The key of NaN is 0.
    return order_key(m) > order_key(0.0f) ? min_of(m, 1.0f) : 0.0f;
  }

  KVMELD_HD float mask(ledger_ref const& ledger, track where, slot_t s, float p) const {
    switch (mode) {
    case mask_mode::bernoulli: return uniform01(draw_key(ledger, where, s, seed)) < p ? 1.0f : 0.0f;
    case mask_mode::expected: return p;
    case mask_mode::threshold:
    case mask_mode::given: break;
    }
    return p > 0.5f ? 1.0f : 0.0f;
  }
};

}  // namespace identify
}  // namespace KVMELD_ABI
}  // namespace kvmeld
