// SPDX-License-Identifier: Apache-2.0
// What an identifier is, and the phases of one round: open the step, propose, admit.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/compact_indices.hpp>
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/identify/admission.hpp>
#include <kvmeld/identify/round_view.hpp>
#include <kvmeld/layout/joined.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/strided.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// An identifier decides which of a track's live entries merge.
/// `admit(round)` merges and drops live entries of a round_view; all lanes of a team call it together. An
/// identifier that states `needs_keys` either compares rows in `admit` (round_view::similarity), or looks
/// for candidates before, in many tiles at the same time. Then it also has:
/// - `tiles(shape)`, `scratch_bytes(shape, lanes)`: tiles per track of `propose`, and scratch of a tile
/// - `propose(tile)`: reads rows through a proposal_tile and writes candidates, which `admit` finds
///
/// `std::string problem_for(shape)`, optional: returns why the identifier does not work for caches of this
/// shape; empty if it does.
///
/// Everything else it states in its `facts` (identify_facts).
///
/// `std::uint32_t max_rounds(length, limit)`, optional, if it `repeats`: the most rounds that `compress`
/// takes for a track of `length` entries and the budget `limit`. The default is one round for each entry that
/// has to go. `likely_rounds(length, limit, outside)`, optional: a number of rounds that is enough for almost
/// every track in which `outside` entries are pinned or frozen. The default is max_rounds.
namespace identify_uses {
template <class I> using tiles = decltype(static_cast<std::uint32_t>(contract::some<I>().tiles(shape{})));
template <class I>
using scratch_bytes = decltype(static_cast<std::size_t>(contract::some<I>().scratch_bytes(shape{}, 1)));
/// Rows of any layout, as `propose` gets them.
using some_rows = detail::joined_rows<strided<float>>;
template <class I>
using rows =
    std::conditional_t<stated_facts<identify_facts, I>.needs_values, kv<some_rows, some_rows>, some_rows>;
template <class I>
using propose = decltype(contract::some<I>().propose(contract::some<proposal_tile<serial_team, rows<I>>>()));
template <class I>
using admit = decltype(contract::some<I>().admit(std::declval<round_view<serial_team>&>()));
template <class I>
using problem_for =
    decltype(static_cast<std::string>(contract::some<I>().problem_for(contract::some<shape>())));
template <class I> using edges = decltype(static_cast<std::uint32_t>(contract::some<I>().edges(0u)));
template <class I>
using max_rounds = decltype(static_cast<std::uint32_t>(contract::some<I>().max_rounds(0u, 0u)));
template <class I>
using likely_rounds = decltype(static_cast<std::uint32_t>(contract::some<I>().likely_rounds(0u, 0u, 0u)));
}  // namespace identify_uses

namespace detail {

/// Why an identifier does not work for caches of this shape; empty if it does.
template <class I> std::string shape_problem(I const& identify, shape const& extent) {
  return contract::ask<identify_uses::problem_for>(
      identify, [&](auto const& i) { return i.problem_for(extent); }, std::string());
}

/// Whether an identifier looks for candidates in tiles before `admit`.
template <class I>
constexpr bool proposes =
    stated_facts<identify_facts, I>.needs_keys&& contract::allows<identify_uses::tiles, I>;
/// Whether it lists one candidate per possible source, `edges(places)` of them.
template <class I> constexpr bool lists_edges = contract::allows<identify_uses::edges, I>;
/// Whether an identifier reads rows in `admit`.
template <class I>
constexpr bool admits_by_rows =
    stated_facts<identify_facts, I>.needs_keys && !contract::allows<identify_uses::tiles, I>;

/// Number of the first requirement that an identifier fails, as require_identifier counts; -1: none.
template <class I>
constexpr int missing_in_identifier = contract::first_missing<
    std::is_trivially_copyable_v<I>, has_form_of_facts<identify_facts, I>(),
    !proposes<I> || contract::allows<identify_uses::scratch_bytes, I>,
    !proposes<I> || contract::allows<identify_uses::propose, I>, contract::allows<identify_uses::admit, I>>();

}  // namespace detail

/// Whether a type is an identifier.
template <class Identify>
struct is_identifier : std::bool_constant<detail::missing_in_identifier<Identify> == -1> {};

namespace detail {

/// Refuses a type that is no identifier and says what it lacks. The compiler's note names the type.
template <class Identify> constexpr void require_identifier() {
  constexpr int missing = missing_in_identifier<Identify>;
  static_assert(missing != 0, "kvmeld: the identifier is not trivially copyable");
  static_assert(missing != 1, "kvmeld: the identifier states no `static constexpr identify_facts facts`");
  static_assert(missing != 2,
                "kvmeld: the identifier has tiles, but no `std::size_t scratch_bytes(shape, lanes)`");
  static_assert(missing != 3, "kvmeld: the identifier has tiles, but no `propose(tile)`");
  static_assert(missing != 4, "kvmeld: the identifier has no `admit(round)`");
  if constexpr (missing == -1) {
    constexpr identify_facts says = stated_facts<identify_facts, Identify>;
    static_assert(says.reads_live || !(says.makes_sets || says.needs_keys),
                  "kvmeld: the identifier states that it does not `reads_live`, but merges or reads rows");
  }
}

}  // namespace detail

/// Rounds after which `compress` is done with a track: see the contract of identifiers.
template <class Identify>
std::uint32_t max_rounds(Identify const& identify, std::uint32_t length, std::uint32_t limit) {
  if (length <= limit) return 0;
  if (!facts_of<identify_facts>(identify).repeats) return 1;
  if constexpr (contract::allows<identify_uses::max_rounds, Identify>)
    return identify.max_rounds(length, limit);
  return length - limit;
}
/// Rounds that `compress` hardly ever exceeds: see the contract of identifiers.
template <class Identify>
std::uint32_t likely_rounds(Identify const& identify, std::uint32_t length, std::uint32_t limit,
                            std::uint32_t outside) {
  if constexpr (contract::allows<identify_uses::likely_rounds, Identify>) {
    if (length > limit && facts_of<identify_facts>(identify).repeats)
      return identify.likely_rounds(length, limit, outside);
  }
  return max_rounds(identify, length, limit);
}

namespace detail {

/// Opens a round: empties the step, drops irrelevant entries, and lists the slots of live entries with their
/// places.
struct round_phase : track_phase {
  bool lists_centers = false;  ///< true: lists finite centres in wave.centers
  bool lists_live = true;      ///< false: lists no live entries

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state& s = wave.state[t.item];
    std::uint32_t const n = s.length;
    bool const active = s.over_budget != 0;
    // Rounds may be enqueued before it is known whether a track needs them. Most of these rounds find the
    // track done and leave its step alone. The plan of a single round is its own step, and was just begun.
    if (s.unchanged == 0 && !wave.plans_directly()) empty_step(team, t);
    team.sync();
    if (team.lane() == 0) {
      s.merged = 0;
      if (active) {
        s.unchanged = 0;
        s.unlisted = 1;
      }
    }
    if (!active) return;
    role const* const roles = wave.roles + wave.at(t.item, 0);
    slot_t* const field = wave.live + wave.at(t.item, 0);
    std::uint32_t* const place = wave.place + wave.at(t.item, 0);
    slot_t* const mergeable = wave.spare_words(t.item);
    fate const* const fates = wave.plan.fates + wave.plan.at(t.item, 0);
    auto const lives_as = [=](role wanted) {
      return [=](std::uint32_t i) { return (fates[i] == fate::keep) & (roles[i] == wanted); };
    };
    // Irrelevant entries (the zero class of the EMS paper) drop first. Later rounds do not find them.
    std::uint32_t dropped = 0;
    for_each_chosen(team, n, lives_as(role::irrelevant), [&](std::uint32_t i) {
      wave.step.fates[wave.step.at(t.item, i)] = fate::drop;
      ++dropped;
    });
    dropped = team.reduce(dropped, op_sum{});
    std::uint32_t const places =
        lists_live ? compact_indices(team, n, lives_as(role::mergeable),
                                     [=](std::uint32_t rank, std::uint32_t i) { mergeable[rank] = i; })
                   : 0;
    std::uint32_t const numbers = compact_indices(
        team, places, [&](std::uint32_t i) { return wave.ledger.usable(t.where, mergeable[i]); },
        [=](std::uint32_t rank, std::uint32_t i) {
          field[rank] = mergeable[i];
          place[rank] = i;
        });
    std::uint32_t const centers =
        lists_centers
            ? compact_indices(
                  team, n,
                  [&](std::uint32_t i) { return roles[i] == role::center && wave.ledger.usable(t.where, i); },
                  [&](std::uint32_t rank, std::uint32_t i) { wave.centers(t.item)[rank] = i; })
            : 0;
    if (team.lane() == 0) {
      s.live_count = numbers;
      s.places = places;
      s.centers = centers;
      s.alive -= dropped;
    }
  }

private:
  /// Writes into the step that all entries stay. If the last round left lists of its sets, only their members
  /// differ in more than their fates. Collective; no barrier.
  template <class Team> KVMELD_HD void empty_step(Team const& team, tile const& t) const {
    track_state const& s = wave.state[t.item];
    plan_ref const& step = wave.step;
    if (s.unlisted != 0 || s.length == 0) return keep_entries(team, step, t.item, s.length);
    fate* const fates = step.fates + step.at(t.item, 0);
    team.for_each(s.length, [=](std::uint32_t i) { fates[i] = fate::keep; });
    slot_t const* const members = wave.set_member + wave.at(t.item, 0);
    team.for_each(wave.set_end[wave.at(t.item, s.length - 1)], [&](std::uint32_t k) {
      std::size_t const e = step.at(t.item, members[k]);
      step.target[e] = members[k];
      step.key_weight[e] = 1.0f;
      step.value_weight[e] = 1.0f;
      step.degree_weight[e] = 1.0f;
    });
  }
};

/// Scratch that `admit` takes from its team.
constexpr std::size_t admit_scratch() { return 2 * select_k_scratch() + admission_scratch(); }

/// Calls `admit` for one round of a track. Collective; barrier at the end.
template <class Identify, class Team, class Rows = no_rows>
KVMELD_HD void admit_round(Identify const& identify, Team const& team, wave_ref const& wave, tile const& t,
                           Rows const& rows = {}) {
  std::uint32_t const before =
      wave.ledger.sequence_state(t.where.sequence, sequence_word::rounds) + wave.state[t.item].rounds;
  round_view<Team, Rows> view(team, wave, t.item, before, rows);
  if constexpr (!proposes<Identify> &&
                stated_facts<identify_facts, Identify>.makes_sets) {  // else nobody calls round_view::propose
    view.for_each(view.live(), [&](std::uint32_t i) { view.candidates()[i].key = 0; });
  }
  team.sync();
  identify.admit(view);
  team.sync();
  view.finish();
}

/// Tiles per track of an identifier's `propose`; one where it has none.
template <class Identify>
std::uint32_t proposal_tiles([[maybe_unused]] Identify const& identify, [[maybe_unused]] shape const& s) {
  if constexpr (proposes<Identify>) {
    return identify.tiles(s);
  } else {
    return 1;
  }
}

/// Scratch that an identifier takes from its team for such a tile.
template <class Identify>
std::size_t proposal_scratch([[maybe_unused]] Identify const& identify, [[maybe_unused]] shape const& s,
                             [[maybe_unused]] int lanes) {
  if constexpr (proposes<Identify>) {
    return identify.scratch_bytes(s, lanes);
  } else {
    return admit_scratch();
  }
}

/// Runs `propose`, or `admit` of an identifier that reads rows there.
template <class Identify, class Team, class Rows>
KVMELD_HD void run_proposal(Identify const& identify, proposal_tile<Team, Rows> const& tile) {
  if constexpr (proposes<Identify>) {
    identify.propose(tile);
  } else {
    admit_round(identify, tile.team(), tile.wave(), tile.here(), tile.rows());
  }
}

/// Runs `propose`, or `admit` if it reads rows. `Rows` is the layout of the keys, or kv{keys, values} if the
/// identifier needs values.
template <class Identify, class Rows> struct propose_phase {
  Identify identify;
  Rows rows;
  wave_ref wave;
  std::uint32_t tiles_per_track = proposal_tiles(identify, wave.ledger.extent);

  KVMELD_HD std::uint32_t tiles(shape const&) const { return tiles_per_track; }
  std::size_t scratch_bytes(int lanes) const { return proposal_scratch(identify, wave.ledger.extent, lanes); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (wave.state[t.item].over_budget == 0) return;
    run_proposal(identify, proposal_tile<Team, Rows>(team, wave, rows, t));
  }
};

template <class Identify> struct admit_phase {
  Identify identify;
  wave_ref wave;
  bool repeats;  ///< whether the identifier repeats

  static constexpr bool light = stated_facts<identify_facts, Identify>.light;
  static constexpr bool wide = true, near_scratch = true, spans_blocks = true;
  KVMELD_HD std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return admit_scratch(); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    track_state& s = wave.state[t.item];
    if (s.over_budget == 0) return;
    if constexpr (admits_by_rows<Identify>) {
      team.sync();
    } else {
      admit_round(identify, team, wave, t);
    }
    if (team.lane() == 0) {
      s.alive -= s.merged;
      s.rounds += s.merged != 0 ? 1u : 0u;
      s.over_budget = repeats && s.alive > s.limit && s.merged != 0 ? 1u : 0u;
    }
  }
};

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
