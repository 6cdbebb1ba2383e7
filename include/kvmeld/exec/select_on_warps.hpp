// SPDX-License-Identifier: Apache-2.0
// select_k for teams made of warps. Digits are wider, so passes are fewer. All lanes search the bins.
// Neighbouring lanes read neighbouring keys. (CUB selects the best of a whole device or of a fixed number per
// block, and promises no order among equal keys.)
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/compact_indices.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Digits have 11, 11 and 10 bits. Exponents of scores spread over more bins than a byte has.
constexpr std::uint32_t warp_digit_bits = 11, warp_digits = 1u << warp_digit_bits;

KVMELD_HD constexpr std::size_t select_on_warps_scratch() {
  return scratch_size(warp_digits * sizeof(std::uint32_t)) + scratch_size(2 * sizeof(std::uint32_t));
}

/// Writes to found[0] the digit of the key that is `wanted`-th from above, and to found[1] how many keys are
/// above that digit. The digit is 0 if there are fewer keys. Returns the number of keys. Collective; barrier
/// at the end.
template <class Team>
KVMELD_HD std::uint32_t find_digit(Team const& team, std::uint32_t const* histogram, std::uint32_t wanted,
                                   std::uint32_t* found) {
  lane_range const mine = contiguous_range(team, warp_digits);  // counted from the top
  std::uint32_t sum = 0;
  for (std::uint32_t i = mine.begin; i < mine.end; ++i) sum += histogram[warp_digits - 1 - i];
  scan_result const s = team.scan(sum);
  if (s.before < wanted && s.before + sum >= wanted) {
    std::uint32_t above = s.before, i = mine.begin;
    while (above + histogram[warp_digits - 1 - i] < wanted) above += histogram[warp_digits - 1 - i++];
    found[0] = warp_digits - 1 - i;
    found[1] = above;
  }
  if (s.total < wanted && team.lane() == 0) {
    found[0] = 0;
    found[1] = s.total - histogram[0];
  }
  team.sync();
  return s.total;
}

/// Does what select_k does. Collective.
template <class Team, class Key, class Mark>
KVMELD_HD std::uint32_t select_on_warps(Team const& team, std::uint32_t n, std::uint32_t k, Key key,
                                        Mark mark) {
  constexpr std::uint32_t at_once = 4;  // keys that a lane reads before it counts them
  auto const& block = team.block();     // every block counts for itself, and looks for the digit in the sums
  std::uint32_t* const histogram = block.template scratch<std::uint32_t>(warp_digits);
  std::uint32_t* const found = block.template scratch<std::uint32_t>(2);
  if (k == 0) return 0;
  std::uint32_t prefix = 0;
  std::uint32_t wanted = k;  // still to be found among the keys that share the prefix
  std::uint32_t eligible = 0;
  for (std::uint32_t shift = 32; shift > 0;) {
    std::uint32_t const bits = min_of(warp_digit_bits, shift);
    std::uint32_t const above = shift;  // bits of the prefix begin here
    shift -= bits;
    block.for_each(warp_digits, [&](std::uint32_t b) { histogram[b] = 0; });
    block.sync();
    std::uint32_t const lanes = team.lanes();
    for (std::uint32_t first = team.lane(); first < n; first += at_once * lanes) {
      std::uint32_t x[at_once];
      for (std::uint32_t j = 0; j < at_once; ++j) {
        std::uint32_t const i = first + j * lanes;
        x[j] = i < n ? key(i) : 0;
      }
      for (std::uint32_t j = 0; j < at_once; ++j) {
        if (x[j] == 0 || (above != 32 && x[j] >> above != prefix)) continue;
        team.fetch_add(&histogram[(x[j] >> shift) & ((1u << bits) - 1u)], 1);
      }
    }
    team.sync();
    team.add_up_blocks(histogram, warp_digits);
    std::uint32_t const keys = find_digit(block, histogram, wanted, found);
    if (above == 32) eligible = keys;
    prefix = prefix << bits | found[0];
    wanted -= min_of(wanted, found[1]);
    block.sync();
  }
  // Keys above the threshold are all taken; of those equal to it, the first `wanted` by index.
  std::uint32_t const threshold = prefix;
  std::uint32_t equal = 0, turn = 0;
  remembered_turns above, ties;
  visit_warp_range(team, n, [&](std::uint32_t i, bool there) {
    std::uint32_t const x = there ? key(i) : 0;
    above.note(turn, x > threshold);
    ties.note(turn++, x != 0 && x == threshold);
    equal += x != 0 && x == threshold ? 1u : 0u;
  });
  std::uint32_t rank = team.shuffle(team.scan(equal).before, 0);
  std::uint32_t const below = (1u << team.lane() % warp_size) - 1u;
  turn = 0;
  visit_warp_range(team, n, [&](std::uint32_t i, bool there) {
    bool const is_above = above.at(turn, [&] { return there && key(i) > threshold; });
    bool const is_tie = ties.at(turn++, [&] { return there && threshold != 0 && key(i) == threshold; });
    std::uint32_t const all = team.ballot(is_tie);
    if (is_above || (is_tie && rank + count_bits(all & below) < wanted)) mark(i);
    rank += count_bits(all);
  });
  team.sync();
  return min_of(k, eligible);
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
