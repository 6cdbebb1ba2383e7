// A policy of one's own on a device: an identifier that pairs every second entry with its older neighbour.
// The same struct runs on the host: `team` is a block of threads here and one lane there.
#include "support.cuh"

struct pair_neighbours {
  template <class Round> KVMELD_HD void admit(Round& round) const {
    round.for_each(round.live() / 2, [&](std::uint32_t i) { round.merge(2 * i + 1, 2 * i); });
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
  return cache.longest(0) == 540 && all_printed() ? 0 : 1;
}
