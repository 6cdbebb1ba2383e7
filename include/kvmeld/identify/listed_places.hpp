// SPDX-License-Identifier: Apache-2.0
// Places of the live-slot list: rows with NaN or infinity are not in the list, but keep their places.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/compact_indices.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The live-slot list of one track, by index and by place.
class listed_places {
public:
  /// The list of one track of a wave, after round_phase has opened the round.
  KVMELD_HD listed_places(wave_ref const& wave, std::uint32_t item)
      : field_(wave.live + wave.at(item, 0)),
        place_(wave.place + wave.at(item, 0)),
        numbers_(wave.state[item].live_count),
        places_(wave.state[item].places) {}

  /// Slot of entry `i` of the list.
  KVMELD_HD slot_t slot(std::uint32_t i) const { return field_[i]; }
  /// Place of entry `i` of the list.
  KVMELD_HD std::uint32_t place(std::uint32_t i) const { return place_[i]; }
  /// Number of places, with those of rows with NaN or infinity.
  KVMELD_HD std::uint32_t places() const { return places_; }

  /// Whether entries i and i + 1 can never be in one set of consecutive entries: a row with NaN or infinity
  /// lies between them, or, if `break_at_gap`, any entry lies between them.
  KVMELD_HD bool apart(std::uint32_t i, bool break_at_gap) const {
    return place_[i] + 1 != place_[i + 1] || (break_at_gap && field_[i] + 1 != field_[i + 1]);
  }

  /// Index of the first entry of the list at `place` or behind it; the number of entries of the list if there
  /// is none.
  KVMELD_HD std::uint32_t from(std::uint32_t place) const {
    std::uint32_t const others = places_ - numbers_;
    std::uint32_t low = place - min_of(place, others), high = min_of(place, numbers_);
    while (low < high) {
      std::uint32_t const middle = (low + high) / 2;
      if (place_[middle] < place) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  /// Finds the entries of the list at the `count` places first, first + 2, first + 4 ... indices[r] = index
  /// of the r-th of them; returns how many there are. Collective; barrier at the end.
  template <class Team>
  KVMELD_HD std::uint32_t every_other(Team const& team, std::uint32_t first, std::uint32_t count,
                                      std::uint32_t* indices) const {
    if (count == 0) return 0;
    if (numbers_ == places_) {
      team.for_each(count, [&](std::uint32_t i) { indices[i] = first + 2 * i; });
      team.sync();
      return count;
    }
    std::uint32_t const begin = from(first);
    return compact_indices(
        team, from(first + 2 * count - 1) - begin,
        [&](std::uint32_t i) { return (place_[begin + i] - first) % 2 == 0; },
        [&](std::uint32_t rank, std::uint32_t i) { indices[rank] = begin + i; });
  }

private:
  slot_t const* field_;
  std::uint32_t const* place_;
  std::uint32_t numbers_, places_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
