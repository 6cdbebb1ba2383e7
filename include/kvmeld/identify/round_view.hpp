// What the author of an identifier sees of a round: one track's live entries, and what may be done to them.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// One track in one round. Its live entries are those that the round may still merge, in the order of their
/// tokens: entry 0 is the oldest, entry live() - 1 the newest. Entries that a selector pinned and rows with
/// NaN or infinity are not among them.
///
/// Every lane of a team has its own view of the same track. Use for_each to divide the work among the lanes.
/// One lane calls merge or drop for an entry, at most once. The library counts what was merged or dropped.
template <class Team> class round_view {
public:
  /// A view of track `item` of a wave. `team` and `wave` have to outlive it. The library makes views.
  KVMELD_HD round_view(Team const& team, wave_ref const& wave, std::uint32_t item, std::uint32_t round)
      : team_(team), wave_(wave), item_(item), round_(round) {}
  round_view(round_view const&) = delete;
  round_view& operator=(round_view const&) = delete;

  /// Number of live entries.
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

  /// Live entry `i` becomes part of live entry `into`, which stays. The merge function weighs them.
  KVMELD_HD void merge(std::uint32_t i, std::uint32_t into) {
    std::size_t const e = wave_.step.at(item_, slot(i));
    wave_.step.fates[e] = fate::merge;
    wave_.step.target[e] = slot(into);
    ++removed_;
  }
  /// Live entry `i` is evicted.
  KVMELD_HD void drop(std::uint32_t i) {
    wave_.step.fates[wave_.step.at(item_, slot(i))] = fate::drop;
    ++removed_;
  }

  /// f(i) for 0 <= i < n, shared out over the lanes of the team. No barrier at the end.
  template <class F> KVMELD_HD void for_each(std::uint32_t n, F const& f) const { team_.for_each(n, f); }
  /// The team, for barriers and reductions.
  KVMELD_HD Team const& team() const { return team_; }

  /// Adds up what all lanes have merged and dropped. The library calls this once. Cooperative; barrier at the
  /// end.
  KVMELD_HD void finish() {
    std::uint32_t const removed = team_.reduce(removed_, op_sum{});
    if (team_.lane() == 0) wave_.state[item_].merged += removed;
    team_.sync();
  }

private:
  KVMELD_HD track_state const& state() const { return wave_.state[item_]; }
  KVMELD_HD std::size_t in_ledger(std::uint32_t i) const { return wave_.ledger.at(where(), slot(i)); }

  Team const& team_;
  wave_ref const& wave_;
  std::uint32_t item_, round_, removed_ = 0;
};

namespace identify {

/// Declarations for an identifier to derive from: it makes sets from the ledger alone, in one round.
struct defaults {
  static constexpr bool repeats = false;  ///< further rounds may follow
  static constexpr bool meets_budget =
      false;  ///< the length is exactly the budget whenever enough is mergeable
  static constexpr bool needs_score = false;  ///< reads the scores of entries
  static constexpr bool makes_sets = true;    ///< merges, and does not only drop
  static constexpr bool needs_keys = false;   ///< `propose` reads rows

  /// Tiles of `propose`. There are none, because it proposes nothing.
  std::uint32_t tiles(shape const&) const { return 0; }
  std::size_t scratch_bytes(shape const&, int) const { return 0; }
  template <class Team, class Rows>
  KVMELD_HD void propose(Team const&, wave_ref const&, Rows const&, tile const&) const {}
};

}  // namespace identify
}  // namespace KVMELD_ABI
}  // namespace kvmeld
