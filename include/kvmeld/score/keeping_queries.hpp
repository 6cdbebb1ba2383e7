// SPDX-License-Identifier: Apache-2.0
// A score that also keeps reference queries, for merge::fitted.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/score/kept_facts.hpp>
#include <kvmeld/score/observation.hpp>
#include <kvmeld/score/reference_queries.hpp>
#include <kvmeld/score/score.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Which queries are kept beside a score: those of its second reading, or of every step.
template <class Score>
constexpr observation queries_kept_of = observation_of_score<Score>() == observation::replay
                                            ? observation::replay
                                            : observation::every_step;

}  // namespace detail

namespace score {

/// Scores as `Score` does, and keeps reference queries beside it. `Score` may observe attention, or nothing;
/// it must not keep a table itself. Show it queries with `observe`; if `Score` needs no attention, their
/// log-sum-exps may be empty. Every query may be kept, so all of a prompt's should be shown. If `Score` wants
/// a second reading of the prompt, the queries of that reading are kept; `When` may say otherwise.
///
/// Table: count (d + 1) floats per query head, for d key channels. Cost: a copy of the queries that are kept.
template <class Score, observation When = detail::queries_kept_of<Score>> struct keeping_queries : Score {
  static_assert(!detail::has_table<Score>,
                "kvmeld: the score whose queries are to be kept keeps a table itself");

  reference_queries kept;  ///< how many, and which

  static constexpr score_facts facts = changed_facts(stated_facts<score_facts, Score>, &score_facts::observes,
                                                     When, &score_facts::keeps_queries, true);

  keeping_queries() = default;
  /// Scores as `by` does, and keeps the reference queries that `queries` describes.
  keeping_queries(Score const& by, reference_queries queries = {}) : Score(by), kept(queries) {}

  std::string name() const { return full_name_of(of()) + "+queries"; }
  /// The score alone.
  Score const& of() const { return *this; }

  /// All queries count.
  std::uint32_t observed_rows() const { return 0; }
  reference_queries references() const { return kept; }
  std::size_t table_floats(shape const& s) const { return kept.floats(s); }
  template <class Team, class Queries>
  KVMELD_HD void absorb(Team const& team, float* table, std::uint32_t head, Queries const& queries) const {
    kept.absorb(team, table, head, queries);
  }
  std::size_t scratch_bytes(shape const& s, int lanes) const {
    return detail::scratch_of_score(of(), s, lanes);
  }
  void tell_kept(kept_facts& to) const {
    detail::tell_kept_of(of(), to);
    to.add("queries", kept.count);
    to.add("which", kept.sample == reference_sample::last ? "last" : "spread");
  }
  std::string problem() const {
    return first_problem({kept.problem("score::keeping_queries.kept"), problem_of(of())});
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
