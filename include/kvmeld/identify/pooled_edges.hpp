// A round of merging over several tracks: candidates of all of them compete for the round's merges (Chelsea, KeepKV).
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/split.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/identify/admit/admit.hpp>
#include <kvmeld/identify/admit/pool.hpp>

#include <cstdint>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Identifiers whose candidates can be pooled, split_measure::edges: `edges(places)` candidates of a
/// live-slot list, of which `allowance(state, round)` may merge this round, and whose `admit` takes
/// share.quota of them where tracks compete.
template <class Identify, class = void> struct pools_edges : std::false_type {};
template <class Identify>
struct pools_edges<Identify, std::void_t<decltype(std::declval<Identify const&>().allowance(
                                 std::declval<track_state const&>(), 0u))>> : std::true_type {};

/// What a track's candidates can do this round. Limits are looked for round by round: later edges are between keys that
/// earlier rounds have merged, so that no limit found in advance would know them.
template <class Identify> struct edges_phase : split_phase {
  Identify identify;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (team.lane() != 0) return;
    track_state s = wave.state[t.item];
    share_state& h = wave.share[t.item];
    h.keys = h.least = h.most = h.fixed = 0;
    h.due = max_of(h.own, h.floor);
    if (s.active == 0) return;
    // Pinned entries and rows that are no numbers stay, and one for the others to merge into.
    h.floor = max_of(h.reserve, s.alive - s.field + (s.field != 0 ? 1u : 0u));
    h.due = max_of(h.own, h.floor);
    s.limit = h.floor;
    std::uint32_t const round =
        wave.ledger.sequence_state(t.where.sequence, sequence_word::rounds) + s.rounds;
    h.keys = identify.edges(s.places);
    h.most = min_of(h.keys, s.excess());
    h.fixed = min_of(identify.allowance(s, round), s.excess());
  }
};

/// The round's merges: what the tracks would do in it each, as long as that much has to go.
struct edge_quota_phase : split_phase {
  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t)) return;
    std::uint32_t const due = sum(team, t.item, [&](std::uint32_t item) { return wave.share[item].due; });
    std::uint32_t const held = sum(team, t.item, [&](std::uint32_t item) { return wave.state[item].length; });
    std::uint32_t const alive = sum(team, t.item, [&](std::uint32_t item) { return wave.state[item].alive; });
    std::uint32_t const most = sum(team, t.item, [&](std::uint32_t item) { return wave.share[item].fixed; });
    if (team.lane() != 0) return;
    share_state& leader = wave.share[t.item];
    leader.total = min_of(due, held);
    ask_pool(leader, min_of(most, alive > leader.total ? alive - leader.total : 0));
  }
};

/// After admission: rounds count for all tracks, and go on while any of them merged and there is more to do.
struct advance_split_phase : split_phase {
  bool repeats;  ///< of the identifier

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (!leads(t)) return;
    std::uint32_t const alive = sum(team, t.item, [&](std::uint32_t item) { return wave.state[item].alive; });
    std::uint32_t const merged =
        sum(team, t.item, [&](std::uint32_t item) { return wave.share[item].quota; });
    std::uint32_t rounds = 0;
    team.for_each(wave.split,
                  [&](std::uint32_t m) { rounds = max_of(rounds, wave.state[t.item + m].rounds); });
    rounds = team.reduce(rounds, op_max{});
    bool const goes_on = repeats && merged != 0 && alive > wave.share[t.item].total;
    team.for_each(wave.split, [&](std::uint32_t m) {
      track_state& s = wave.state[t.item + m];
      s.rounds = rounds;
      s.active = goes_on && s.alive > wave.share[t.item + m].floor ? 1 : 0;
    });
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
