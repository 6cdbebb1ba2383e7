// Compile-time and configuration checks of a whole policy: refusals that name the part and what it lacks.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/merge/drop.hpp>
#include <kvmeld/merge/merge_function.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/select/selector.hpp>

#include <initializer_list>
#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Instantiated with a policy's parts, so that the compiler's note names the offending type.
template <class Score, class Select, class Identify, class Merge> constexpr void require_policy() {
  static_assert(
      is_score<Score>::value,
      "kvmeld: this type is not a score: it must be trivially copyable and have needs_attention, channels(), "
      "update(channel, window_rows, rows), next_window(window_rows, rows) and "
      "evaluate(team, ledger, track, length, out)");
  static_assert(is_selector<Select>::value,
                "kvmeld: this type is not a selector: it must be trivially copyable and have "
                "pinned(length, limit, frozen) and assign(team, wave, item, pins)");
  static_assert(
      is_identifier<Identify>::value,
      "kvmeld: this type is not an identifier: it must be trivially copyable and have repeats, meets_budget, "
      "needs_score, makes_sets, needs_keys, tiles(shape), scratch_bytes(shape, lanes), "
      "propose(team, wave, keys, tile) and admit(team, wave, item, round)");
  static_assert(
      is_merge_function<Merge>::value,
      "kvmeld: this type is not a merge function: it must be trivially copyable and have needs_score, "
      "cooperative, carries_degree(), scratch_bytes(shape, lanes) and weigh(...)");
  if constexpr (is_score<Score>::value && is_selector<Select>::value && is_identifier<Identify>::value &&
                is_merge_function<Merge>::value) {
    static_assert(
        Identify::makes_sets || makes_spans<Identify>::value || spreads_entries<Merge>::value ||
            std::is_same_v<Merge, merge::drop>,
        "kvmeld: this identifier makes no sets, so there is nothing to weigh: use merge::drop with it");
    static_assert(
        !makes_spans<Identify>::value || spreads_entries<Merge>::value || std::is_same_v<Merge, merge::drop>,
        "kvmeld: this identifier spreads entries over spans of slots, but the policy's merge function "
        "weighs sets: use merge::additive with it, or merge::drop");
    static_assert(
        makes_spans<Identify>::value || !spreads_entries<Merge>::value,
        "kvmeld: this merge function spreads entries over spans of slots, but the policy's identifier "
        "makes none: use identify::local_span with it");
    static_assert(Score::needs_attention || !Select::needs_score,
                  "kvmeld: this selector ranks entries by score, but the policy's score is score::none");
    static_assert(Score::needs_attention || !Identify::needs_score,
                  "kvmeld: this identifier decides by score, but the policy's score is score::none");
    static_assert(Score::needs_attention || !Merge::needs_score,
                  "kvmeld: this merge function weighs by score, but the policy's score is score::none");
  }
}

/// Why a policy cannot be used as configured; empty if it can.
template <class Score, class Select, class Identify, class Merge>
std::string configuration_problem(policy<Score, Select, Identify, Merge> const& p) {
  for (std::string const& problem :
       {problem_of(p.score), problem_of(p.select), problem_of(p.identify), problem_of(p.merge)}) {
    if (!problem.empty()) return problem;
  }
  return {};
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
