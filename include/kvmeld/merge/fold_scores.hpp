// Scores of a set add: a merged entry is as important as its members together.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Adds up the wave's scores of every set of the step and writes the sum at the pivot. link_phase has listed
/// the sets. Later rounds weigh by this score, and the fallback ranks by it. The phase runs after weighing,
/// because merge functions need the members' own scores.
struct fold_scores_phase {
  static constexpr std::uint32_t block = 1024;  ///< slots per tile: lanes of a light phase on a device
  wave_ref wave;

  static constexpr bool light = true;
  std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, block); }
  std::size_t scratch_bytes(int) const { return 0; }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = wave.state[t.item].length;
    std::uint32_t const begin = t.index * block;
    if (begin >= n || wave.state[t.item].merged == 0) return;
    team.for_each(min_of(block, n - begin), [&](std::uint32_t i) {
      member_list const m = members_of(wave, t.item, begin + i);
      if (m.count < 2) return;
      float sum = 0.0f;
      for (std::uint32_t j = 0; j < m.count; ++j) sum += wave.score[wave.at(t.item, m.slots[j])];
      wave.score[wave.at(t.item, begin + i)] = sum;
    });
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
