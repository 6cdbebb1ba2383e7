// Rows of the live-slot list as floats in scratch, and their cosines.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cmath>
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

/// 1 / ||row||; 0 for a zero row, so that its cosine with every row is 0.
KVMELD_HD inline float inverse_norm(float const* row, std::uint32_t n) {
  float const square = dot(row, row, n);
  return square > 0.0f ? 1.0f / std::sqrt(square) : 0.0f;
}

/// Cosine from a dot product and the two inverse norms. All code multiplies in this order.
KVMELD_HD inline float cosine(float product, float inverse_a, float inverse_b) {
  return (product * inverse_a) * inverse_b;
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
