// Policies of one's own: an identifier that pairs every second entry with its older neighbour, the least
// selective merging there is, one that looks at keys, a merge function that prefers the newer of a pair, a
// selector that pins every eighth token, and a score of values.
// Everything else (selection, degrees, compaction) is kvmeld's.
#include "all_printed.h"
#include "support.hpp"

#include <cstdint>
#include <iostream>

struct pair_neighbours {
  template <class Round> void admit(Round& round) const {
    round.for_each(round.live() / 2, [&](std::uint32_t i) { round.merge(2 * i + 1, 2 * i); });
  }
};

struct closer_neighbour {
  static constexpr kvmeld::identify_facts facts{&kvmeld::identify_facts::needs_keys};

  template <class Round> void admit(Round& round) const {
    round.for_each(round.live() / 2, [&](std::uint32_t pair) {
      std::uint32_t const i = 2 * pair + 1;
      float const older = round.similarity(i, i - 1);
      float const newer = i + 1 < round.live() ? round.similarity(i, i + 1) : -1.0f;
      if (older >= newer) round.propose(i, i - 1, older);
      if (older < newer) round.propose(i, i + 1, newer);
    });
    round.merge_best(round.excess());
  }
};

struct towards_the_newest : kvmeld::merge::defaults {
  float weight(kvmeld::set_view const& set, std::uint32_t i) const {
    return set.degree(i) * (i + 1 == set.size() ? 2.0f : 1.0f);
  }
};

struct every_eighth : kvmeld::select::defaults {
  kvmeld::role choose(kvmeld::select_view const& track, std::uint32_t i) const {
    bool const stays = track.position(i) % 8 == 0 || i + 64 >= track.length();
    return stays ? kvmeld::role::pinned : kvmeld::role::mergeable;
  }
};

struct value_norm {
  static constexpr kvmeld::score_facts facts{kvmeld::score_kind::weights, &kvmeld::score_facts::reads_rows};

  template <class Team, class Rows>
  void evaluate(Team const& team, kvmeld::score_view const&, Rows const& rows, float* out) const {
    rows.values.norms(team, [&](kvmeld::slot_t s, float norm) { out[s] = norm; });
  }
};

// The entries left of 1,000 tokens if a policy may keep 600.
template <class Policy> std::uint32_t left_by(Policy const& policy) {
  examples::engine_tensors engine;
  kvmeld::merged_cache cache{kvmeld::host_executor{}, policy, kvmeld::kv{engine.keys(), engine.values()},
                             kvmeld::cache_options{engine.extent}};
  cache.open(0, 1000);
  cache.compress({0}, kvmeld::budget::ratio(0.6));
  return cache.length(0, 0, 0);
}

int main() {
  kvmeld::policy mine{kvmeld::score::none{}, kvmeld::select::sinks_and_recents{}, pair_neighbours{},
                      kvmeld::merge::degree_weighted{}};
  std::uint32_t const paired = left_by(mine);
  std::cout << "entries left: " << paired << " (80 kept whole, 920 paired)\n";

  kvmeld::policy newer{kvmeld::score::none{}, kvmeld::select::sinks_and_recents{}, pair_neighbours{},
                       towards_the_newest{}};
  std::uint32_t const weighted = left_by(newer);
  std::cout << "the same number, with other weights: " << weighted << "\n";

  kvmeld::policy alike{kvmeld::score::none{}, kvmeld::select::sinks_and_recents{}, closer_neighbour{},
                       kvmeld::merge::degree_weighted{}};
  std::uint32_t const similar = left_by(alike);
  std::cout << "as many as the budget allows, the most similar merged: " << similar << "\n";

  kvmeld::policy sparse{kvmeld::score::none{}, every_eighth{}, kvmeld::identify::evict_rest{},
                        kvmeld::merge::drop{}};
  std::uint32_t const spaced = left_by(sparse);
  std::cout << "every eighth and the last 64: " << spaced << "\n";

  kvmeld::policy large{value_norm{}, kvmeld::select::top{}, kvmeld::identify::evict_rest{},
                       kvmeld::merge::drop{}};
  std::uint32_t const largest = left_by(large);
  std::cout << "of the older entries, those with the largest values: " << largest << "\n";
  bool const right = paired == 540 && weighted == 540 && similar == 600 && spaced == 181 && largest == 600;
  return right && all_printed() ? 0 : 1;
}
