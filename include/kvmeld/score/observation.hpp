// SPDX-License-Identifier: Apache-2.0
// What a policy has to be shown of attention, and when.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/score/score.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// What a score asks for. The last `rows` queries count; 0: all queries count. For a prompt it is enough to
/// observe the query sample `last_queries(rows)`.
struct observation_need {
  observation when = observation::none;  ///< when to show it
  std::uint32_t rows = 0;                ///< how many of the last queries count; 0: all
  /// Whether it needs the queries themselves, so that only `observe` can show it what it needs: not rows or
  /// logits of the engine's attention.
  bool queries = false;

  /// Whether it asks for anything.
  explicit operator bool() const { return when != observation::none; }
};

/// A score states when it observes (score_facts::observes), and says by `observed_rows()` how many rows
/// count. A score that knows it at run time says both by `need()`. A score with neither channels nor a table
/// observes nothing.
namespace score_uses {
template <class S>
using observed_rows = decltype(static_cast<std::uint32_t>(contract::some<S>().observed_rows()));
template <class S> using need = decltype(static_cast<observation_need>(contract::some<S>().need()));
}  // namespace score_uses

namespace detail {

/// When a score, or the policy that it is part of, observes, by its type. Parts chosen at run time observe at
/// most this often.
template <class Score> constexpr observation observation_of_score() {
  return has_channels<Score> || has_table<Score> ? stated_facts<score_facts, Score>.observes
                                                 : observation::none;
}

}  // namespace detail
/// When a policy wants to be shown attention, by its type.
template <class Policy>
constexpr observation observation_of = detail::observation_of_score<typename Policy::score_type>();

namespace detail {

/// Whether a score needs queries, and not only attention.
template <class Score> bool needs_queries(Score const& score) {
  return has_table<Score> || fold_of(score).chunk != 0;
}

/// When this score wants to be shown attention, and how much of it.
template <class Score> observation_need need_of_score(Score const& score) {
  observation_need need{observation_of_score<Score>()};
  if constexpr (contract::allows<score_uses::need, Score>) {
    need = score.need();
  } else if constexpr (contract::allows<score_uses::observed_rows, Score>) {
    need.rows = score.observed_rows();
  }
  // A score chosen at run time has the members of all alternatives, and tells by its `need`.
  if constexpr (!has_facts_now<Score>) need.queries = need && needs_queries(score);
  return need;
}

}  // namespace detail
/// When this policy wants to be shown attention, and how much of it.
template <class Policy> observation_need need_of(Policy const& policy) {
  return detail::need_of_score(policy.score);
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
