// Checks of a whole policy, at compile time and of its configuration. A refusal names the part and what the
// part lacks.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/admission.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/identify/no_sets.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/strided.hpp>
#include <kvmeld/merge/drop.hpp>
#include <kvmeld/merge/merge_function.hpp>
#include <kvmeld/policy/part_traits.hpp>
#include <kvmeld/score/none.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/select/selector.hpp>
#include <kvmeld/select/sinks_and_recents.hpp>

#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

/// Whether the admission of an identifier fulfils its contract, or there is none.
template <class Identify> constexpr bool admission_is_whole() {
  if constexpr (has_admission<Identify>::value) {
    return missing_in_admission<std::decay_t<decltype(std::declval<Identify&>().admission)>> == -1;
  } else {
    return true;
  }
}

}  // namespace detail

/// Whether a type is a kvmeld::policy whose four parts fulfil their contracts.
template <class Policy> struct is_policy : std::false_type {};
template <class Score, class Select, class Identify, class Merge>
struct is_policy<policy<Score, Select, Identify, Merge>>
    : std::bool_constant<is_score<Score>::value && is_selector<Select>::value &&
                         is_identifier<Identify>::value && is_merge_function<Merge>::value &&
                         detail::admission_is_whole<Identify>()> {};

namespace detail {

/// The policy, or a sound policy in place of one that is refused, so that the refusal is the only error that
/// a compiler reports.
template <class Policy>
using policy_or_stand_in =
    std::conditional_t<is_policy<Policy>::value, Policy,
                       policy<score::none, select::sinks_and_recents, identify::evict_rest, merge::drop>>;

/// The layout, or a sound layout in place of one that is refused.
template <class Layout>
using layout_or_stand_in = std::conditional_t<is_layout<Layout>::value, Layout, strided<float>>;

/// The policy `given`, or the policy that stands in for it.
template <class Used, class Given> Used used_policy([[maybe_unused]] Given const& given) {
  if constexpr (std::is_same_v<Used, Given>) {
    return given;
  } else {
    return Used{};
  }
}

/// The layout `given`, or the layout that stands in for it.
template <class Used, class Given> Used used_layout([[maybe_unused]] Given const& given) {
  if constexpr (std::is_same_v<Used, Given>) {
    return given;
  } else {
    return Used{nullptr, cache_strides{}, shape{}, 1};
  }
}

/// Refuses parts that make no policy. It is instantiated with the parts, so that the compiler's note names
/// the offending type.
template <class Score, class Select, class Identify, class Merge> constexpr void require_policy() {
  require_score<Score>();
  require_selector<Select>();
  if constexpr (admission_is_whole<Identify>()) {
    require_identifier<Identify>();
  } else {
    require_admission<std::decay_t<decltype(std::declval<Identify&>().admission)>>();
  }
  require_merge_function<Merge>();
  if constexpr (is_policy<policy<Score, Select, Identify, Merge>>::value &&
                !(has_facts_now<Identify> || has_facts_now<Merge> || has_facts_now<Select> ||
                  has_facts_now<Score>)) {
    constexpr score_facts s = stated_facts<score_facts, Score>;
    constexpr select_facts l = stated_facts<select_facts, Select>;
    constexpr identify_facts i = stated_facts<identify_facts, Identify>;
    constexpr merge_facts m = stated_facts<merge_facts, Merge>;
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
        "kvmeld: this identifier merges into centres, but the selector makes none: use select::tiers");
    static_assert(
        composes::centers_of_use(l, i),
        "kvmeld: this selector spends the budget on centres, but the identifier does not merge into them: "
        "use identify::nearest_center or identify::evict_rest");
    static_assert(composes::similarity_to_weigh_by(i, m),
                  "kvmeld: this merge function weighs by similarity, but the identifier gives none: use "
                  "identify::nearest_center or identify::chunked_bipartite");
    static_assert(composes::centers_to_live_in(i, m),
                  "kvmeld: this merge function shares entries, which need centres to live in: use "
                  "identify::nearest_center");
    static_assert(
        composes::scores_of_members(scores_members<Score>, m),
        "kvmeld: this merge function shares entries, but the score does not score members: it must have "
        "evaluate_members(team, view, out), or importance(view, i)");
    static_assert(composes::queries_to_fit_to(s, m),
                  "kvmeld: this merge function fits to reference queries, but the policy's score keeps none: "
                  "use score::keeping_queries");
    static_assert(composes::evictions_to_fit(i, m),
                  "kvmeld: this merge function fits what an eviction leaves, but the policy's identifier "
                  "makes sets or spans: use identify::evict_rest");
    constexpr bool tells = s.gives != score_kind::none;
    static_assert(tells || !l.needs_score,
                  "kvmeld: this selector ranks entries by score, but the policy's score gives none");
    static_assert(tells || !i.needs_score,
                  "kvmeld: this identifier decides by score, but the policy's score gives none");
    static_assert(tells || !m.needs_score,
                  "kvmeld: this merge function weighs by score, but the policy's score gives none");
    static_assert(
        !tells || composes::scores_to_compute_with(s, i, m),
        "kvmeld: this policy computes with scores (its merge function weighs by score, or its "
        "identifier makes spans), but its score only orders entries: use one that gives weights, as "
        "scores from attention do");
  }
}

/// Does what require_policy does, for a whole policy.
template <class Score, class Select, class Identify, class Merge>
constexpr void require_whole(policy<Score, Select, Identify, Merge> const*) {
  require_policy<Score, Select, Identify, Merge>();
}

/// Refuses a type that is no policy.
template <class Policy> constexpr void require_whole(Policy const*) {
  static_assert(
      is_policy<Policy>::value,
      "kvmeld: the policy is not a kvmeld::policy of score, selector, identifier and merge function");
}

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
