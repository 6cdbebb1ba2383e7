// The team: what a phase may ask of the lanes that run it together. Phases are written once for this
// interface; a host team has one lane, a CUDA team is a block, the tests' team is N threads behind a checking
// barrier.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Exclusive prefix and total of one value per lane, in lane order.
struct scan_result {
  std::uint32_t before, total;  ///< sum over the lanes before this one; sum over all lanes
};

/// Operations `reduce` accepts: exactly associative, so that the lane count never changes a result.
struct op_sum {
  /// A + b.
  KVMELD_HD std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a + b; }
};
/// The larger number.
struct op_max {
  /// The larger of a and b.
  KVMELD_HD std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a < b ? b : a; }
};
/// The smaller number.
struct op_min {
  /// The smaller of a and b.
  KVMELD_HD std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return b < a ? b : a; }
};

/// Rounds a scratch piece up so that every piece is 64-byte aligned.
KVMELD_HD constexpr std::size_t scratch_size(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// One lane: every cooperative operation is the identity.
class serial_team {
public:
  /// A lane with `bytes` bytes of scratch.
  KVMELD_HD serial_team(void* scratch, std::size_t bytes)
      : next_(static_cast<std::byte*>(scratch)), end_(next_ + bytes) {}

  KVMELD_HD std::uint32_t lane() const { return 0; }
  KVMELD_HD std::uint32_t lanes() const { return 1; }
  KVMELD_HD void sync() const {}
  template <class Op> KVMELD_HD std::uint32_t reduce(std::uint32_t x, Op) const { return x; }
  KVMELD_HD scan_result scan(std::uint32_t x) const { return {0, x}; }
  /// f(i) for all i < n, shared out over the lanes; no order, no barrier at the end.
  template <class F> KVMELD_HD void for_each(std::uint32_t n, F f) const {
    for (std::uint32_t i = 0; i < n; ++i) f(i);
  }
  /// Adds to a value that lanes share and returns what was there. Use only where the order does not show.
  KVMELD_HD std::uint32_t fetch_add(std::uint32_t* where, std::uint32_t x) const {
    std::uint32_t const old = *where;
    *where += x;
    return old;
  }
  /// `n` uninitialised objects shared by the lanes of this tile; every lane asks in the same order.
  template <class T> KVMELD_HD T* scratch(std::size_t n) const {
    std::byte* const p = next_;
    next_ += scratch_size(n * sizeof(T));
    assert(next_ <= end_ && "phase asked for more scratch than scratch_bytes() declared");
    return reinterpret_cast<T*>(p);
  }

private:
  mutable std::byte* next_;
  [[maybe_unused]] std::byte* end_;  // only assertions look at it
};

/// The part [begin, end) of n things in index order that a lane owns: for stable scans.
struct lane_range {
  /// [begin, end).
  std::uint32_t begin, end;
};

/// The part of n things that this lane of the team owns.
template <class Team> KVMELD_HD lane_range contiguous_range(Team const& team, std::uint32_t n) {
  std::uint64_t const lanes = team.lanes();
  std::uint64_t const lane = team.lane();
  return {static_cast<std::uint32_t>(n * lane / lanes), static_cast<std::uint32_t>(n * (lane + 1) / lanes)};
}

/// Teams made of warps (exec/warps.hpp): 32 lanes that move together.
constexpr std::uint32_t warp_size = 32;
/// Whether the lanes of a team move in warps.
template <class Team, class = void> struct has_warps : std::false_type {};
template <class Team> struct has_warps<Team, std::enable_if_t<Team::has_warps>> : std::true_type {};

/// visit(i, there) for the part of n things in index order that a warp owns, 32 neighbours at a time: all
/// lanes come along, `there` is false for those behind the end.
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

/// Answers of a lane, turn by turn, to be had again without looking at memory twice: the first 64.
class remembered_turns {
public:
  KVMELD_HD void note(std::uint32_t turn, bool yes) {
    if (turn < most) bits_ |= std::uint64_t{yes} << turn;
  }
  /// The answer of a turn, or again() where it was one too many.
  template <class Again> KVMELD_HD bool at(std::uint32_t turn, Again again) const {
    return turn < most ? (bits_ >> turn & 1u) != 0 : again();
  }

private:
  static constexpr std::uint32_t most = 64;
  std::uint64_t bits_ = 0;
};

/// compact_indices with neighbouring indices in neighbouring lanes.
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

/// Writes the indices i < n for which `chosen(i)`, ascending, through emit(rank, i); returns how many.
/// Collective. `chosen` is called once or twice per index.
template <class Team, class Chosen, class Emit>
KVMELD_HD std::uint32_t compact_indices(Team const& team, std::uint32_t n, Chosen chosen, Emit emit) {
  if constexpr (has_warps<Team>::value) return detail::compact_on_warps(team, n, chosen, emit);
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

/// nvcc compiles no kernels of the host (instruction_set.hpp), and would ask for their device form.
#if defined(__CUDACC__)
constexpr bool compiles_host_kernels = false;
#else
constexpr bool compiles_host_kernels = true;
#endif

/// Whether a team may bring kernels of its backend. Primitives ask `team.kernels()`, where null means: the
/// generic form.
template <class Team, class = void> struct has_kernels : std::false_type {};
template <class Team>
struct has_kernels<Team, std::void_t<decltype(std::declval<Team const&>().kernels())>>
    : std::bool_constant<compiles_host_kernels> {};

/// Marks a phase that a backend replaces by a tuned form: specialise with value = true, `static bool
/// accepts(phase, executor)` and `static void enqueue(executor, phase, extent, items, source)`, which does
/// what executor.run would.
template <class Backend, class Phase, class = void> struct tuned {
  static constexpr bool value = false;  ///< true: there is a tuned form
};

/// Optional declaration of a phase, or of the part of a policy that it runs, false where it says nothing:
/// `light`, a few operations per entry of a track and no rows. Waking other threads for such a launch over
/// few entries costs more than it saves.
template <class T, class = void> struct is_light : std::false_type {};
template <class T> struct is_light<T, std::enable_if_t<T::light>> : std::true_type {};

/// The same for phases: `wide`, one tile goes through all entries of a track, and no rows. Devices give it
/// all the lanes that a tile can have.
template <class T, class = void> struct is_wide : std::false_type {};
template <class T> struct is_wide<T, std::enable_if_t<T::wide>> : std::true_type {};

/// The same: `near_scratch`, its scratch always is the nearest memory of a team, because it is little or
/// because whoever launches it has seen to it that it fits. Devices have shorter instructions for memory that
/// they know to be shared.
template <class T, class = void> struct has_near_scratch : std::false_type {};
template <class T> struct has_near_scratch<T, std::enable_if_t<T::near_scratch>> : std::true_type {};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
