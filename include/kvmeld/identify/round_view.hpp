// SPDX-License-Identifier: Apache-2.0
// What the author of an identifier sees of a round: one track's live entries, and what may be done to them.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/identify/listed_places.hpp>
#include <kvmeld/identify/rows.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

/// Stands for the rows in a round whose identifier reads none.
struct no_rows {};

}  // namespace detail

/// One track in one round. Its live entries are those that the round may still merge, in the order of their
/// tokens: entry 0 is the oldest, entry live() - 1 the newest. Entries that a selector pinned and rows with
/// NaN or infinity are not among them.
///
/// Every lane of a team has its own view of the same track. Use for_each to divide the work among the lanes.
/// One lane calls merge, drop or propose for an entry, at most once. The library counts what was merged or
/// dropped. `Rows` are the keys, or kv{keys, values}, of identifiers that read rows in `admit`.
template <class Team, class Rows = detail::no_rows> class round_view {
public:
  /// A view of track `item` of a wave. `team` and `wave` have to outlive it. The library makes views.
  KVMELD_HD round_view(Team const& team, wave_ref const& wave, std::uint32_t item, std::uint32_t round,
                       Rows const& rows = {})
      : team_(team), wave_(wave), rows_(rows), item_(item), round_(round) {}
  round_view(round_view const&) = delete;
  round_view& operator=(round_view const&) = delete;

  /// Number of live entries; 0 if the identifier states that it does not `reads_live`.
  KVMELD_HD std::uint32_t live() const { return state().live_count; }
  /// Number of entries that still have to go for the track to meet its budget.
  KVMELD_HD std::uint32_t excess() const { return state().excess(); }
  /// Number of rounds that the sequence had before this one, those of earlier calls included.
  KVMELD_HD std::uint32_t round() const { return round_; }
  /// Which track this is.
  KVMELD_HD track where() const { return wave_.where(item_); }

  /// Score of live entry `i`, if the policy has a score.
  KVMELD_HD float score(std::uint32_t i) const { return wave_.score[wave_.at(item_, slot(i))]; }
  /// Token position of live entry `i`.
  KVMELD_HD position_t position(std::uint32_t i) const { return wave_.ledger.position[in_ledger(i)]; }
  /// Number of tokens that live entry `i` stands for.
  KVMELD_HD float degree(std::uint32_t i) const { return wave_.ledger.degree[in_ledger(i)]; }
  /// The slot of live entry `i`: where its rows lie.
  KVMELD_HD slot_t slot(std::uint32_t i) const { return wave_.live[wave_.at(item_, i)]; }
  /// Whether no mergeable row with NaN or infinity lies between the live entries `i` and `i + 1`.
  KVMELD_HD bool adjacent(std::uint32_t i) const {
    std::uint32_t const* const place = wave_.place + wave_.at(item_, i);
    return place[1] == place[0] + 1;
  }

  /// Cosine of the keys of the live entries `i` and `j`. The identifier states `needs_keys` and has no
  /// `propose`. Costs one pass over both rows by the calling lane, in any layout. Heads that share a plan are
  /// compared over all their channels. Not a number if squares overflow.
  KVMELD_HD float similarity(std::uint32_t i, std::uint32_t j) const {
    static_assert(reads_rows, "kvmeld: similarity reads keys: state `needs_keys`, and have no `propose`");
    return row_cosine(keys_in(rows_), where(), slot(i), slot(j));
  }
  /// Cosine of the values of the live entries `i` and `j`, as `similarity` has it for keys. The identifier
  /// also states `needs_values`.
  KVMELD_HD float value_similarity(std::uint32_t i, std::uint32_t j) const {
    static_assert(reads_rows, "kvmeld: value_similarity reads values: state `needs_values`");
    return row_cosine(rows_.values, where(), slot(i), slot(j));
  }

  /// Live entry `i` becomes part of live entry `into`, which stays. The merge function weighs them.
  KVMELD_HD void merge(std::uint32_t i, std::uint32_t into) { merge_slot(slot(i), slot(into)); }
  /// Merges like merge(i, into), and stores the similarity of the two. The identifier states
  /// `gives_similarity`.
  KVMELD_HD void merge(std::uint32_t i, std::uint32_t into, float similarity) {
    merge_slot(slot(i), slot(into));
    wave_.similarity(item_, slot(i)) = similarity;
  }
  /// Live entry `i` is evicted.
  KVMELD_HD void drop(std::uint32_t i) { drop_slot(slot(i)); }

  /// Proposes to merge live entry `i` into live entry `into`. See merge_best.
  KVMELD_HD void propose(std::uint32_t i, std::uint32_t into, float similarity) {
    candidates()[i] = {order_key(similarity), slot(i), slot(into)};
  }
  /// Merges the `most` proposals with the highest similarity. If similarities are equal, the older entry
  /// merges first. No entry may be proposed both as `i` and as `into`. Collective; barrier at the beginning
  /// and at the end.
  KVMELD_HD void merge_best(std::uint32_t most) {
    team_.sync();
    merge_best_of(live(), most, 1);
  }

  /// What `carry` stored in the last compression of the track that was applied; 0: nothing yet. It belongs to
  /// the sequence: it is saved, forked and resumed with it.
  KVMELD_HD std::uint32_t carried() const { return ledger().word(where(), track_word::carried); }
  /// Stores a word, not 0, for the next compression of the track. One lane calls this, at most once a round.
  KVMELD_HD void carry(std::uint32_t word) const { ledger().word(where(), track_word::next_carried) = word; }

  /// f(i) for 0 <= i < n, shared out over the lanes of the team. No barrier at the end.
  template <class F> KVMELD_HD void for_each(std::uint32_t n, F const& f) const { team_.for_each(n, f); }
  /// The team, for barriers and reductions.
  KVMELD_HD Team const& team() const { return team_; }

  /// @name For parts that look beyond the live entries
  /// Slots are those of the track: 0 <= slot < state().length.
  /// @{

  /// Lengths and counts of the track.
  KVMELD_HD track_state const& state() const { return wave_.state[item_]; }
  /// The ledger of the cache.
  KVMELD_HD ledger_ref const& ledger() const { return wave_.ledger; }
  /// The role that the selector gave.
  KVMELD_HD role role_of(slot_t s) const { return wave_.roles[wave_.at(item_, s)]; }
  /// Score of an entry, if the policy has a score.
  KVMELD_HD float score_of(slot_t s) const { return wave_.score[wave_.at(item_, s)]; }
  /// Whether the entry is mergeable and earlier rounds have left it alone. Its row may hold NaN or infinity.
  KVMELD_HD bool is_mergeable(slot_t s) const {
    return role_of(s) == role::mergeable && wave_.plan.fates[wave_.plan.at(item_, s)] == fate::keep;
  }
  /// [live(), or as many as `propose` wrote] the candidates.
  KVMELD_HD candidate* candidates() const { return wave_.candidates + wave_.at(item_, 0); }

  /// The entry in slot `s` becomes part of the entry in slot `into`.
  KVMELD_HD void merge_slot(slot_t s, slot_t into) {
    std::size_t const e = wave_.step.at(item_, s);
    wave_.step.fates[e] = fate::merge;
    wave_.step.target[e] = into;
    ++removed_;
  }
  /// The entry in slot `s` is evicted.
  KVMELD_HD void drop_slot(slot_t s) {
    wave_.step.fates[wave_.step.at(item_, s)] = fate::drop;
    ++removed_;
  }
  /// The share `share` of the entry in slot `s` goes to the `count` entries from slot `first` on.
  KVMELD_HD void spread_slot(slot_t s, slot_t first, std::uint32_t count, float share) {
    std::size_t const e = wave_.step.at(item_, s);
    wave_.step.fates[e] = fate::spread;
    wave_.step.target[e] = first;
    wave_.step.span[e] = count;
    wave_.step.value_weight[e] = share;
    ++removed_;
  }
  /// Evicts every mergeable entry that has no other fate yet, rows with NaN or infinity included.
  /// Collective; no barrier.
  KVMELD_HD void drop_rest() {
    role const* const roles = wave_.roles + wave_.at(item_, 0);
    fate* const fates = wave_.step.fates + wave_.step.at(item_, 0);
    std::uint32_t dropped = 0;
    auto const drop_where = [&](auto lives) {  // without a branch, so that compilers use vectors
      for_each(state().length, [=, &dropped](slot_t s) {
        bool const drops = (roles[s] == role::mergeable) & (fates[s] == fate::keep) & lives(s);
        fates[s] = drops ? fate::drop : fates[s];
        dropped += drops ? 1u : 0u;
      });
    };
    if (wave_.plans_directly()) {
      drop_where([](slot_t) { return true; });
    } else {
      fate const* const so_far = wave_.plan.fates + wave_.plan.at(item_, 0);
      drop_where([so_far](slot_t s) { return so_far[s] == fate::keep; });
    }
    removed_ += dropped;
  }
  /// Merges the `most` best of the first `count` candidates (higher key, then lower index) whose key is at
  /// least `min_key`. The similarity of a source is that of its candidate. No two candidates may have the
  /// same source. Collective; barrier at the end.
  KVMELD_HD void merge_best_of(std::uint32_t count, std::uint32_t most, std::uint32_t min_key) {
    candidate const* const list = candidates();
    select_k(
        team_, count, most, [&](std::uint32_t i) { return list[i].key >= min_key ? list[i].key : 0u; },
        [&](std::uint32_t i) {
          merge_slot(list[i].source, list[i].target);
          wave_.similarity(item_, list[i].source) = order_value(list[i].key);
        });
    team_.sync();
  }
  /// @}

  /// Adds up what all lanes have merged and dropped. The library calls this once. Collective; barrier at the
  /// end.
  KVMELD_HD void finish() {
    std::uint32_t const removed = team_.reduce(removed_, op_sum{});
    if (team_.lane() == 0) wave_.state[item_].merged += removed;
    team_.sync();
  }

private:
  static constexpr bool reads_rows = !std::is_same_v<Rows, detail::no_rows>;
  template <class Keys> KVMELD_HD static Keys const& keys_in(Keys const& rows) { return rows; }
  template <class Keys, class Values> KVMELD_HD static Keys const& keys_in(kv<Keys, Values> const& rows) {
    return rows.keys;
  }
  KVMELD_HD std::size_t in_ledger(std::uint32_t i) const { return wave_.ledger.at(where(), slot(i)); }

  Team const& team_;
  wave_ref const& wave_;
  Rows rows_;
  std::uint32_t item_, round_, removed_ = 0;
};

/// One tile of an identifier's `propose`: a part of one track, the rows of K (or of K and V) that it may
/// read, and the track's candidates. Tiles of a track run at the same time, so each writes candidates of its
/// own. The live entries are those of round_view.
template <class Team, class Rows> class proposal_tile {
public:
  /// A view of one tile. All arguments have to outlive it. The library makes views.
  KVMELD_HD proposal_tile(Team const& team, wave_ref const& wave, Rows const& rows, tile const& t)
      : team_(team), wave_(wave), rows_(rows), tile_(t) {}

  /// The team that works on the tile.
  KVMELD_HD Team const& team() const { return team_; }
  /// Rows of the keys, or kv{keys, values} if the identifier needs values. load_tile reads them as floats.
  KVMELD_HD Rows const& rows() const { return rows_; }
  /// The wave that the tile belongs to.
  KVMELD_HD wave_ref const& wave() const { return wave_; }
  /// The tile itself: its track, and its number in the track.
  KVMELD_HD tile const& here() const { return tile_; }
  /// The same tile with other rows.
  template <class Other> KVMELD_HD proposal_tile<Team, Other> with_rows(Other const& rows) const {
    return {team_, wave_, rows, tile_};
  }
  /// Number of the tile in its track.
  KVMELD_HD std::uint32_t index() const { return tile_.index; }
  /// Which track this is.
  KVMELD_HD track where() const { return tile_.where; }
  /// The ledger of the cache.
  KVMELD_HD ledger_ref const& ledger() const { return wave_.ledger; }
  /// Lengths and counts of the track.
  KVMELD_HD track_state const& state() const { return wave_.state[tile_.item]; }

  /// [state().live_count] slots of the live entries, ascending.
  KVMELD_HD slot_t const* live() const { return wave_.live + wave_.at(tile_.item, 0); }
  /// The live entries by index and by place: rows with NaN or infinity keep their places.
  KVMELD_HD listed_places places() const { return listed_places(wave_, tile_.item); }
  /// [state().centers] slots of the finite centres, ascending, if the identifier needs centres; else room for
  /// a slot per entry until the step is linked.
  KVMELD_HD slot_t* centers() const { return wave_.centers(tile_.item); }
  /// Room for a word per entry until the step is linked.
  KVMELD_HD std::uint32_t* spare_words() const { return wave_.spare_words(tile_.item); }
  /// [capacity] the candidates of the track.
  KVMELD_HD candidate* candidates() const { return wave_.candidates + wave_.at(tile_.item, 0); }

private:
  Team const& team_;
  wave_ref const& wave_;
  Rows const& rows_;
  tile const& tile_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
