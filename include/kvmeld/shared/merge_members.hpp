// SPDX-License-Identifier: Apache-2.0
// Shared entries keep their members' norms, positions and scores (EMS section 4.2). Runs before keys merge.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/compact_indices.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Writes own_norm of the entries that the plan turns from ordinary entries into directions with members:
/// shared entries and their targets. merge_rows_phase then turns a target's key into a direction. Runs before
/// merge_members_phase, on the sets that link_phase has listed for `map`.
template <class Keys> struct note_norms_phase {
  static constexpr std::uint32_t block = 512;  ///< slots per tile
  Keys keys;
  wave_ref wave;
  plan_ref map;

  KVMELD_HD std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, block); }
  std::size_t scratch_bytes(int lanes) const {
    std::size_t const rows = rows_at_once(static_cast<std::uint32_t>(lanes));
    return scratch_size(block * sizeof(slot_t)) + scratch_size(rows * stride() * sizeof(float));
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = wave.ledger;
    std::uint32_t const n = wave.state[t.item].length;
    slot_t const begin = t.index * block;
    if (begin >= n || wave.state[t.item].unchanged != 0) return;
    std::uint32_t const d = keys.channels(), ld = stride(), most = rows_at_once(team.lanes());
    slot_t* const wanted = team.template scratch<slot_t>(block);
    float* const rows = team.template scratch<float>(std::size_t{most} * ld);
    std::uint32_t const found = compact_indices(
        team, min_of(n - begin, block),
        [&](std::uint32_t i) { return takes_part(t, begin + i) && !l.is_direction(t.where, begin + i); },
        [&](std::uint32_t rank, std::uint32_t i) { wanted[rank] = begin + i; });
    for (std::uint32_t first = 0; first < found; first += most) {
      std::uint32_t const count = min_of(found - first, most);
      for (std::uint32_t r = 0; r < count; ++r)
        keys.load_tile(team, t.where, wanted[first + r], 1, 0, d, rows + std::size_t{r} * ld, ld);
      team.sync();
      team.for_each(count, [&](std::uint32_t r) {
        // The norm of a zero row is above 0 too: 0 would say that the row is a key.
        l.members.own_norm[l.at(t.where, wanted[first + r])] =
            max_of(1e-30f, row_norm(rows + std::size_t{r} * ld, d));
      });
      team.sync();
    }
  }

private:
  KVMELD_HD static std::uint32_t rows_at_once(std::uint32_t lanes) { return min_of(lanes, 64u); }
  /// Floats from one row to the next: odd, so that neighbouring lanes read different banks.
  KVMELD_HD std::uint32_t stride() const { return keys.channels() | 1u; }

  KVMELD_HD bool takes_part(tile const& t, slot_t s) const {
    member_list const m = members_of(wave, t.item, s);
    if (m.count > 1) {
      slot_t const other = m.slots[0] == s ? m.slots[1] : m.slots[0];
      return map.fates[map.at(t.item, other)] == fate::share;
    }
    return map.fates[map.at(t.item, s)] == fate::share;
  }
};

/// Updates a track's member list by `map`, whose sets link_phase has listed:
/// - members that the plan gives up, and members of dropped entries, are removed; an entry's degree shrinks
///   by one for each member that the plan gives up
/// - shared entries become members of their targets, and their own members move along
///
/// Owners are slots before compaction. A list that would not fit stays as it is: plan_problem refuses such a
/// plan.
struct merge_members_phase : track_phase {
  plan_ref map;
  static constexpr bool light = false, wide = true;  ///< many passes over entries and members

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = wave.ledger;
    member_ref const& members = l.members;
    std::uint32_t const n = wave.state[t.item].length;
    std::uint32_t const before = members.count[t.where.index];
    slot_t* const fresh = wave.live + wave.at(t.item, 0);          // free between rounds, like candidates
    candidate* const list = wave.candidates + wave.at(t.item, 0);  // .source: where an owner's list ends
    std::uint32_t* const order = wave.members.order_of(t.item);
    auto const what = [&](slot_t s) { return map.fates[map.at(t.item, s)]; };
    auto const owner_of = [&](slot_t s) {
      return what(s) == fate::share ? map.target[map.at(t.item, s)] : s;
    };
    auto const old_owner = [&](std::uint32_t m) { return members.owner[l.members.at(t.where, m)]; };
    auto const stays = [&](std::uint32_t m) {
      return wave.plan.members.keeps(t.item, m) && what(old_owner(m)) != fate::drop;
    };
    std::uint32_t const added = compact_indices(
        team, n, [&](std::uint32_t s) { return what(s) == fate::share; },
        [&](std::uint32_t rank, std::uint32_t s) { fresh[rank] = s; });
    count_lost(team, t, n, before);

    // Token k of the new list is old member k, or the shared entry fresh[k - before]. A counting sort orders
    // the tokens by owner.
    std::uint32_t const total = before + added;
    auto const place = [&](std::uint32_t k) {
      return owner_of(k < before ? old_owner(k) : fresh[k - before]);
    };
    team.for_each(n, [&](std::uint32_t s) { list[s].source = 0; });
    team.sync();
    std::uint32_t live = 0;
    team.for_each(total, [&](std::uint32_t k) {
      if (k < before && !stays(k)) return;
      team.fetch_add(&list[place(k)].source, 1);
      ++live;
    });
    live = team.reduce(live, op_sum{});
    if (live > members.capacity) return;  // the same for every lane
    std::uint32_t longest = 0;
    scan_values(
        team, n, [=](std::uint32_t s) { return list[s].source; },
        [&](std::uint32_t s, std::uint32_t begin) {
          longest = max_of(longest, list[s].source);
          list[s].source = list[s].target = begin;  // cursor, and where the list begins
        });
    team.for_each(total, [&](std::uint32_t k) {
      if (k < before && !stays(k)) return;
      order[team.fetch_add(&list[place(k)].source, 1)] = k;
    });
    team.sync();
    // Every owner's list is sorted, so that the order of atomics does not change results. One lane has filled
    // the lists in order.
    if (team.lanes() != 1) {
      sort_lists(
          team, order, order + members.capacity, live, team.reduce(longest, op_max{}),
          [&](std::uint32_t k) {
            return lane_range{list[place(k)].target, list[place(k)].source};
          },
          ascending{});
    }
    move_all(team, t, fresh, order, before, live, place);
    if (team.lane() == 0) members.count[t.where.index] = live;
  }

private:
  /// Lowers an entry's degree by the number of its members that the plan gives up.
  template <class Team>
  KVMELD_HD void count_lost(Team const& team, tile const& t, std::uint32_t n, std::uint32_t before) const {
    ledger_ref const& l = wave.ledger;
    candidate* const lost = wave.candidates + wave.at(t.item, 0);
    team.for_each(n, [&](std::uint32_t s) { lost[s].key = 0; });
    team.sync();
    team.for_each(before, [&](std::uint32_t m) {
      if (!wave.plan.members.keeps(t.item, m))
        team.fetch_add(&lost[l.members.owner[l.members.at(t.where, m)]].key, 1);
    });
    team.sync();
    team.for_each(n, [&](std::uint32_t s) {
      if (lost[s].key != 0) l.degree[l.at(t.where, s)] -= static_cast<float>(lost[s].key);
    });
    team.sync();
  }

  /// Puts every field into its new order, one field at a time, through the second half of member_order.
  template <class Team, class Place>
  KVMELD_HD void move_all(Team const& team, tile const& t, slot_t const* fresh, std::uint32_t const* order,
                          std::uint32_t before, std::uint32_t live, Place place) const {
    ledger_ref const& l = wave.ledger;
    member_ref const& m = l.members;
    std::uint32_t* const room = wave.members.order_of(t.item) + m.capacity;
    auto const move = [&](auto* field, auto value) {
      using T = std::remove_reference_t<decltype(*field)>;
      static_assert(sizeof(T) == sizeof(std::uint32_t), "kvmeld: members' fields are words");
      team.for_each(live, [&](std::uint32_t i) { write_aligned<T>(&room[i], value(order[i])); });
      team.sync();
      team.for_each(live, [&](std::uint32_t i) { field[i] = read_aligned<T>(&room[i]); });
      team.sync();
    };
    std::size_t const base = l.members.at(t.where, 0);
    auto const source = [&](std::uint32_t k) { return l.at(t.where, fresh[k - before]); };
    move(m.norm + base,
         [&](std::uint32_t k) { return k < before ? m.norm[base + k] : m.own_norm[source(k)]; });
    move(m.position + base,
         [&](std::uint32_t k) { return k < before ? m.position[base + k] : l.position[source(k)]; });
    for (std::uint32_t c = 0; c < l.channels.count; ++c) {
      move(m.channel_data[c] + base, [&](std::uint32_t k) {
        return k < before ? m.channel_data[c][base + k] : l.channel_data[c][source(k)];
      });
    }
    move(m.owner + base, [&](std::uint32_t k) { return place(k); });  // last, because place() reads it
  }
};

/// Lets members follow `map`, whose sets link_phase has listed, before keys and ledger merge by it. Launches
/// nothing if the cache has no room for members.
KVMELD_CALLS_ARGUMENTS
template <class Launch, class Keys>
KVMELD_HD void merge_members(Launch const& launch, Keys const& keys, plan_ref const& map) {
  if (launch.wave.members.capacity == 0) return;
  launch(note_norms_phase<Keys>{keys, launch.wave, map});
  launch(merge_members_phase{{launch.wave}, map});
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
