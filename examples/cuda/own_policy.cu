// A policy of one's own on a device: an identifier that pairs every second entry with its older neighbour. The same
// struct runs on the host: `team` is a block of threads here and one lane there.
#include "support.cuh"

struct pair_neighbours {
  static constexpr bool repeats = false, meets_budget = false, needs_score = false, makes_sets = true,
                        needs_keys = false;
  KVMELD_HD std::uint32_t tiles(kvmeld::shape const&) const { return 0; }
  KVMELD_HD std::size_t scratch_bytes(kvmeld::shape const&, int) const { return 0; }
  template <class Team, class Keys>
  KVMELD_HD void propose(Team const&, kvmeld::wave_ref const&, Keys const&, kvmeld::tile const&) const {}
  template <class Team>
  KVMELD_HD void admit(Team const& team, kvmeld::wave_ref const& wave, std::uint32_t item,
                       std::uint32_t) const {
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
  if (!examples::has_device()) return examples::no_device;
  examples::engine_tensors<__half> engine({2, 1, 8, 4, 128, 128, 1024});
  kvmeld::policy mine{kvmeld::score::none{}, kvmeld::select::sinks_and_recents{}, pair_neighbours{},
                      kvmeld::merge::degree_weighted{}};
  kvmeld::merged_cache cache{kvmeld::cuda_executor<>(), mine, kvmeld::kv{engine.keys(), engine.values()},
                             kvmeld::cache_options{engine.extent}};
  cache.open(0, 1000);
  cache.compress({0}, kvmeld::budget::ratio(0.6));
  cache.sync_lengths(0);
  std::cout << "entries left: " << cache.longest(0) << " (80 kept whole, 920 paired)\n";
  return cache.longest(0) == 540 ? 0 : 1;
}
