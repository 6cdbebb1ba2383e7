// SPDX-License-Identifier: Apache-2.0
// The k best of n; ties go to the lower index. All stages that select within one track use this selection.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/select_on_warps.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Bytes of scratch that select_k takes from its team.
KVMELD_HD constexpr std::size_t select_k_scratch() {
  constexpr std::size_t bytewise =
      scratch_size(256 * sizeof(std::uint32_t)) + scratch_size(2 * sizeof(std::uint32_t));
  return max_of(bytewise, detail::select_on_warps_scratch());
}

/// The key of a score, never 0, so that every score is eligible. A NaN ranks lowest, but is taken if nothing
/// else is left.
KVMELD_HD inline std::uint32_t eligible_key(float score) {
  return max_of(std::uint32_t{1}, order_key(score));
}

/// Calls mark(i) for the min(k, eligible) indices i < n with the highest key(i); equal keys go to the lower
/// index. Key 0 (NaN or "none") is never taken. `mark(i)` may make key(i) 0. Returns how many were marked. It
/// is a radix selection by bytes from the top: four histogram passes and one marking pass (on warps three
/// histogram passes, of up to 11 bits). It is exact and independent of the lane count. Collective. Tuned
/// forms mark the same indices.
template <class Team, class Key, class Mark>
KVMELD_HD std::uint32_t select_k(Team const& team, std::uint32_t n, std::uint32_t k, Key key, Mark mark) {
  if constexpr (has_kernels<Team>::value) {
    std::uint32_t marked = 0;
    if (team.kernels() != nullptr && team.select(n, k, key, mark, marked)) return marked;
  }
  if constexpr (has_warps<Team>::value) return detail::select_on_warps(team, n, k, key, mark);
  std::uint32_t* const histogram = team.template scratch<std::uint32_t>(256);
  std::uint32_t* const found = team.template scratch<std::uint32_t>(2);  // chosen byte, keys above it
  std::uint32_t prefix = 0;
  std::uint32_t wanted = k;  // still to be found among the keys that share the prefix
  for (int shift = 24; shift >= 0; shift -= 8) {
    team.for_each(256, [&](std::uint32_t b) { histogram[b] = 0; });
    team.sync();
    team.for_each(n, [&](std::uint32_t i) {
      std::uint32_t const x = key(i);
      if (x != 0 && (shift == 24 || (x >> (shift + 8)) == prefix))
        team.fetch_add(&histogram[(x >> shift) & 255u], 1);
    });
    team.sync();
    if (team.lane() == 0) {
      std::uint32_t above = 0;
      std::uint32_t byte = 255;
      while (byte > 0 && above + histogram[byte] < wanted) above += histogram[byte--];
      found[0] = byte;
      found[1] = above;
    }
    team.sync();
    prefix = (prefix << 8) | found[0];
    wanted -= min_of(wanted, found[1]);
    team.sync();
  }
  // Keys above the threshold are all taken; of those equal to it, the first `wanted` by index.
  std::uint32_t const threshold = prefix;
  lane_range const mine = contiguous_range(team, n);
  std::uint32_t equal = 0;
  if (threshold != 0) {
    for (std::uint32_t i = mine.begin; i < mine.end; ++i) equal += key(i) == threshold ? 1u : 0u;
  }
  std::uint32_t rank = team.scan(equal).before;
  std::uint32_t marked = 0;
  for (std::uint32_t i = mine.begin; i < mine.end && k != 0; ++i) {
    std::uint32_t const x = key(i);
    if (x == 0 || x < threshold || (x == threshold && rank++ >= wanted)) continue;
    mark(i);
    ++marked;
  }
  team.sync();
  return team.reduce(marked, op_sum{});
}

/// out[i] = `best` for the min(k, n) highest scores, `rest` for the others. NaN ranks lowest but stays
/// eligible; ties go to the lower index. Collective, with a barrier at the end.
template <class Team, class Byte>
KVMELD_HD void mark_best(Team const& team, std::uint32_t n, std::uint32_t k, float const* score, Byte best,
                         Byte rest, Byte* out) {
  static_assert(sizeof(Byte) == 1, "kvmeld: marks are bytes");
  if constexpr (has_kernels<Team>::value) {
    if (team.kernels() != nullptr && team.partition(n, k, score, best, rest, out)) return;
  }
  team.for_each(n, [&](std::uint32_t i) { out[i] = rest; });
  team.sync();
  select_k(
      team, n, k, [&](std::uint32_t i) { return eligible_key(score[i]); },
      [&](std::uint32_t i) { out[i] = best; });
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
