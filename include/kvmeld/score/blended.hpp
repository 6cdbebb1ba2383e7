// SPDX-License-Identifier: Apache-2.0
// Two scores in one: both standardised, then added (Compactor).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/score/kept_facts.hpp>
#include <kvmeld/score/score.hpp>
#include <kvmeld/score/score_view.hpp>
#include <kvmeld/score/standard.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// What two scores state together: an order, computed from what either is computed from.
constexpr score_facts blended_facts(score_facts first, score_facts second) {
  score_facts both = second;
  both.gives = score_kind::order;
  both.reads_rows = first.reads_rows || second.reads_rows;
  both.spans_blocks = first.may_span() && second.may_span();
  both.rows_alone = both.light = false;
  return both;
}

}  // namespace detail

namespace score {

/// The sum of two scores after each was moved and scaled to mean 0 and standard deviation 1 over the entries
/// of the track (as Compactor adds leverage and attention, Chari and Van Durme, 2025). `first` counts
/// `weight` times. `Second` may observe attention, `First` must not. A score whose standard deviation is at
/// most 1e-5 of its mean, as rounding makes it, adds nothing. A score that is not finite does not count in
/// means; its entry ranks lowest. `Second` may be a blended score itself, `First` must not be one.
template <class First, class Second> struct blended : Second {
  static_assert(!detail::has_channels<First> && !detail::has_table<First>,
                "kvmeld: the first of two blended scores needs attention");

  First first;          ///< needs no attention
  float weight = 1.0f;  ///< of `first`; at least 0
  /// Whether `weight` also counts times the share of the entries that has to go, 1 - limit / length: the more
  /// goes, the more the first score decides (kvpress takes Compactor's weight so).
  bool by_removal = false;

  static constexpr score_facts facts =
      detail::blended_facts(stated_facts<score_facts, First>, stated_facts<score_facts, Second>);

  blended() = default;
  /// `times` parts of the first score, one part of the second.
  blended(First const& by, Second const& and_by, float times = 1.0f, bool times_removed = false)
      : Second(and_by), first(by), weight(times), by_removal(times_removed) {}

  std::string name() const { return full_name_of(first) + "+" + full_name_of(second()); }
  /// The second score, whose weight is 1.
  Second const& second() const { return *this; }

  std::size_t scratch_bytes(shape const& s, int lanes) const {
    return detail::scratch_of_score(first, s, lanes) + detail::scratch_of_score(second(), s, lanes) +
           team_sum_scratch();
  }

  template <class Team, class Rows>
  KVMELD_HD void evaluate(Team const& team, score_view const& view, Rows const& rows, float* out) const {
    detail::evaluate_score(static_cast<Second const&>(*this), team, view, rows, out);
    detail::evaluate_score(first, team, view, rows, view.room());
    float* const partial = team.template scratch<float>(team_partials);
    standard const a = standard_of(team, view, view.room(), partial);
    standard const b = standard_of(team, view, out, partial);
    float const stays = static_cast<float>(min_of(view.limit(), view.length()));
    float const times = by_removal ? weight * (1.0f - stays / static_cast<float>(view.length())) : weight;
    team.for_each(view.length(),
                  [&](std::uint32_t i) { out[i] = times * a.at(view.room()[i]) + b.at(out[i]); });
    team.sync();
  }
  template <class Team> KVMELD_HD void evaluate(Team const& team, score_view const& view, float* out) const {
    evaluate(team, view, 0, out);
  }
  void importance() const = delete;
  void evaluate_members() const = delete;

  void tell_kept(kept_facts& to) const {
    detail::tell_kept_of(first, to);
    detail::tell_kept_of(second(), to);
  }
  std::string problem() const {
    if (!(weight >= 0.0f) || !is_finite(weight)) {
      return refusal("policy", "score::blended.weight", weight, "at least 0 and finite");
    }
    return first_problem({problem_of(first), problem_of(second())});
  }
  std::string problem_for(shape const& extent) const {
    return first_problem({detail::table_problem(first, extent), detail::table_problem(second(), extent)});
  }
};

}  // namespace score
}  // namespace KVMELD_ABI
}  // namespace kvmeld
