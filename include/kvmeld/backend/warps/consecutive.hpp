// The sets of KVMerger in parallel. Matrix units find how far every entry reaches (reach.hpp). Then segments
// are counted at once: each lane follows the sets of one segment.
#pragma once

#include <kvmeld/backend/warps/reach.hpp>
#include <kvmeld/backend/warps/row_store.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/row_piece.hpp>
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/identify/consecutive_scan.hpp>
#include <kvmeld/identify/consecutive_threshold.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/identify/listed_places.hpp>
#include <kvmeld/identify/rows.hpp>
#include <kvmeld/identify/scan_path.hpp>
#include <kvmeld/layout/row_pieces.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

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

  /// Scratch of a team.
  struct buffers {
    std::uint32_t* ends;    ///< [lanes + 1] per segment, the end of the next set for a lane that comes from
                            ///< newer entries
    std::uint32_t* counts;  ///< [reach_window + 1] how many entries have this reach
    std::uint8_t* near;     ///< [near_size] the reach of the first entries for the threshold of the call
    std::uint32_t near_size;

    /// Bytes for teams of `lanes` lanes.
    static std::size_t bytes(std::uint32_t lanes, std::uint32_t near_size) {
      return scratch_size((std::size_t{lanes} + 1) * sizeof(std::uint32_t)) +
             scratch_size((reach_window + 1) * sizeof(std::uint32_t)) + scratch_size(near_size);
    }
    template <class Team>
    KVMELD_HD buffers(Team const& team, std::uint32_t size)
        : ends(team.template scratch<std::uint32_t>(team.lanes() + 1)),
          counts(team.template scratch<std::uint32_t>(reach_window + 1)),
          near(team.template scratch<std::uint8_t>(size)),
          near_size(size) {}
  };

  /// The reach of entries for one threshold.
  struct cut {
    reach_table table;
    std::uint32_t threshold;
    std::uint32_t bar;  ///< order_key of the threshold
    buffers const& scratch;
    KVMELD_HD std::uint32_t reach(std::uint32_t entry) const {
      return entry < scratch.near_size ? scratch.near[entry] : table.get(entry, threshold);
    }
    /// Copies the reach of `n` entries to the scratch, where it costs little to follow one set after the
    /// other. Cooperative; barrier at the end.
    template <class Team> KVMELD_HD void gather(Team const& team, std::uint32_t n) const {
      team.for_each(min_of(n, scratch.near_size), [&](std::uint32_t i) {
        scratch.near[i] = static_cast<std::uint8_t>(table.get(i, threshold));
      });
      team.sync();
    }
  };

  /// Whether there are at least `wanted` sets. Cooperative; barrier at the end. Lanes first assume that the
  /// newest entry of their segment is the newest of a set. Chains of sets soon meet, so after a few turns
  /// every lane enters its segment where the lane of the newer segment left off (one segment a turn at
  /// worst).
  template <class Team> KVMELD_HD bool enough(Team const& team, cut const& c, std::uint32_t wanted) const {
    c.gather(team, n_);
    if (mostly_long(team, c, wanted) && most_sets(team, c) < wanted) return false;
    std::uint32_t found = 0;
    if (!settle(team, c, found)) return walk(team, c, wanted, [](std::uint32_t, std::uint32_t) {}) >= wanted;
    return found >= wanted;
  }

  /// Calls visit(oldest, newest) for every set, on one lane per set. Returns how many sets there are.
  /// Cooperative; barrier at the end.
  template <class Team, class Visit>
  KVMELD_HD std::uint32_t each(Team const& team, cut const& c, Visit visit) const {
    c.gather(team, n_);
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
  /// Otherwise most_sets is `wanted` or more. Cooperative.
  template <class Team>
  KVMELD_HD bool mostly_long(Team const& team, cut const& c, std::uint32_t wanted) const {
    std::uint32_t const fits = n_ / wanted;  // entries per set
    std::uint32_t little = 0;
    team.for_each(n_, [&](std::uint32_t i) { little += c.reach(i) < fits ? 1u : 0u; });
    return team.reduce(little, op_sum{}) < wanted;
  }
  /// An upper bound on the number of sets, found without reading rows. A set has at least one entry more than
  /// its newest entry reaches, up to the window. Sets are disjoint, so there are no more of them than fit
  /// into all entries if the shortest come first. Cooperative; barrier at the end.
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

  /// The segment of the calling lane. It is long enough for chains to meet in it; lanes that are left over
  /// have none.
  template <class Team> KVMELD_HD lane_range segment(Team const& team) const {
    constexpr std::uint32_t least = 64;
    std::uint32_t const size = max_of(least, ceil_div(n_, team.lanes()));
    std::uint32_t const begin = min_of(n_, team.lane() * size);
    return {begin, min_of(n_, begin + size)};
  }

  /// Finds where every segment is entered (ends[lane + 1]), and the number of sets. Returns false where a set
  /// may be longer than `follow` looks. It looks for such sets at the end and every 8 turns, because
  /// chains with sets that are cut off do not meet. Cooperative; barrier at the end.
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

/// Writes marks[i].target = newest entry of the set of i; returns the number of sets. Cooperative; barrier at
/// the end.
template <class Team, class Layout>
KVMELD_HD std::uint32_t mark_reached(Team const& team, wave_ref const& wave, std::uint32_t item,
                                     reaching_sets<Layout> const& sets,
                                     typename reaching_sets<Layout>::cut const& c) {
  constexpr std::uint32_t last_byte = reach_thresholds - 1;  // it lies in the spare words
  candidate* const marks = wave.candidates + wave.at(item, 0);
  // Marks overwrite where reach lies, so the reach for this threshold moves to the last byte first.
  team.for_each(wave.state[item].live_count, [&](std::uint32_t i) {
    std::uint32_t const reach = c.table.get(i, c.threshold);
    wave.spare_words(item)[i] = 0;
    c.table.put(i, last_byte, reach);
  });
  team.sync();
  typename reaching_sets<Layout>::cut const moved{c.table, last_byte, c.bar, c.scratch};
  return sets.each(team, moved, [&](std::uint32_t oldest, std::uint32_t newest) {
    for (std::uint32_t i = oldest; i <= newest; ++i) marks[i].target = newest;
  });
}

/// marks[b].key = similarity of the newest entries of sets b and b + 1, 0 where they are apart; sources
/// become 0. Returns the newest entries, in the spare words, because what lies in place of centres is still
/// needed. Cooperative; barrier at the end.
template <class Team, class Layout>
KVMELD_HD slot_t* compare_reached(Team const& team, wave_ref const& wave, std::uint32_t item,
                                  reaching_sets<Layout> const& sets, std::uint32_t found) {
  candidate* const marks = wave.candidates + wave.at(item, 0);
  slot_t* const newest = wave.spare_words(item);
  identify::list_sets(team, marks, wave.state[item].live_count, newest);
  team.for_each(found - 1, [&](std::uint32_t b) {
    marks[b].key = sets.apart(newest[b]) ? 0u : order_key(sets.similarity(newest[b], newest[b + 1]));
    marks[b].source = 0;
  });
  team.sync();
  return newest;
}

/// Up to four bisections of every track's threshold. In the last pass, or the only one, sets are marked as in
/// `propose`.
template <class Admit, class Layout> struct settle_sets_phase {
  using identify_type = identify::consecutive_threshold<Admit>;
  detail::propose_phase<identify_type, Layout> untuned;
  std::uint32_t bisections;  ///< of this pass
  bool first_pass, last_pass;
  std::uint32_t near_size;  ///< entries whose reach is copied to scratch

  static constexpr bool near_scratch = true;
  static constexpr bool to_budget = std::is_same_v<Admit, kvmeld::admit::exact_budget>;

  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int lanes) const {
    return reaching_sets<Layout>::buffers::bytes(static_cast<std::uint32_t>(lanes), near_size) +
           select_k_scratch();
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    wave_ref const& wave = untuned.wave;
    track_state const s = wave.state[t.item];
    if (s.over_budget == 0 || s.live_count == 0) return;
    reach_table const table(wave, t.item);
    reaching_sets<Layout> const sets(untuned.rows, wave, t, table, untuned.identify.break_at_gap);
    using cut = typename reaching_sets<Layout>::cut;
    typename reaching_sets<Layout>::buffers const scratch(team, near_size);
    if constexpr (to_budget) {
      std::uint32_t const others = s.alive - s.live_count;
      std::uint32_t const wanted = s.limit > others ? s.limit - others : 1;
      identify::scan_bracket now = first_pass ? identify::scan_bracket{} : pass_notes::of(s).bracket;
      std::uint32_t low_node = 0, high = upper_end;
      for (std::uint32_t node = 1, i = 0; i < bisections; ++i) {
        bool const few = !sets.enough(team, cut{table, node - 1, order_key(now.middle()), scratch}, wanted);
        if (few)
          low_node = node;
        else
          high = node - 1;
        now.halve(!few);
        node = 2 * node + (few ? 1 : 0);
      }
      team.sync();
      if (last_pass) {
        mark(team, t, sets, cut{table, high, order_key(now.high), scratch}, wanted);
      } else if (team.lane() == 0) {
        pass_notes{now, low_node, high + 1}.leave(wave.state[t.item]);
      }
    } else {
      mark(team, t, sets,
           cut{table, 0, order_key(untuned.identify.admission.theta_in(t.where.layer)), scratch}, ~0u);
    }
  }

private:
  template <class Team>
  KVMELD_HD void mark(Team const& team, tile const& t, reaching_sets<Layout> const& sets,
                      typename reaching_sets<Layout>::cut const& c, std::uint32_t wanted) const {
    wave_ref const& wave = untuned.wave;
    std::uint32_t const found = mark_reached(team, wave, t.item, sets, c);
    if (found <= wanted) return;
    slot_t* const newest = compare_reached(team, wave, t.item, sets, found);
    identify::join_closest(team, wave.candidates + wave.at(t.item, 0), newest, found, found - wanted);
  }
};

}  // namespace tuned_form

/// Sets around fixed anchors, for 16-bit rows. Thresholds and sets equal those of the generic form up to
/// rounding: an entry may join or not where its cosine with its anchor is within 2^-22 * (d + 8) of a
/// threshold.
template <class Admit, class Layout>
struct tuned<warps, detail::propose_phase<identify::consecutive_threshold<Admit>, Layout>,
             std::enable_if_t<tuned_form::has_matrix_rows<Layout>::value>> {
  using phase = detail::propose_phase<identify::consecutive_threshold<Admit>, Layout>;
  using reach = tuned_form::reach_phase<Layout>;
  using settle = tuned_form::settle_sets_phase<Admit, Layout>;
  static constexpr bool value = true;

  template <class Executor> static bool accepts(phase const& p, Executor const& executor) {
    return p.identify.anchor == identify::anchor_rule::fixed &&
           reach_of(p, true).scratch_bytes(executor.lanes()) <= executor.max_scratch();
  }
  template <class Executor, class Source>
  static void enqueue(Executor& executor, phase const& p, shape const& extent, std::uint32_t items,
                      Source const& source) {
    if constexpr (settle::to_budget) {
      std::uint32_t const bisections = p.identify.admission.bisections;
      for (std::uint32_t done = 0; done < bisections; done += tuned_form::pass_bisections) {
        std::uint32_t const now = min_of(tuned_form::pass_bisections, bisections - done);
        executor.launch(reach_of(p, done == 0), extent, items, source);
        executor.launch(settle_of(p, executor, now, done == 0, done + now == bisections), extent, items,
                        source);
      }
    } else {
      executor.launch(reach_of(p, true), extent, items, source);
      executor.launch(settle_of(p, executor, 0, true, true), extent, items, source);
    }
  }

private:
  static reach reach_of(phase const& p, bool first) {
    admit::threshold given{};
    if constexpr (!settle::to_budget) given = p.identify.admission;
    return {p.rows, p.wave, given, settle::to_budget, first, p.identify.break_at_gap};
  }
  /// With as much scratch as there is for the reach of entries.
  template <class Executor>
  static settle settle_of(phase const& p, Executor const& executor, std::uint32_t bisections, bool first,
                          bool last) {
    settle made{p, bisections, first, last, 0};
    std::size_t const others = made.scratch_bytes(executor.lanes()) + scratch_size(1);
    std::size_t const left = executor.max_scratch() - min_of(executor.max_scratch(), others);
    made.near_size = static_cast<std::uint32_t>(min_of<std::size_t>(p.wave.ledger.extent.capacity, left));
    return made;
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
