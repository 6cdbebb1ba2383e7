// SPDX-License-Identifier: Apache-2.0
// The sets of one track for a threshold of KVMerger, from the table of reaches (reach.hpp). Each lane follows
// the sets of one segment of the track.
#pragma once

#include <kvmeld/backend/warps/reach.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/row_piece.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/identify/listed_places.hpp>
#include <kvmeld/layout/row_pieces.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

/// The sets of one track for one threshold, newest first.
template <class Layout> class reaching_sets {
public:
  KVMELD_HD reaching_sets(Layout const& layout, wave_ref const& wave, tile const& t, reach_table const& table,
                          bool break_at_gap)
      : rows_(layout, t.where),
        list_(wave, t.item),
        n_(wave.state[t.item].live_count),
        table_(table),
        break_at_gap_(break_at_gap) {}

  /// Scratch of a team for a track of n live entries.
  struct buffers {
    std::uint32_t* ends;    ///< [lanes + 1] per segment, the end of the next set for a lane that comes from
                            ///< newer entries
    std::uint32_t* counts;  ///< [reach_window + 1] how many entries have this reach
    std::uint32_t near_first;  ///< first entry of the segments of this block's lanes
    std::uint32_t near_count;  ///< entries of these segments, as far as there is room
    std::uint8_t* near;        ///< [near_count] the reach of these entries for the threshold of the call

    /// Bytes for teams whose blocks have `lanes` lanes.
    static std::size_t bytes(std::uint32_t lanes, std::uint32_t near_size) {
      return scratch_size((std::size_t{most_blocks_of_team} * lanes + 1) * sizeof(std::uint32_t)) +
             scratch_size((reach_window + 1) * sizeof(std::uint32_t)) + scratch_size(near_size);
    }
    template <class Team>
    KVMELD_HD buffers(Team const& team, std::uint32_t n, std::uint32_t near_size)
        : ends(team.template scratch<std::uint32_t>(team.lanes() + 1)),
          counts(team.template scratch<std::uint32_t>(reach_window + 1)) {
      auto const& block = team.block();
      std::uint32_t const first_lane = team.lane() - block.lane();
      near_first = segment_of(n, first_lane, team.lanes()).begin;
      std::uint32_t const end = segment_of(n, first_lane + block.lanes() - 1, team.lanes()).end;
      near_count = min_of(near_size, end - near_first);
      near = block.template scratch<std::uint8_t>(near_size);
    }
  };

  /// The reach of entries for one threshold.
  struct cut {
    reach_table table;
    std::uint32_t threshold;
    std::uint32_t bar;  ///< order_key of the threshold
    buffers const& scratch;
    KVMELD_HD std::uint32_t reach(std::uint32_t entry) const {
      std::uint32_t const i = entry - scratch.near_first;  // beyond near_count for entries of other blocks
      return i < scratch.near_count ? scratch.near[i] : table.get(entry, threshold);
    }
    /// Copies reach to the scratch, where it costs little to follow one set after the other. Collective;
    /// barrier at the end.
    template <class Team> KVMELD_HD void gather(Team const& team) const {
      team.block().for_each(scratch.near_count, [&](std::uint32_t i) {
        scratch.near[i] = static_cast<std::uint8_t>(table.get(scratch.near_first + i, threshold));
      });
      team.sync();
    }
  };

  /// Whether there are at least `wanted` sets. Collective; barrier at the end. Lanes first assume that the
  /// newest entry of their segment is the newest of a set. Chains of sets soon meet, so after a few turns
  /// every lane enters its segment where the lane of the newer segment left off (one segment a turn at
  /// worst).
  template <class Team> KVMELD_HD bool enough(Team const& team, cut const& c, std::uint32_t wanted) const {
    c.gather(team);
    if (mostly_long(team, c, wanted) && most_sets(team, c) < wanted) return false;
    std::uint32_t found = 0;
    if (!settle(team, c, found)) return walk(team, c, wanted, [](std::uint32_t, std::uint32_t) {}) >= wanted;
    return found >= wanted;
  }

  /// Calls visit(oldest, newest) for every set, on one lane per set. Returns how many sets there are.
  /// Collective; barrier at the end.
  template <class Team, class Visit>
  KVMELD_HD std::uint32_t each(Team const& team, cut const& c, Visit visit) const {
    c.gather(team);
    std::uint32_t found = 0;
    if (!settle(team, c, found)) {
      return walk(team, c, ~0u, [&](std::uint32_t oldest, std::uint32_t newest) {
        if (team.lane() == 0) visit(oldest, newest);
      });
    }
    bool more = false;  // stays false
    follow(team, c, segment(team).begin, c.scratch.ends[team.lane() + 1], more, visit);
    team.sync();
    return found;
  }

  /// The cosine of two entries, computed from their rows in the order of their pieces.
  KVMELD_HD float similarity(std::uint32_t older, std::uint32_t newer) const {
    float sums[piece::size] = {};
    slot_t const slots[2] = {list_.slot(older), list_.slot(newer)};
    for (std::uint32_t p = 0; p < rows_.count(); p += pieces_in_flight) {
      piece a[pieces_in_flight], b[pieces_in_flight];
      for (std::uint32_t i = 0; i < pieces_in_flight; ++i) {
        if (p + i >= rows_.count()) break;
        a[i] = rows_.read(slots[0], p + i);
        b[i] = rows_.read(slots[1], p + i);
      }
      for (std::uint32_t i = 0; i < pieces_in_flight; ++i) {
        if (p + i >= rows_.count()) break;
        unrolled<piece::size>([&](auto channel) {
          constexpr std::uint32_t c = decltype(channel)::value;
          sums[c] += traits::to_float(a[i].x[c]) * traits::to_float(b[i].x[c]);
        });
      }
    }
    float product = 0.0f;
    for (float s : sums) product += s;
    return cosine(product, table_.inverse_norm(older), table_.inverse_norm(newer));
  }
  /// Whether an entry and its newer neighbour are never in one set.
  KVMELD_HD bool apart(std::uint32_t entry) const { return list_.apart(entry, break_at_gap_); }

private:
  using piece = row_piece<typename Layout::element_type>;
  using traits = element_traits<typename Layout::element_type>;

  /// Whether fewer than `wanted` entries reach so little that as many sets of them fit into all entries.
  /// Otherwise most_sets is `wanted` or more. Collective.
  template <class Team>
  KVMELD_HD bool mostly_long(Team const& team, cut const& c, std::uint32_t wanted) const {
    std::uint32_t const fits = n_ / wanted;  // entries per set
    std::uint32_t little = 0;
    team.for_each(n_, [&](std::uint32_t i) { little += c.reach(i) < fits ? 1u : 0u; });
    return team.reduce(little, op_sum{}) < wanted;
  }
  /// An upper bound on the number of sets, found without reading rows. A set has at least one entry more than
  /// its newest entry reaches, up to the window. Sets are disjoint, so there are no more of them than fit
  /// into all entries if the shortest come first. Collective; barrier at the end.
  template <class Team> KVMELD_HD std::uint32_t most_sets(Team const& team, cut const& c) const {
    std::uint32_t* const counts = c.scratch.counts;
    team.for_each(reach_window + 1, [&](std::uint32_t r) { counts[r] = 0; });
    team.sync();
    team.for_each(n_, [&](std::uint32_t i) { team.fetch_add(&counts[c.reach(i)], 1); });
    team.sync();
    std::uint32_t sets = 0;
    for (std::uint32_t r = 0, left = n_; r <= reach_window; ++r) {
      std::uint32_t const fit = min_of(counts[r], left / (r + 1));
      sets += fit;
      left -= fit * (r + 1);
    }
    team.sync();
    return sets;
  }

  /// Visits the sets whose newest entry is below `end` and not below `begin`; returns where the next set
  /// ends. Where a set fills the window, all lanes of the warp look for its end, up to `farther` entries
  /// beyond the window. `more` is set where a set may be longer still. Collective in a warp.
  template <class Team, class Visit>
  KVMELD_HD std::uint32_t follow(Team const& team, cut const& c, std::uint32_t begin, std::uint32_t end,
                                 bool& more, Visit visit) const {
    constexpr std::uint32_t farther = 64;
    std::uint32_t const lane = team.lane() % warp_size;
    while (true) {
      std::uint32_t newest = 0, oldest = 0;
      bool fills = false;
      while (end > begin && !more) {
        newest = end - 1;
        oldest = newest - c.reach(newest);
        fills = newest - oldest == reach_window;
        if (fills) break;
        visit(oldest, newest);
        end = oldest;
      }
      std::uint32_t waiting = team.ballot(fills);
      if (waiting == 0) return end;
      for (; waiting != 0; waiting &= waiting - 1) {
        std::uint32_t const whose = trailing_zeros(waiting);
        std::uint32_t const anchor = team.shuffle(newest, whose);
        std::uint32_t found = team.shuffle(oldest, whose);
        std::uint32_t const last = found - min_of(found, farther);
        for (std::uint32_t rows = 1, joined = 1; found > last && joined == rows; found -= joined) {
          rows = min_of(found - last, warp_size);
          bool const yes = lane < rows && joins(c, found - 1 - lane, anchor);
          joined = min_of(rows, trailing_zeros(~team.ballot(yes)));
        }
        if (lane != whose) continue;
        more = found == last && found > 0;
        visit(found, newest);
        end = found;
      }
    }
  }
  /// Whether the entry before a set's oldest belongs to the set.
  KVMELD_HD bool joins(cut const& c, std::uint32_t entry, std::uint32_t newest) const {
    return !apart(entry) && order_key(similarity(entry, newest)) > c.bar;
  }

  /// The segment of a lane. It is long enough for chains to meet in it; lanes that are left over have none.
  KVMELD_HD static lane_range segment_of(std::uint32_t n, std::uint32_t lane, std::uint32_t lanes) {
    constexpr std::uint32_t least = 64;
    std::uint32_t const size = max_of(least, ceil_div(n, lanes));
    std::uint32_t const begin = min_of(n, lane * size);
    return {begin, min_of(n, begin + size)};
  }
  template <class Team> KVMELD_HD lane_range segment(Team const& team) const {
    return segment_of(n_, team.lane(), team.lanes());
  }

  /// Finds where every segment is entered (ends[lane + 1]), and the number of sets. Returns false where a set
  /// may be longer than `follow` looks. It looks for such sets at the end and every 8 turns, because
  /// chains with sets that are cut off do not meet. Collective; barrier at the end.
  template <class Team> KVMELD_HD bool settle(Team const& team, cut const& c, std::uint32_t& found) const {
    constexpr std::uint32_t enough_turns = 8;
    std::uint32_t* const ends = c.scratch.ends;
    lane_range const mine = segment(team);
    ends[team.lane() + 1] = mine.end;
    bool more = false;
    std::uint32_t sets = 0, left = 0, followed = ~0u;  // the end that was followed last
    for (std::uint32_t turn = 1;; ++turn) {
      std::uint32_t const entered = ends[team.lane() + 1];
      bool const again = entered != followed;
      if (again) {
        more = false;
        sets = 0;
      }
      std::uint32_t const ends_at = follow(team, c, mine.begin, again ? entered : mine.begin, more,
                                           [&](std::uint32_t, std::uint32_t) { ++sets; });
      if (again) left = ends_at;
      followed = entered;
      team.sync();
      ends[team.lane()] = left;
      team.sync();
      std::uint32_t const now = team.lane() + 1 == team.lanes() ? n_ : ends[team.lane() + 1];
      team.sync();
      ends[team.lane() + 1] = now;
      bool const moved = team.reduce(now != entered ? 1u : 0u, op_max{}) != 0;
      if (moved && turn % enough_turns == 0 && team.reduce(more ? 1u : 0u, op_max{}) != 0) return false;
      if (moved) continue;
      found = team.reduce(sets, op_sum{});
      return team.reduce(more ? 1u : 0u, op_max{}) == 0;
    }
  }

  /// Walks one set after the other, until there are `most` sets, or too few entries are left for that many.
  /// Beyond the window all lanes look together.
  template <class Team, class Visit>
  KVMELD_HD std::uint32_t walk(Team const& team, cut const& c, std::uint32_t most, Visit visit) const {
    std::uint32_t sets = 0;
    for (std::uint32_t end = n_; end > 0 && sets < most; ++sets) {
      if (most != ~0u && sets + end < most) break;
      std::uint32_t const newest = end - 1;
      std::uint32_t oldest = newest - c.reach(newest);
      bool open = newest - oldest == reach_window;
      while (open && oldest > 0) {
        std::uint32_t const rows = min_of(oldest, team.lanes());
        std::uint32_t joined = rows;
        if (team.lane() < rows) {
          if (!joins(c, oldest - 1 - team.lane(), newest)) joined = team.lane();
        }
        joined = team.reduce(joined, op_min{});
        open = joined == rows;
        oldest -= joined;
      }
      visit(oldest, newest);
      end = oldest;
    }
    team.sync();
    return sets;
  }

  row_pieces<Layout> rows_;
  listed_places list_;
  std::uint32_t n_;
  reach_table table_;
  bool break_at_gap_;
};

}  // namespace tuned_form
}  // namespace KVMELD_ABI
}  // namespace kvmeld
