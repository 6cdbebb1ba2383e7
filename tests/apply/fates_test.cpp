// apply_fates as the author of an operation uses it: marks say what goes, and all else is done once.
#include <doctest/doctest.h>

#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

namespace fates_cases {

namespace {

constexpr kvmeld::shape extent{2, 2, 2, 1, 8, 4, 64};

// Marks every second entry behind those that may not be written.
struct every_second_phase : kvmeld::detail::track_phase {
  template <class Team> void operator()(Team const& team, kvmeld::tile const& t) const {
    kvmeld::track_state const& s = wave.state[t.item];
    team.for_each(s.length, [&](std::uint32_t i) {
      if (i >= s.shielded && i % 2 == 1) wave.plan.fates[wave.plan.at(t.item, i)] = kvmeld::fate::drop;
    });
  }
};

// An operation outside of the cache, with a workspace of its own: waves of `tracks` tracks.
template <class Cache> void drop_every_second(Cache& cache, std::uint32_t sequence, std::uint32_t tracks) {
  kvmeld::arena sizing;
  kvmeld::carve_workspace(sizing, extent, tracks, tracks);
  std::vector<std::byte> memory(sizing.bytes());
  kvmeld::arena a(memory.data(), memory.size());
  auto const workspace = kvmeld::carve_workspace(a, extent, tracks, tracks);
  kvmeld::work_list const work{&sequence, 1, false};
  kvmeld::kv const rows{cache.ref().keys, cache.ref().values};
  kvmeld::detail::for_each_wave(workspace, cache.ledger(), work, 1, [&](kvmeld::wave_ref const& wave) {
    kvmeld::detail::launcher<kvmeld::host_executor> const launch{cache.executor(), wave};
    kvmeld::apply_fates(launch, rows, [](auto const& to) { to(every_second_phase{{to.wave}}); });
  });
}

template <class Cache> std::vector<kvmeld::position_t> positions(Cache const& cache, kvmeld::track t) {
  std::vector<kvmeld::position_t> out;
  for (kvmeld::slot_t s = 0; s < cache.ref().length(t); ++s) out.push_back(cache.ref().position(t, s));
  return out;
}

}  // namespace

TEST_CASE("an operation of one's own marks entries, and is no round of the policy") {
  for (std::uint32_t tracks : {1u, 3u, 4u}) {
    CAPTURE(tracks);
    support::engine_memory<float> memory(extent);
    support::dice d(4);
    memory.fill_sequence(d, 1, 0, 40, support::texture::noise);
    auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
    cache.open(1, 40, 3);
    cache.compress({1}, kvmeld::budget::entries(20));
    cache.append({1}, {4});
    cache.commit({1}, {4});
    CHECK(cache.rounds(1) == 1);
    auto const before = memory;
    auto const x = cache.ref();
    kvmeld::track const one = kvmeld::make_track(extent, 1, 1, 0);
    auto const were = positions(cache, one);
    drop_every_second(cache, 1, tracks);
    support::for_tracks(extent, 1, [&](kvmeld::track t) {
      CHECK(x.length(t) == 13);  // 0, 1 and 2 are frozen; then 4, 6, ..., 22
      for (kvmeld::slot_t s = 0; s < 13; ++s) {
        kvmeld::slot_t const from = s < 3 ? s : 2 * s - 2;
        CHECK(x.position(t, s) == were[from]);
        auto copy = before;
        CHECK(support::get_row(x.keys, t, s) == support::get_row(copy.tensors().keys, t, from));
        CHECK(support::get_row(x.values, t, s) == support::get_row(copy.tensors().values, t, from));
      }
    });
    // What the compression before it left is not settled once more, by any of the waves.
    CHECK(cache.rounds(1) == 1);
    CHECK(cache.compressed_at(1) == 40);
    CHECK(kvmeld::testing::invariant_problem(cache) == "");
    cache.truncate(1, 42);  // 42 goes, 41 and 43 went already
    support::for_tracks(extent, 1, [&](kvmeld::track t) { CHECK(positions(cache, t).back() == 40); });
    cache.compress({1}, kvmeld::budget::entries(8));
    CHECK(cache.rounds(1) == 2);
  }
}

}  // namespace fates_cases
