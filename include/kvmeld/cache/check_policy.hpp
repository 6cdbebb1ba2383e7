// Compile-time and configuration checks of a whole policy: refusals that name the part and what it lacks.
#pragma once

#include <kvmeld/cache/part_traits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/identify/guarded.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/merge/merge_function.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/select/selector.hpp>

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
                is_merge_function<Merge>::value &&
                !(has_run_time_traits<Identify>::value || has_run_time_traits<Merge>::value ||
                  has_run_time_traits<Select>::value || has_run_time_traits<Score>::value)) {
    constexpr score_traits s = static_score_traits<Score>();
    constexpr select_traits l = static_select_traits<Select>();
    constexpr identify_traits i = static_identify_traits<Identify>();
    constexpr merge_traits m = static_merge_traits<Merge>();
    static_assert(
        composes::something_to_weigh(i, m),
        "kvmeld: this identifier makes no sets, so there is nothing to weigh: use merge::drop with it");
    static_assert(
        composes::spans_have_spreading(i, m),
        "kvmeld: this identifier spreads entries over spans of slots, but the policy's merge function "
        "weighs sets: use merge::additive with it, or merge::drop");
    static_assert(
        composes::spreading_has_spans(i, m),
        "kvmeld: this merge function spreads entries over spans of slots, but the policy's identifier "
        "makes none: use identify::local_span with it");
    static_assert(
        composes::centers_to_merge_into(l, i),
        "kvmeld: this identifier merges into centres, but the selector makes none: use select::bands");
    static_assert(
        composes::centers_of_use(l, i),
        "kvmeld: this selector spends the budget on centres, but the identifier does not merge into them: "
        "use identify::nearest_center or identify::zero_class");
    static_assert(composes::similarity_to_weigh_by(i, m),
                  "kvmeld: this merge function weighs by similarity, but the identifier gives none: use "
                  "identify::nearest_center or identify::chunked_bipartite");
    static_assert(composes::centers_to_live_in(i, m),
                  "kvmeld: this merge function shares entries, which need centres to live in: use "
                  "identify::nearest_center");
    static_assert(
        composes::scores_of_members(s, m),
        "kvmeld: this merge function shares entries, but the score does not score members: it must have "
        "evaluate_members(team, ledger, track, length, out)");
    if constexpr (is_guarded<Identify>::value) {
      static_assert(
          composes::sets_to_guard<Score, Identify, Merge>(),
          "kvmeld: a guard needs an identifier that makes sets and drops nothing (chunked_bipartite, "
          "consecutive_threshold) and a merge function that has sums_degrees (average, degree_weighted, "
          "gaussian, score_weighted, similarity_weighted)");
      static_assert(composes::channels_for_guard<Score, Identify>(),
                    "kvmeld: a guard needs five channels beside the score's, of eight, and a score whose "
                    "channels are known at compile time");
    }
    static_assert(s.needs_attention || !l.needs_score,
                  "kvmeld: this selector ranks entries by score, but the policy's score is score::none");
    static_assert(s.needs_attention || !i.needs_score,
                  "kvmeld: this identifier decides by score, but the policy's score is score::none");
    static_assert(s.needs_attention || !m.needs_score,
                  "kvmeld: this merge function weighs by score, but the policy's score is score::none");
  }
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
