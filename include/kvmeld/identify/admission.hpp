// Admission: which of the proposed candidates merge. It is a separate part, so that a budget can replace a
// threshold while candidates are found as before.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

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
/// opened. `static constexpr bool repeats` says whether further rounds may follow in one compression.
/// `static constexpr bool meets_budget` says whether all rounds together allow as many merges as the budget
/// needs. A rule that looks at the candidates themselves answers `admission allow_from(team, wave, item,
/// candidates, round)` instead; all lanes of the team call it together.
template <class Admit, class = void> struct looks_at_candidates : std::false_type {};
template <class Admit>
struct looks_at_candidates<
    Admit, std::void_t<decltype(std::declval<Admit const&>().allow_from(
               std::declval<serial_team const&>(), std::declval<wave_ref const&>(), 0u, 0u, 0u))>>
    : std::true_type {};

/// What the library uses of an admission rule.
namespace admit_uses {
template <class A> using repeats = contract::flag<(A::repeats ? true : false)>;
template <class A> using meets_budget = contract::flag<(A::meets_budget ? true : false)>;
template <class A>
using counts = std::enable_if_t<A::repeats || A::meets_budget || !looks_at_candidates<A>::value>;
template <class A>
using allow = decltype(static_cast<admission>(std::declval<A const&>().allow(track_state{}, 0u, 0u)));
}  // namespace admit_uses

namespace detail {

/// Number of the first requirement that an admission rule fails, as require_admission counts; -1: none.
template <class A>
constexpr int missing_in_admission = contract::first_missing<
    std::is_trivially_copyable_v<A>, contract::allows<admit_uses::repeats, A>,
    contract::allows<admit_uses::meets_budget, A>,
    !contract::allows<admit_uses::counts, A> || contract::allows<admit_uses::allow, A>>();

/// Refuses a type that is no admission rule and says what it lacks. The compiler's note names the type.
template <class Admit> constexpr void require_admission() {
  constexpr int missing = missing_in_admission<Admit>;
  static_assert(missing != 0, "kvmeld: the admission is not trivially copyable");
  static_assert(missing != 1, "kvmeld: the admission has no `static constexpr bool repeats`");
  static_assert(missing != 2, "kvmeld: the admission has no `static constexpr bool meets_budget`");
  static_assert(
      missing != 3,
      "kvmeld: the admission has no `admission allow(state, middle, round)`; `allow_from` alone serves "
      "where it neither repeats nor meets budgets");
}

/// Whether an identifier with this admission repeats. If the admission does not declare it, the answer is
/// false, and require_admission reports the missing declaration.
template <class Admit> constexpr bool repeats_by() {
  if constexpr (contract::allows<admit_uses::repeats, Admit>) {
    return Admit::repeats;
  } else {
    return false;
  }
}

/// Whether an identifier with this admission meets its budget; see repeats_by.
template <class Admit> constexpr bool meets_budget_by() {
  if constexpr (contract::allows<admit_uses::meets_budget, Admit>) {
    return Admit::meets_budget;
  } else {
    return false;
  }
}

}  // namespace detail

/// Scratch that `allow_from` may take from its team.
KVMELD_HD constexpr std::size_t admission_scratch() { return team_sum_scratch(); }

/// What the rule allows a track, whose `candidates` candidates lie in wave.candidates. Cooperative.
template <class Team, class Admit>
KVMELD_HD admission allowed_by(Team const& team, Admit const& admit, wave_ref const& wave, std::uint32_t item,
                               [[maybe_unused]] std::uint32_t candidates, std::uint32_t round) {
  if constexpr (looks_at_candidates<Admit>::value) {
    return admit.allow_from(team, wave, item, candidates, round);
  } else {
    track_state const s = wave.state[item];
    team.sync();
    return admit.allow(s, s.places, round);
  }
}

/// Admits the best candidates of a track (higher key, then lower index) and writes them into the step. The
/// key weight of a source is its similarity until a merge function weighs it. No two candidates may have the
/// same source. Cooperative; barrier at the end.
template <class Team>
KVMELD_HD void admit_best(Team const& team, wave_ref const& wave, std::uint32_t item,
                          std::uint32_t candidates, admission allowed) {
  candidate const* const list = wave.candidates + wave.at(item, 0);
  std::uint32_t const merged = select_k(
      team, candidates, allowed.quota,
      [&](std::uint32_t i) { return list[i].key >= allowed.min_key ? list[i].key : 0u; },
      [&](std::uint32_t i) {
        std::size_t const e = wave.step.at(item, list[i].source);
        wave.step.fates[e] = fate::merge;
        wave.step.target[e] = list[i].target;
        wave.similarity(item, list[i].source) = order_value(list[i].key);
      });
  if (team.lane() == 0) wave.state[item].merged += merged;
  team.sync();
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
