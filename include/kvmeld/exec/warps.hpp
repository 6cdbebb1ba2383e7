// SPDX-License-Identifier: Apache-2.0
// Teams made of warps: what tuned forms may ask for beyond exec/team.hpp. CUDA blocks offer it. In the tests,
// warps are threads that multiply as the matrix unit does.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The backend of tuned<warps, Phase>. It is for every executor whose teams are made of warps and that has
/// - `launch(phase, extent, items, source)`: one launch of this very phase
/// - `max_scratch()`: bytes of shared memory that a team may have; scratch within them is shared memory
/// - `lanes()`: lanes of a team that reads rows
/// - `tuning_mode()`: whether tuned forms run
/// Such a team has the following, collective in a warp unless said otherwise:
/// - `ballot(yes)`: bit i is the answer of lane i of the warp
/// - `shuffle(x, from)`: the x of lane `from` of the warp
/// - `multiply<format>(c, a, b)`: c += a b with a 16 x 16 and b 16 x 8. Each lane holds the share of the
///   fragments that mma.m16n8k16 gives it
/// - `copy_ahead(to, from)`: one lane copies 16 aligned bytes to scratch; they are there after
///   finish_copies() and a barrier
/// - `commit_copies()`: the copies that one lane began since its last call are a group, which may be empty
/// - `finish_copies<n>()`: one lane waits for its own copies, but for those of its last n groups; n is 0 if
///   left out
/// - `sync_warp()`: a barrier of the warp
/// Such a team may be several blocks. For that it has
/// - `place_of_block()`, `block_scratch<T>(n)`, `in_block(mine, index)`: see exec/team.hpp
/// - `block()`: the lanes of the calling lane's block as a team. Its scratch is near, begins behind what the
///   whole team has given out, and is lost when the whole team gives out more
/// - `add_up_blocks(x, n)`: each of n numbers in such scratch becomes its sum over all blocks. Collective in
///   the whole team; a barrier of it comes before, and there is one at the end. One block does nothing
struct warps {};

namespace detail {

/// A tuned phase: one launch of `Form{phase}` replaces it, if the scratch of the form fits shared memory.
template <class Phase, class Form> struct tuned_by_form {
  static constexpr bool value = true;  ///< there is a tuned form
  using form = Form;                   ///< the form
  /// Whether the form can do what the phase does.
  KVMELD_HD static bool takes(Phase const& p) { return Form::takes(p); }
  /// Whether the form takes the phase and its scratch fits.
  template <class Executor> static bool accepts(Phase const& p, Executor const& executor) {
    return takes(p) && Form{p}.scratch_bytes(executor.lanes()) <= executor.max_scratch();
  }
  /// One launch of the form.
  template <class Executor, class Source>
  static void enqueue(Executor& executor, Phase const& p, shape const& extent, std::uint32_t items,
                      Source const& source) {
    executor.launch(Form{p}, extent, items, source);
  }
};

/// Whether warps run a phase in one tuned form instead.
template <class Phase, class = void> inline constexpr bool has_tuned_form = false;
template <class Phase>
inline constexpr bool has_tuned_form<Phase, std::void_t<typename tuned<warps, Phase>::form>> = true;

}  // namespace detail

/// Which part of a 16 x 8 result a lane holds. c[0] and c[1] are in row `group`, in columns 2 * pair and 2 *
/// pair + 1. c[2] and c[3] are in the same columns of row `group` + 8.
struct warp_place {
  std::uint32_t lane, group, pair;  ///< lane in its warp; row of the result; pair of columns
};

/// Where this lane is in its warp.
template <class Team> KVMELD_HD warp_place place_in_warp(Team const& team) {
  std::uint32_t const lane = team.lane() % warp_size;
  return {lane, lane / 4, lane % 4};
}
/// Number of this lane's warp in its team.
template <class Team> KVMELD_HD std::uint32_t warp_of(Team const& team) { return team.lane() / warp_size; }
/// Warps of the team.
template <class Team> KVMELD_HD std::uint32_t warps_of(Team const& team) { return team.lanes() / warp_size; }

/// The first i below n for which before(i) is false; n if there is none. No i behind it may be before it.
/// Takes log(n) / 5 steps, because a warp asks 32 times at once. Collective in a warp.
template <class Team, class Before>
KVMELD_HD std::uint32_t first_not(Team const& team, std::uint32_t n, Before before) {
  std::uint32_t const lane = team.lane() % warp_size;
  std::uint32_t low = 0, high = n;
  while (low < high) {
    std::uint32_t const step = ceil_div(high - low, warp_size), i = low + lane * step;
    std::uint32_t const count = count_bits(team.ballot(i < high && before(i)));
    high = min_of(high, low + count * step);
    if (count != 0) low += (count - 1) * step + 1;
  }
  return low;
}

/// Combines x by `op` over the four lanes that hold a row of a result; all four get the result. Pairs are
/// combined first, so the order is fixed for commutative operations. Collective in a warp.
template <class Team, class Op> KVMELD_HD float over_row(Team const& team, float x, Op op) {
  std::uint32_t const lane = team.lane() % warp_size;
  for (std::uint32_t step = 1; step < 4; step *= 2) {
    x = op(x, bits_float(team.shuffle(float_bits(x), lane ^ step)));
  }
  return x;
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
