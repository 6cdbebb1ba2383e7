// Admission: which of the proposed candidates become merges. A part of its own, so that a budget can replace a
// threshold without touching how candidates are found.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/select_k.hpp>
#include <kvmeld/core/wave.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// What an admission allows in one round: at most `quota` candidates, each with an order key of at least `least_key`.
struct admission {
  std::uint32_t quota;
  std::uint32_t least_key;
};

/// An admission rule answers `admission allow(state, middle, round)`, where `middle` is the size of the live-slot list
/// and `round` counts rounds of this sequence since it was opened; `static constexpr bool repeats` tells whether
/// further rounds may follow in one compression.

/// Admits the best candidates of a track (higher key, then lower index) and writes them into the step.
/// Cooperative; candidate i has a source of its own.
template <class Team>
KVMELD_HD void admit_best(Team const& team, wave_ref const& wave, std::uint32_t item,
                          std::uint32_t candidates, admission allowed) {
  candidate const* const list = wave.candidates + wave.at(item, 0);
  std::uint32_t const merged = select_k(
      team, candidates, allowed.quota,
      [&](std::uint32_t i) { return list[i].key >= allowed.least_key ? list[i].key : 0u; },
      [&](std::uint32_t i) {
        std::size_t const e = wave.step.at(item, list[i].source);
        wave.step.what[e] = fate::merge;
        wave.step.target[e] = list[i].target;
      });
  if (team.lane() == 0) wave.state[item].merged += merged;
  team.sync();
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
