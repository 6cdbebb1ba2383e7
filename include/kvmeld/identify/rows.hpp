// SPDX-License-Identifier: Apache-2.0
// Rows of a track as an identifier reads them: as floats in scratch, or two of them by one lane.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Loads the rows of slots[0 .. count) into out[i * ld + c], consecutive slots as one tile. Collective; no
/// barrier.
template <class Team, class Layout>
KVMELD_HD void load_rows(Team const& team, Layout const& layout, track where, slot_t const* slots,
                         std::uint32_t count, float* out, std::uint32_t ld) {
  for (std::uint32_t i = 0; i < count;) {
    std::uint32_t run = 1;
    while (i + run < count && slots[i + run] == slots[i] + run) ++run;
    layout.load_tile(team, where, slots[i], run, 0, layout.channels(), out + std::size_t{i} * ld, ld);
    i += run;
  }
}

/// Cosine of the rows in two slots, computed by the calling lane; in any layout. Loads both rows. Fixed order
/// of summation.
template <class Layout> KVMELD_HD float row_cosine(Layout const& layout, track where, slot_t a, slot_t b) {
  constexpr std::uint32_t block = 32;
  float x[block], y[block], xy = 0.0f, xx = 0.0f, yy = 0.0f;
  serial_team const lane(nullptr, 0);
  std::uint32_t const d = layout.channels();
  for (std::uint32_t c = 0; c < d; c += block) {
    std::uint32_t const n = min_of(block, d - c);
    layout.load_tile(lane, where, a, 1, c, n, x, block);
    layout.load_tile(lane, where, b, 1, c, n, y, block);
    xy += dot(x, y, n);
    xx += dot(x, x, n);
    yy += dot(y, y, n);
  }
  return cosine(xy, inverse_norm(xx), inverse_norm(yy));
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
