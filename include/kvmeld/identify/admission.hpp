// SPDX-License-Identifier: Apache-2.0
// Admission: which of the proposed candidates merge. It is a separate part, so that a budget can replace a
// threshold while candidates are found as before.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/identify/round_view.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// What an admission allows in one round: at most `quota` candidates, each with an order key of at least
/// `min_key`.
struct admission {
  std::uint32_t quota;    ///< most candidates that merge
  std::uint32_t min_key;  ///< order key that a candidate needs at least
};

/// An admission rule answers `admission allow(state, middle, round)`. `middle` is the size of the live-slot
/// list, with the places of rows with NaN or infinity. `round` counts rounds of this sequence since it was
/// opened. What it promises it states in its `facts` (admit_facts). A rule that looks at the candidates
/// themselves answers `admission allow_from(round, candidates)` instead, with a round_view and their number;
/// all lanes of the team call it together.
template <class Admit, class = void> struct looks_at_candidates : std::false_type {};
template <class Admit>
struct looks_at_candidates<Admit, std::void_t<decltype(contract::some<Admit>().allow_from(
                                      contract::some<round_view<serial_team>>(), 0u))>> : std::true_type {};

/// What the library uses of an admission rule.
namespace admit_uses {
template <class A>
using counts = std::enable_if_t<stated_facts<admit_facts, A>.repeats ||
                                stated_facts<admit_facts, A>.meets_budget || !looks_at_candidates<A>::value>;
template <class A>
using allow = decltype(static_cast<admission>(contract::some<A>().allow(track_state{}, 0u, 0u)));
}  // namespace admit_uses

namespace detail {

/// Number of the first requirement that an admission rule fails, as require_admission counts; -1: none.
template <class A>
constexpr int missing_in_admission = contract::first_missing<
    std::is_trivially_copyable_v<A>, has_form_of_facts<admit_facts, A>(),
    !contract::allows<admit_uses::counts, A> || contract::allows<admit_uses::allow, A>>();

/// Refuses a type that is no admission rule and says what it lacks. The compiler's note names the type.
template <class Admit> constexpr void require_admission() {
  constexpr int missing = missing_in_admission<Admit>;
  static_assert(missing != 0, "kvmeld: the admission is not trivially copyable");
  static_assert(missing != 1, "kvmeld: the admission states no `static constexpr admit_facts facts`");
  static_assert(
      missing != 2,
      "kvmeld: the admission has no `admission allow(state, middle, round)`; `allow_from` alone serves "
      "where it neither repeats nor meets budgets");
}

}  // namespace detail

/// Scratch that `allow_from` may take from its team.
KVMELD_HD constexpr std::size_t admission_scratch() { return team_sum_scratch(); }

/// What the rule allows a track with so many candidates. Collective.
template <class Round, class Admit>
KVMELD_HD admission allowed_by(Round const& round, Admit const& admit,
                               [[maybe_unused]] std::uint32_t candidates) {
  if constexpr (looks_at_candidates<Admit>::value) {
    return admit.allow_from(round, candidates);
  } else {
    return admit.allow(round.state(), round.state().places, round.round());
  }
}

/// Merges the candidates that a rule admits, the best first: see round_view::merge_best_of. Collective;
/// barrier at the end.
template <class Round, class Admit>
KVMELD_HD void admit_best(Round& round, Admit const& admit, std::uint32_t candidates) {
  admission const allowed = allowed_by(round, admit, candidates);
  round.merge_best_of(candidates, allowed.quota, allowed.min_key);
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
