// SPDX-License-Identifier: Apache-2.0
// The team: what a phase may ask of the lanes that run it together. Phases are written once, for this
// interface. A host team has one lane, a CUDA team is a block, and the team of the tests is N threads behind
// a checking barrier.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// What a scan of one value per lane gives a lane: sums in the order of the lanes.
struct scan_result {
  std::uint32_t before, total;  ///< sum over the lanes before this one; sum over all lanes
};

/// The sum of two numbers, for `reduce`. All operations that `reduce` accepts are exactly associative, so the
/// lane count never changes a result.
struct op_sum {
  /// The sum a + b.
  KVMELD_HD std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a + b; }
};
/// The larger of two numbers, for `reduce`.
struct op_max {
  /// The larger of a and b.
  KVMELD_HD std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a < b ? b : a; }
};
/// The smaller of two numbers, for `reduce`.
struct op_min {
  /// The smaller of a and b.
  KVMELD_HD std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return b < a ? b : a; }
};

/// Bytes of a piece of scratch, rounded up so that every piece is 64-byte aligned.
KVMELD_HD constexpr std::size_t scratch_size(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// A team of one lane. Every collective operation is the identity.
class serial_team {
public:
  /// A team with `bytes` bytes of scratch.
  KVMELD_HD serial_team(void* scratch, std::size_t bytes)
      : first_(static_cast<std::byte*>(scratch)), next_(first_), end_(first_ + bytes) {}

  KVMELD_HD std::uint32_t lane() const { return 0; }
  KVMELD_HD std::uint32_t lanes() const { return 1; }
  KVMELD_HD void sync() const {}
  template <class Op> KVMELD_HD std::uint32_t reduce(std::uint32_t x, Op) const { return x; }
  KVMELD_HD scan_result scan(std::uint32_t x) const { return {0, x}; }
  /// Calls f(i) for all i < n, divided among the lanes. There is no order and no barrier at the end.
  template <class F> KVMELD_HD void for_each(std::uint32_t n, F f) const {
    for (std::uint32_t i = 0; i < n; ++i) f(i);
  }
  /// Adds to a value that lanes share, and returns the old value. Use it only if the order of additions
  /// cannot show in a result.
  KVMELD_HD std::uint32_t fetch_add(std::uint32_t* where, std::uint32_t x) const {
    std::uint32_t const old = *where;
    *where += x;
    return old;
  }
  /// `n` uninitialised objects that the lanes of this tile share. Every lane has to ask in the same order.
  template <class T> KVMELD_HD T* scratch(std::size_t n) const {
    std::byte* const p = next_;
    next_ += scratch_size(n * sizeof(T));
    assert(next_ <= end_ && "phase asked for more scratch than scratch_bytes() declared");
    return reinterpret_cast<T*>(p);
  }

  /// From now on `scratch` gives out the same memory again. What was given out before must not be used any
  /// more, by any lane: a barrier comes first.
  KVMELD_HD void reuse_scratch() const { next_ = first_; }

private:
  std::byte* first_;
  mutable std::byte* next_;
  [[maybe_unused]] std::byte* end_;  // only assertions look at it
};

/// The part of n things that a lane owns. The parts are in index order, as stable scans need.
struct lane_range {
  /// The lane owns begin to end - 1.
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

/// Whether this unit compiles vector kernels of the host (core/config.hpp). nvcc does not: it would ask for
/// their device form.
#if defined(KVMELD_TUNED_X86) || defined(KVMELD_TUNED_NEON)
constexpr bool compiles_host_kernels = true;
#else
constexpr bool compiles_host_kernels = false;
#endif

/// Whether a team may bring kernels of its backend: it has `kernels()`, which returns a pointer to kernels,
/// or null.
template <class Team, class = void> struct has_kernels : std::false_type {};
template <class Team>
struct has_kernels<Team, std::void_t<decltype(std::declval<Team const&>().kernels())>>
    : std::bool_constant<compiles_host_kernels> {};

/// Whether a team may have tuned forms for rows of storage type T. Such a team runs on the host.
template <class Team, class T = float, bool = has_kernels<Team>::value>
inline constexpr bool may_be_tuned = false;
/// A team that may bring kernels: true if they read T.
template <class Team, class T>
inline constexpr bool may_be_tuned<Team, T, true> =
    std::remove_pointer_t<decltype(std::declval<Team const&>().kernels())>::template reads<T>;

/// Calls use(kernels) if the team brings kernels for rows of storage type T; returns whether it does. Here
/// every primitive finds its tuned form. A team with kernels has one lane.
template <class T = float, class Team, class Use>
KVMELD_HD bool with_kernels([[maybe_unused]] Team const& team, [[maybe_unused]] Use use) {
  if constexpr (may_be_tuned<Team, T>) {
    if (auto const* const kernels = team.kernels()) {
      use(*kernels);
      return true;
    }
  }
  return false;
}

/// Whether primitives on rows of storage type T run in their tuned forms. Then products and exponentials of
/// whole rows are cheap, and rows are best used as they are stored. A phase may choose its way through the
/// data by that.
template <class T = float, class Team> KVMELD_HD bool is_tuned(Team const& team) {
  return with_kernels<T>(team, [](auto const&) {});
}

/// Marks a phase that the `run` of a backend replaces by a tuned form. A specialisation has value = true,
/// `static bool accepts(phase, executor)` and `static void enqueue(executor, phase, extent, items, source)`,
/// which does what executor.run would do.
template <class Backend, class Phase, class = void> struct tuned {
  static constexpr bool value = false;  ///< true: there is a tuned form
};

/// `light` is an optional declaration of a phase; the default is false. A light phase makes a few operations
/// per entry of a track and reads no rows. Over few entries, waking other threads for such a launch costs
/// more than it saves.
template <class T, class = void> struct is_light : std::false_type {};
template <class T> struct is_light<T, std::enable_if_t<T::light>> : std::true_type {};

/// `wide` is an optional declaration of a phase; the default is false. One tile of a wide phase goes through
/// many entries of a track, and reads no rows. Devices give it all the lanes that a tile can have.
template <class T, class = void> struct is_wide : std::false_type {};
template <class T> struct is_wide<T, std::enable_if_t<T::wide>> : std::true_type {};

/// Blocks that a team has at most.
constexpr std::uint32_t most_blocks_of_team = 16;

/// `spans_blocks` is an optional declaration of a phase; the default is false. One tile of such a phase goes
/// through many entries of a track, and uses scratch little. Where there are fewer tiles than processors,
/// devices may give a tile several blocks. `scratch_bytes` is still asked for the lanes of one block.
template <class T, class = void> struct spans_blocks : std::false_type {};
template <class T> struct spans_blocks<T, std::enable_if_t<T::spans_blocks>> : std::true_type {};

/// `entries_per_lane` is an optional declaration of a phase that spans blocks; the default is 4. A lane of it
/// should have at least as many entries of a track, or barriers between blocks cost more than blocks save.
template <class T, class = void> struct entries_per_lane : std::integral_constant<std::uint32_t, 4> {};
template <class T>
struct entries_per_lane<T, std::enable_if_t<T::entries_per_lane != 0>>
    : std::integral_constant<std::uint32_t, T::entries_per_lane> {};

/// The block of a team that a lane belongs to. A team is one block unless it is made of warps and says
/// otherwise (exec/warps.hpp).
struct block_place {
  std::uint32_t index, count;  ///< number of the block in its team; blocks of the team, a power of two
};

/// Where the calling lane's block is in its team.
template <class Team> KVMELD_HD block_place place_of_block(Team const& team) {
  if constexpr (has_warps<Team>::value) {
    return team.place_of_block();
  } else {
    return {0, 1};
  }
}

/// The lanes of the calling lane's block, as a team. Its scratch is lost when the whole team gives out more:
/// take block_scratch instead.
template <class Team> KVMELD_HD decltype(auto) block_of(Team const& team) {
  if constexpr (has_warps<Team>::value) {
    return team.block();
  } else {
    return static_cast<Team const&>(team);
  }
}

/// `n` uninitialised objects that the lanes of one block share; each block of the team has its own. Every
/// lane of the team has to ask, in the same order as for other scratch.
template <class T, class Team> KVMELD_HD T* block_scratch(Team const& team, std::size_t n) {
  if constexpr (has_warps<Team>::value) {
    return team.template block_scratch<T>(n);
  } else {
    return team.template scratch<T>(n);
  }
}

/// Where block `index` of the team has what `mine`, from block_scratch, is in the calling lane's block.
template <class Team, class T>
KVMELD_HD T* in_block([[maybe_unused]] Team const& team, T* mine, [[maybe_unused]] std::uint32_t index) {
  if constexpr (has_warps<Team>::value) {
    return team.in_block(mine, index);
  } else {
    return mine;
  }
}

/// `near_scratch` is an optional declaration of a phase; the default is false. The scratch of such a phase
/// always is the nearest memory of a team, because it is small or because the caller of the launch has made
/// sure that it fits. Devices have shorter instructions for memory that they know to be shared.
template <class T, class = void> struct has_near_scratch : std::false_type {};
template <class T> struct has_near_scratch<T, std::enable_if_t<T::near_scratch>> : std::true_type {};

/// Number of partial sums. It does not depend on the number of lanes.
constexpr std::uint32_t team_partials = 256;

/// Bytes of scratch that team_sum needs.
KVMELD_HD constexpr std::size_t team_sum_scratch() { return scratch_size(team_partials * sizeof(float)); }

/// The sum over i < n of term(i). Index i goes to partial i mod 256, and the partials add up in a fixed tree.
/// (A library's reduction may add in any order; here all backends get the same bits.)
/// `partial` is scratch of team_partials floats. Collective; barrier at the end.
template <class Team, class Term>
KVMELD_HD float team_sum(Team const& team, std::uint32_t n, Term term, float* partial) {
  std::uint32_t width = team_partials;  // partials beyond n terms are zeros, which change no sum
  while (width > 1 && width / 2 >= n) width /= 2;
  team.for_each(width, [&](std::uint32_t j) {
    float sum = 0.0f;
    for (std::uint32_t i = j; i < n; i += team_partials) sum += term(i);
    partial[j] = sum;
  });
  team.sync();
  for (std::uint32_t reach = width / 2; reach > 0; reach /= 2) {
    team.for_each(reach, [&](std::uint32_t j) { partial[j] += partial[j + reach]; });
    team.sync();
  }
  float const sum = partial[0];
  team.sync();
  return sum;
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
