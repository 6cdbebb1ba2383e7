// A policy of one's own in twenty lines: an identifier that pairs every second entry with its older neighbour, the
// least selective merging there is. Everything else (selection, weights, degrees, compaction) is kvmeld's.
#include "support.hpp"

#include <cstdint>
#include <iostream>

struct pair_neighbours {
  static constexpr bool repeats = false, meets_budget = false, needs_score = false;
  static constexpr bool makes_sets = true, needs_keys = false;
  template <class Team>
  void admit(Team const& team, kvmeld::wave_ref const& wave, std::uint32_t item, std::uint32_t) const {
    kvmeld::track_state& track = wave.state[item];
    std::uint32_t const pairs = track.live_count / 2;  // entries of the live-slot list, two by two
    team.for_each(pairs, [&](std::uint32_t i) {
      kvmeld::slot_t const* const pair = wave.live + wave.at(item, 2 * i);
      wave.step.fates[wave.step.at(item, pair[1])] = kvmeld::fate::merge;
      wave.step.target[wave.step.at(item, pair[1])] = pair[0];
    });
    if (team.lane() == 0) track.merged += pairs;
  }
};

int main() {
  examples::engine_tensors engine;
  kvmeld::policy mine{kvmeld::score::none{}, kvmeld::select::sinks_and_recents{}, pair_neighbours{},
                      kvmeld::merge::degree_weighted{}};
  kvmeld::merged_cache cache{kvmeld::host_executor{}, mine, kvmeld::kv{engine.keys(), engine.values()},
                             kvmeld::cache_options{engine.extent}};
  cache.open(0, 1000);
  cache.compress({0}, kvmeld::budget::ratio(0.6));
  std::cout << "entries left: " << cache.length(0, 0, 0) << " (80 kept whole, 920 paired)\n";
  return cache.length(0, 0, 0) == 540 ? 0 : 1;
}
