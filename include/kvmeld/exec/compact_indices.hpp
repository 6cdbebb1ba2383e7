// SPDX-License-Identifier: Apache-2.0
// What the lanes of a team do with chosen indices: list them in order, add up what lies before each, or visit
// them.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Calls visit(i, there) for the part of n things that a warp owns, in index order and 32 neighbours at a
/// time. All lanes take part; `there` is false for lanes beyond the end.
template <class Team, class Visit>
KVMELD_HD void visit_warp_range(Team const& team, std::uint32_t n, Visit visit) {
  std::uint32_t const warps = team.lanes() / warp_size;
  std::uint32_t const share = (n / warp_size + warps) / warps * warp_size;  // warps * share is at least n
  std::uint64_t const begin = std::uint64_t{share} * (team.lane() / warp_size);
  for (std::uint64_t first = begin; first < begin + share && first < n; first += warp_size) {
    std::uint64_t const i = first + team.lane() % warp_size;
    visit(static_cast<std::uint32_t>(i), i < n);
  }
}

namespace detail {

/// Remembers the first 64 answers of a lane, turn by turn, so that the lane does not read memory twice.
class remembered_turns {
public:
  KVMELD_HD void note(std::uint32_t turn, bool yes) {
    if (turn < most) bits_ |= std::uint64_t{yes} << turn;
  }
  /// The answer of a turn, or again() for a turn that is not remembered.
  template <class Again> KVMELD_HD bool at(std::uint32_t turn, Again again) const {
    return turn < most ? (bits_ >> turn & 1u) != 0 : again();
  }

private:
  static constexpr std::uint32_t most = 64;
  std::uint64_t bits_ = 0;
};

/// compact_indices for teams made of warps: neighbouring lanes have neighbouring indices. (Scans of a block
/// in CUB take a fixed number of items, and belong to one block.)
template <class Team, class Chosen, class Emit>
KVMELD_HD std::uint32_t compact_on_warps(Team const& team, std::uint32_t n, Chosen chosen, Emit emit) {
  std::uint32_t count = 0, turn = 0;
  remembered_turns all_chosen;
  visit_warp_range(team, n, [&](std::uint32_t i, bool there) {
    bool const mine = there && chosen(i);
    all_chosen.note(turn++, mine);
    count += mine ? 1u : 0u;
  });
  scan_result const s = team.scan(count);
  std::uint32_t rank = team.shuffle(s.before, 0);
  std::uint32_t const below = (1u << team.lane() % warp_size) - 1u;
  turn = 0;
  visit_warp_range(team, n, [&](std::uint32_t i, bool there) {
    bool const mine = all_chosen.at(turn++, [&] { return there && chosen(i); });
    std::uint32_t const all = team.ballot(mine);
    if (mine) emit(rank + count_bits(all & below), i);
    rank += count_bits(all);
  });
  team.sync();
  return s.total;
}

}  // namespace detail

namespace detail {

/// Calls emit(rank, i) for the indices i < n with chosen(i), in ascending order; returns how many there are.
/// One lane. Asks for a piece of indices before it emits any of them, so that hardly a branch depends on the
/// data.
template <class Chosen, class Emit> std::uint32_t emit_in_pieces(std::uint32_t n, Chosen chosen, Emit emit) {
  constexpr std::uint32_t piece = 128;
  bool taken[piece];
  std::uint32_t list[piece];
  std::uint32_t rank = 0;
  for (std::uint32_t first = 0; first < n; first += piece) {
    std::uint32_t const count = min_of(piece, n - first), end = first + count;
    bool* next = taken;
    for (std::uint32_t i = first; i < end; ++i)
      *next++ = chosen(i);  // compilers see that i does not overflow
    std::uint8_t all = 0;   // of so few that eight bits hold it
    for (std::uint32_t i = 0; i < count; ++i) all = static_cast<std::uint8_t>(all + (taken[i] ? 1 : 0));
    if (all == count) {
      for (std::uint32_t i = 0; i < count; ++i) emit(rank + i, first + i);
    } else if (all != 0) {
      std::uint32_t found = 0;
      for (std::uint32_t i = 0; i < count; ++i) {
        list[found] = first + i;
        found += taken[i] ? 1u : 0u;
      }
      for (std::uint32_t i = 0; i < found; ++i) emit(rank + i, list[i]);
    }
    rank += all;
  }
  return rank;
}

}  // namespace detail

/// Calls emit(rank, i) for the indices i < n with chosen(i), in ascending order. Returns how many there are.
/// Collective. `chosen` is called once or twice per index, and nothing that it reads may depend on `emit`.
template <class Team, class Chosen, class Emit>
KVMELD_HD std::uint32_t compact_indices(Team const& team, std::uint32_t n, Chosen chosen, Emit emit) {
  if constexpr (has_warps<Team>::value) return detail::compact_on_warps(team, n, chosen, emit);
  if constexpr (may_be_tuned<Team>) {
    if (is_tuned(team)) return detail::emit_in_pieces(n, chosen, emit);
  }
  lane_range const mine = contiguous_range(team, n);
  std::uint32_t count = 0;
  for (std::uint32_t i = mine.begin; i < mine.end; ++i) count += chosen(i) ? 1u : 0u;
  scan_result const s = team.scan(count);
  std::uint32_t rank = s.before;
  for (std::uint32_t i = mine.begin; i < mine.end; ++i) {
    if (chosen(i)) emit(rank++, i);
  }
  team.sync();
  return s.total;
}

/// Calls emit(i, before) for all i < n; `before` is the sum of value(j) over all j < i. Returns the sum of
/// all. Collective; barrier at the end. value(i) is called twice, the second time just before emit(i), and
/// depends on no other emit.
template <class Team, class Value, class Emit>
KVMELD_HD std::uint32_t scan_values(Team const& team, std::uint32_t n, Value value, Emit emit) {
  std::uint32_t sum = 0;
  scan_result s;
  if constexpr (has_warps<Team>::value) {
    std::uint32_t const lane = team.lane() % warp_size;
    visit_warp_range(team, n, [&](std::uint32_t i, bool there) { sum += there ? value(i) : 0u; });
    s = team.scan(sum);
    std::uint32_t before = team.shuffle(s.before, 0);
    visit_warp_range(team, n, [&](std::uint32_t i, bool there) {
      std::uint32_t const x = there ? value(i) : 0u;
      std::uint32_t upto = x;  // the sum of this lane's value and those of the lanes before it
      for (std::uint32_t step = 1; step < warp_size; step *= 2) {
        std::uint32_t const other = team.shuffle(upto, lane - min_of(lane, step));
        upto += lane >= step ? other : 0u;
      }
      if (there) emit(i, before + upto - x);
      before += team.shuffle(upto, warp_size - 1);
    });
  } else {
    lane_range const mine = contiguous_range(team, n);
    for (std::uint32_t i = mine.begin; i < mine.end; ++i) sum += value(i);
    s = team.scan(sum);
    std::uint32_t before = s.before;
    for (std::uint32_t i = mine.begin; i < mine.end; ++i) {
      std::uint32_t const x = value(i);
      emit(i, before);
      before += x;
    }
  }
  team.sync();
  return s.total;
}

/// Calls f(i) for the indices i < n with chosen(i), divided among the lanes. There is no order and no barrier
/// at the end. `chosen` is called once per index, and nothing that it reads may depend on `f`.
template <class Team, class Chosen, class F>
KVMELD_HD void for_each_chosen(Team const& team, std::uint32_t n, Chosen chosen, F f) {
  if constexpr (may_be_tuned<Team>) {
    if (is_tuned(team)) {
      detail::emit_in_pieces(n, chosen, [&](std::uint32_t, std::uint32_t i) { f(i); });
      return;
    }
  }
  team.for_each(n, [&](std::uint32_t i) {
    if (chosen(i)) f(i);
  });
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
