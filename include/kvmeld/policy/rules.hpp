// SPDX-License-Identifier: Apache-2.0
// Which parts make a policy together: one table of rules. A broken rule is a static_assert for parts fixed at
// compile time, and a refusal for parts chosen at run time.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/shared/score_members.hpp>

#include <array>
#include <cstddef>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// What the parts of a policy state.
struct policy_facts {
  score_facts score;        ///< of the score
  select_facts select;      ///< of the selector
  identify_facts identify;  ///< of the identifier
  merge_facts merge;        ///< of the merge function
  bool scores_members;      ///< the score also answers for members of shared entries
};

/// What the types of the parts state.
template <class Score, class Select, class Identify, class Merge>
constexpr policy_facts stated_policy_facts{
    stated_facts<score_facts, Score>, stated_facts<select_facts, Select>,
    stated_facts<identify_facts, Identify>, stated_facts<merge_facts, Merge>, detail::scores_members<Score>};

/// What holds for the parts as they are configured.
template <class Score, class Select, class Identify, class Merge>
policy_facts facts_of_policy(policy<Score, Select, Identify, Merge> const& p) {
  return {facts_of<score_facts>(p.score), facts_of<select_facts>(p.select),
          facts_of<identify_facts>(p.identify), facts_of<merge_facts>(p.merge),
          detail::scores_members<Score>};
}

namespace detail {

/// A rule between the parts of a policy: whether a policy keeps it, and the refusal if it does not: `part` is
/// `what`; it must be `condition`.
struct rule {
  bool holds;
  char const *part, *what, *condition;
};

/// All rules, for one policy. refuse_broken knows them by their places.
constexpr std::array<rule, 15> rules_of(policy_facts const& p) {
  score_kind const gives = p.score.gives;
  identify_facts const& i = p.identify;
  merge_facts const& m = p.merge;
  bool const merges = i.makes_sets || i.makes_spans;
  bool const peaks = gives == score_kind::peaks || gives == score_kind::log_peaks;
  bool const tells = gives != score_kind::none, only_orders = tells && gives != score_kind::weights;
  return {{
      {merges || m.drops || m.spreads, "merge function", "one that weighs",
       "drop, because the identifier makes neither sets nor spans"},
      {!i.makes_spans || m.spreads || m.drops, "merge function", "one that weighs sets",
       "additive or drop, because the identifier makes spans"},
      {!m.spreads || i.makes_spans, "identifier", "one without spans",
       "local_span, because the merge function spreads over spans"},
      {!i.needs_centers || p.select.makes_centers, "selector", "one without centres",
       "tiers, because the identifier merges into centres"},
      {!p.select.makes_centers || i.needs_centers || !merges, "identifier",
       "one that merges, but not into centres",
       "nearest_center or evict_rest, because the selector spends the budget on centres"},
      {!m.needs_similarity || i.gives_similarity, "identifier", "one that gives no similarity",
       "nearest_center or chunked_bipartite, because the merge function weighs by similarity"},
      {!m.shares || i.needs_centers, "merge function", "one that shares entries",
       "another, or go with an identifier that merges into centres"},
      {!m.shares || p.scores_members, "merge function", "one that shares entries",
       "another, or go with a score that scores members"},
      {tells || !p.select.needs_score, "score", "none",
       "one that tells entries apart, because the selector decides by score"},
      {tells || !i.needs_score, "score", "none",
       "one that tells entries apart, because the identifier decides by score"},
      {tells || !m.needs_score, "score", "none",
       "one that tells entries apart, because the merge function decides by score"},
      {!m.fits || p.score.keeps_queries, "score", "one without reference queries",
       "keeping_queries over another score, because the merge function fits to reference queries"},
      {!m.fits || !merges, "identifier", "one that makes sets or spans",
       "evict_rest or none, because the merge function fits what an eviction leaves"},
      {!only_orders || !m.needs_score || (peaks && m.weighs_peaks), "score", "one that only orders entries",
       "one that gives weights, because the merge function weighs by score"},
      {!only_orders || !i.needs_score || !i.makes_spans || m.drops, "score", "one that only orders entries",
       "one that gives weights, because the identifier computes rates from scores"},
  }};
}

/// Place of the first rule that a policy breaks; rules_of(p).size(): none.
constexpr std::size_t broken_rule(policy_facts const& p) {
  std::size_t i = 0;
  for (rule const& r : rules_of(p)) {
    if (!r.holds) break;
    ++i;
  }
  return i;
}

/// Refuses types of parts that break a rule. A static_assert cannot take its text from the table.
template <std::size_t Broken> constexpr void refuse_broken() {
  static_assert(
      Broken != 0,
      "kvmeld: this identifier makes no sets, so there is nothing to weigh: use merge::drop with it");
  static_assert(
      Broken != 1,
      "kvmeld: this identifier spreads entries over spans of slots, but the policy's merge function "
      "weighs sets: use merge::additive with it, or merge::drop");
  static_assert(
      Broken != 2,
      "kvmeld: this merge function spreads entries over spans of slots, but the policy's identifier "
      "makes none: use identify::local_span with it");
  static_assert(
      Broken != 3,
      "kvmeld: this identifier merges into centres, but the selector makes none: use select::tiers");
  static_assert(
      Broken != 4,
      "kvmeld: this selector spends the budget on centres, but the identifier does not merge into them: "
      "use identify::nearest_center or identify::evict_rest");
  static_assert(Broken != 5,
                "kvmeld: this merge function weighs by similarity, but the identifier gives none: use "
                "identify::nearest_center or identify::chunked_bipartite");
  static_assert(Broken != 6, "kvmeld: this merge function shares entries, which need centres to live in: use "
                             "identify::nearest_center");
  static_assert(Broken != 7,
                "kvmeld: this merge function shares entries, but the score does not score members: it must "
                "have evaluate_members(team, view, out), or importance(view, i)");
  static_assert(Broken != 8,
                "kvmeld: this selector ranks entries by score, but the policy's score gives none");
  static_assert(Broken != 9, "kvmeld: this identifier decides by score, but the policy's score gives none");
  static_assert(Broken != 10,
                "kvmeld: this merge function weighs by score, but the policy's score gives none");
  static_assert(
      Broken != 11,
      "kvmeld: this merge function fits to reference queries, but the policy's score keeps none: use "
      "score::keeping_queries");
  static_assert(Broken != 12,
                "kvmeld: this merge function fits what an eviction leaves, but the policy's identifier makes "
                "sets or spans: use identify::evict_rest");
  static_assert(Broken != 13 && Broken != 14,
                "kvmeld: this policy computes with scores (its merge function weighs by score, or its "
                "identifier makes spans), but its score only orders entries: use one that gives weights, as "
                "scores from attention do");
}

}  // namespace detail

/// Whether tracks can share their budgets under this policy. They can if the score decides how much of the
/// budget each track gets, and the track's identifier then fills it in one round.
template <class Policy> bool stays_by_score(Policy const& policy) {
  policy_facts const p = facts_of_policy(policy);
  return p.select.needs_score && !p.select.thins_any_track &&
         (p.identify.drops_unmerged || p.identify.fills_budget);
}

/// Why a policy cannot be used as configured; empty if it can.
template <class Score, class Select, class Identify, class Merge>
std::string configuration_problem(policy<Score, Select, Identify, Merge> const& p) {
  std::string problem =
      first_problem({problem_of(p.score), problem_of(p.select), problem_of(p.identify), problem_of(p.merge)});
  if (!problem.empty()) return problem;
  policy_facts const facts = facts_of_policy(p);
  std::string const whose = message("policy ", name_of_policy(p));
  if (facts.identify.drops_unmerged && facts.select.pins_exactly) {
    pins const most = p.select.pinned(largest::capacity, largest::capacity - 1, 0);
    if (most.total() + most.centers == 0) {
      return refusal(whose, "number of entries that the selector pins", 0,
                     "at least 1, because the identifier drops the others (raise sinks, recents or heavy)");
    }
  }
  for (detail::rule const& r : detail::rules_of(facts)) {
    if (!r.holds) return refusal(whose, r.part, r.what, r.condition);
  }
  return {};
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
