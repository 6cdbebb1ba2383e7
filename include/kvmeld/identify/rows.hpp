// Rows of the live-slot list as floats in scratch.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Loads the rows of slots[0 .. count) into out[i * ld + c], consecutive slots as one tile. Cooperative; no
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

}  // namespace KVMELD_ABI
}  // namespace kvmeld
