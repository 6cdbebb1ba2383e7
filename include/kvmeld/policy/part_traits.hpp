// What the parts of a policy need from each other, and which compositions mean something.
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/score/reference_queries.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/select/selector.hpp>

#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The rules of composition. A rule is a static_assert for parts fixed at compile time, and a refusal for
/// parts chosen at run time.
namespace composes {
constexpr bool something_to_weigh(identify_facts i, merge_facts m) {
  return i.makes_sets || i.makes_spans || m.drops || m.spreads;
}
constexpr bool spans_have_spreading(identify_facts i, merge_facts m) {
  return !i.makes_spans || m.spreads || m.drops;
}
constexpr bool spreading_has_spans(identify_facts i, merge_facts m) { return !m.spreads || i.makes_spans; }
constexpr bool centers_to_merge_into(select_facts s, identify_facts i) {
  return !i.needs_centers || s.makes_centers;
}
constexpr bool centers_of_use(select_facts s, identify_facts i) {
  return !s.makes_centers || i.needs_centers || !(i.makes_sets || i.makes_spans);
}
constexpr bool similarity_to_weigh_by(identify_facts i, merge_facts m) {
  return !m.needs_similarity || i.gives_similarity;
}
constexpr bool centers_to_live_in(identify_facts i, merge_facts m) { return !m.shares || i.needs_centers; }
constexpr bool scores_of_members(bool scores_members, merge_facts m) { return !m.shares || scores_members; }
constexpr bool scores_of_entries(score_facts s, select_facts l, identify_facts i, merge_facts m) {
  return s.gives != score_kind::none || !(l.needs_score || i.needs_score || m.needs_score);
}
constexpr bool scores_to_compute_with(score_facts s, identify_facts i, merge_facts m) {
  bool const peaks = s.gives == score_kind::peaks || s.gives == score_kind::log_peaks;
  bool const weighs = m.needs_score && !(peaks && m.weighs_peaks);
  return s.gives == score_kind::weights || !(weighs || (i.needs_score && i.makes_spans && !m.drops));
}
constexpr bool queries_to_fit_to(score_facts s, merge_facts m) { return !m.fits || s.keeps_queries; }
constexpr bool evictions_to_fit(identify_facts i, merge_facts m) {
  return !m.fits || !(i.makes_sets || i.makes_spans);
}
}  // namespace composes

namespace detail {

/// Why these parts make no policy together; empty if they do.
inline std::string composition_problem(score_facts s, bool members, select_facts l, identify_facts i,
                                       merge_facts m, std::string const& name) {
  auto const no = [&](char const* part, char const* what, char const* condition) {
    return refusal(message("policy ", name), part, what, condition);
  };
  if (!composes::something_to_weigh(i, m)) {
    return no("merge function", "one that weighs",
              "drop, because the identifier makes neither sets nor spans");
  }
  if (!composes::spans_have_spreading(i, m)) {
    return no("merge function", "one that weighs sets",
              "additive or drop, because the identifier makes spans");
  }
  if (!composes::spreading_has_spans(i, m)) {
    return no("identifier", "one without spans", "local_span, because the merge function spreads over spans");
  }
  if (!composes::centers_to_merge_into(l, i)) {
    return no("selector", "one without centres", "tiers, because the identifier merges into centres");
  }
  if (!composes::centers_of_use(l, i)) {
    return no("identifier", "one that merges, but not into centres",
              "nearest_center or evict_rest, because the selector spends the budget on centres");
  }
  if (!composes::similarity_to_weigh_by(i, m)) {
    return no("identifier", "one that gives no similarity",
              "nearest_center or chunked_bipartite, because the merge function weighs by similarity");
  }
  if (!composes::centers_to_live_in(i, m) || !composes::scores_of_members(members, m)) {
    return no("merge function", "one that shares entries",
              "another, or go with an identifier that merges into centres and a score that scores members");
  }
  if (!composes::scores_of_entries(s, l, i, m)) {
    return no("score", "none",
              l.needs_score   ? "one that tells entries apart, because the selector decides by score"
              : i.needs_score ? "one that tells entries apart, because the identifier decides by score"
                              : "one that tells entries apart, because the merge function decides by score");
  }
  if (!composes::queries_to_fit_to(s, m)) {
    return no("score", "one without reference queries",
              "keeping_queries over another score, because the merge function fits to reference queries");
  }
  if (!composes::evictions_to_fit(i, m)) {
    return no("identifier", "one that makes sets or spans",
              "evict_rest or none, because the merge function fits what an eviction leaves");
  }
  if (!composes::scores_to_compute_with(s, i, m)) {
    return no("score", "one that only orders entries",
              m.needs_score ? "one that gives weights, because the merge function weighs by score"
                            : "one that gives weights, because the identifier computes rates from scores");
  }
  return {};
}

}  // namespace detail

/// Whether tracks can share their budgets under this policy. They can if the score decides how much of the
/// budget each track gets, and the track's identifier then fills it in one round.
template <class Score, class Select, class Identify, class Merge>
bool stays_by_score(policy<Score, Select, Identify, Merge> const& p) {
  select_facts const s = facts_of<select_facts>(p.select);
  identify_facts const i = facts_of<identify_facts>(p.identify);
  return s.needs_score && !s.thins_any_track && (i.drops_unmerged || i.fills_budget);
}

namespace detail {

/// Why a policy would keep no entry of any track, whatever its budget; empty if it keeps some.
template <class Policy> std::string emptying_problem(Policy const& p) {
  if (!facts_of<identify_facts>(p.identify).drops_unmerged || !facts_of<select_facts>(p.select).pins_exactly)
    return {};
  pins const most = p.select.pinned(largest::capacity, largest::capacity - 1, 0);
  if (most.total() + most.centers != 0) return {};
  return refusal(message("policy ", name_of_policy(p)), "number of entries that the selector pins", 0,
                 "at least 1, because the identifier drops the others (raise sinks, recents or heavy)");
}

}  // namespace detail

/// Why a policy cannot be used as configured; empty if it can.
template <class Score, class Select, class Identify, class Merge>
std::string configuration_problem(policy<Score, Select, Identify, Merge> const& p) {
  for (std::string const& problem :
       {problem_of(p.score), problem_of(p.select), problem_of(p.identify), problem_of(p.merge)}) {
    if (!problem.empty()) return problem;
  }
  if (std::string problem = detail::emptying_problem(p); !problem.empty()) return problem;
  return detail::composition_problem(facts_of<score_facts>(p.score), detail::scores_members<Score>,
                                     facts_of<select_facts>(p.select), facts_of<identify_facts>(p.identify),
                                     facts_of<merge_facts>(p.merge), name_of_policy(p));
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
