// SPDX-License-Identifier: Apache-2.0
// Checks of a whole policy, at compile time and of its configuration. A refusal names the part and what the
// part lacks.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/identify/admission.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/identify/no_sets.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/strided.hpp>
#include <kvmeld/merge/drop.hpp>
#include <kvmeld/merge/merge_function.hpp>
#include <kvmeld/policy/rules.hpp>
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
  if constexpr (contract::allows<part_uses::admission, Identify>) {
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
    refuse_broken<broken_rule(stated_policy_facts<Score, Select, Identify, Merge>)>();
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
