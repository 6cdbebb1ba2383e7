// Clones of a cache lie over tensors of their own; rebind points a cache elsewhere. Sizes it reports.
#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

namespace copies_cases {

namespace {

using kvmeld::budget;

constexpr kvmeld::shape extent{1, 2, 2, 1, 12, 8, 64};

auto chelsea() {
  return kvmeld::preset::chelsea::with_schedule({0.4, 0.0, 0, 0.05}, kvmeld::quantity::entries(2),
                                                kvmeld::quantity::entries(4));
}

struct filled {
  support::engine_memory<float> memory{extent};
  filled() {
    support::dice d(1);
    for (std::uint32_t s : {0u, 1u}) memory.fill_sequence(d, s, 0, 60, support::texture::walk);
  }
};

// Rows of 12 channels 3 elements apart lie in each other.
template <class Cache> bool refuses_wrong_strides(Cache const& cache, float* keys) {
  auto tensors = kvmeld::kv{cache.ref().keys, cache.ref().values};
  tensors.keys = kvmeld::strided<float>(keys, {0, 0, 0, 3, 1}, extent, extent.key_dim);
  try {
    (void)cache.clone(tensors);
  } catch (kvmeld::invalid_argument const& refusal) {
    return std::string(refusal.what()).find("rebind: keys") == 0;
  }
  return false;
}

}  // namespace

TEST_CASE("a clone over copied tensors goes its own way") {
  using cache_type = decltype(support::make_cache(std::declval<filled&>().memory, chelsea()));
  static_assert(!std::is_copy_constructible_v<cache_type> && !std::is_copy_assignable_v<cache_type>, "");
  static_assert(std::is_nothrow_move_constructible_v<cache_type>, "");
  static_assert(std::is_nothrow_move_assignable_v<cache_type>, "");
  filled x;
  auto cache = support::make_cache(x.memory, chelsea(), support::with_plan());
  cache.open(0, 60);
  cache.open(1, 50);
  cache.plan({1}, budget::entries(40));
  auto memory = x.memory;
  auto copy = cache.clone(memory.tensors());
  CHECK(support::ledger_bytes(copy) == support::ledger_bytes(cache));
  CHECK(copy.ledger().length != cache.ledger().length);

  auto const ledger = support::ledger_bytes(cache);
  auto const held = x.memory;
  copy.apply();  // the plan came along
  CHECK(copy.longest(1) == 40);
  copy.compress({0}, budget::entries(20));
  CHECK(copy.longest(0) == 20);
  CHECK(support::ledger_bytes(cache) == ledger);
  CHECK(x.memory == held);
  CHECK(cache.planned_work().sequence_count == 1);

  cache.apply();
  cache.compress({0}, budget::entries(20));
  CHECK(support::ledger_bytes(copy) == support::ledger_bytes(cache));
  CHECK(x.memory == memory);

  CHECK(refuses_wrong_strides(cache, memory.keys.data()));

  // Assignment replaces everything; moving takes it along.
  auto other = support::make_cache(memory, chelsea(), support::with_plan());
  other.open(0, 9);
  other = cache.clone(memory.tensors());
  CHECK(support::ledger_bytes(other) == support::ledger_bytes(cache));
  CHECK(other.ledger().length != cache.ledger().length);
  auto const bytes = support::ledger_bytes(other);
  auto const moved = std::move(other);
  CHECK(support::ledger_bytes(moved) == bytes);
  CHECK(moved.longest(0) == 20);
}

TEST_CASE("rebind points the cache at other tensors of the same contents") {
  filled x;
  auto expected = x.memory;
  auto reference = support::make_cache(expected, chelsea());
  auto cache = support::make_cache(x.memory, chelsea());
  for (auto* c : {&cache, &reference}) {
    c->open(0, 60);
    c->compress({0}, budget::entries(40));
  }
  support::engine_memory<float> elsewhere(extent, "HSLTC");
  support::for_tracks(extent, 0, [&](kvmeld::track t) {
    for (kvmeld::slot_t s = 0; s < 60; ++s) {
      support::put_row(elsewhere.tensors().keys, t, s, support::get_row(x.memory.tensors().keys, t, s));
      support::put_row(elsewhere.tensors().values, t, s, support::get_row(x.memory.tensors().values, t, s));
    }
  });
  auto const left = x.memory;
  cache.rebind(elsewhere.tensors());
  cache.compress({0}, budget::entries(20));
  reference.compress({0}, budget::entries(20));
  CHECK(x.memory == left);
  CHECK(support::ledger_bytes(cache) == support::ledger_bytes(reference));
  support::for_tracks(extent, 0, [&](kvmeld::track t) {
    for (kvmeld::slot_t s = 0; s < 20; ++s) {
      CHECK(support::same_bits(support::get_row(cache.ref().keys, t, s),
                               support::get_row(reference.ref().keys, t, s)));
      CHECK(support::same_bits(support::get_row(cache.ref().values, t, s),
                               support::get_row(reference.ref().values, t, s)));
    }
  });
}

TEST_CASE("what a cache says about its memory") {
  filled x;
  auto cache = support::make_cache(x.memory, kvmeld::preset::snapkv::with_window(8));
  using local = kvmeld::score::local;
  CHECK(kvmeld::detail::cache_bytes(cache.options(), kvmeld::channels_of(cache.policy().score),
                                    cache.executor().workers()) ==
        cache.ledger_bytes() + cache.workspace_bytes());
  CHECK(kvmeld::ledger_bytes_per_entry(kvmeld::channels_of(kvmeld::score::none{})) == 9);
  CHECK(kvmeld::ledger_bytes_per_entry(kvmeld::score::global::channels()) == 13);
  CHECK(kvmeld::ledger_bytes_per_entry(local::channels()) == 17);
  std::size_t const entries = extent.slots() * kvmeld::ledger_bytes_per_entry(local::channels());
  CHECK(cache.ledger_bytes() >= entries);
  CHECK(cache.ledger_bytes() <= entries + 16 * 64 + 200);
  CHECK(cache.workspace_bytes() > 0);
  CHECK(cache.options().wave_tracks == 2);
  CHECK(support::make_cache(x.memory, chelsea(), {}, 64).options().wave_tracks == extent.tracks());
  kvmeld::cache_options options{};
  options.wave_tracks = 3;
  auto const larger = support::make_cache(x.memory, kvmeld::preset::snapkv::with_window(8), options);
  CHECK(larger.options().wave_tracks == 3);
  CHECK(larger.workspace_bytes() > cache.workspace_bytes());
  options.whole_plan = true;
  CHECK(support::make_cache(x.memory, kvmeld::preset::snapkv::with_window(8), options).workspace_bytes() >
        larger.workspace_bytes());
  options.members = 100;
  auto const members = support::make_cache(x.memory, kvmeld::preset::snapkv::with_window(8), options);
  CHECK(members.ledger_bytes() >= larger.ledger_bytes() + std::size_t{extent.tracks()} * 100 * 16);
  CHECK(cache.policy().score.window == 8);
}

TEST_CASE("a default wave: two tracks per worker, or as many as 1 MiB of workspace per worker holds") {
  auto const wave = [](std::uint32_t capacity, std::uint32_t workers, kvmeld::cache_options options = {}) {
    options.extent = {32, 32, 8, 1, 128, 128, capacity};  // 8192 tracks
    return kvmeld::detail::tracks_of_wave(options, workers);
  };
  // 83 bytes per entry and little more: 53 KB for 640 entries, 340 KB for 4096, 5.4 MB for 65536.
  CHECK(wave(640, 66) > 1250);
  CHECK(wave(640, 66) < 1303);
  CHECK(wave(640, 1) == 19);
  CHECK(wave(4096, 2) == 6);
  CHECK(wave(4096, 1) == 3);
  CHECK(wave(65536, 2) == 4);
  CHECK(wave(65536, 66) == 12);   // 64 MiB
  CHECK(wave(1 << 20, 66) == 1);  // 87 MB
  CHECK(wave(16, 66) == 8192);    // all of them
  kvmeld::cache_options options;
  options.wave_tracks = 5;
  CHECK(wave(640, 66, options) == 5);
  options = {};
  options.scope = kvmeld::plan_scope::layer;  // eight heads have one plan
  CHECK(wave(4096, 1, options) == 8);
  CHECK(wave(640, 1, options) == 16);
  for (std::uint32_t capacity : {1u, 100u, 3000u, 40000u}) {
    kvmeld::cache_options made;
    made.extent = {32, 32, 8, 1, 128, 128, capacity};
    made.wave_tracks = wave(capacity, 4);
    CAPTURE(capacity);
    CHECK(made.wave_tracks >= 8);
    CHECK(made.wave_tracks <= made.extent.tracks());
    CHECK((made.wave_tracks == 8 || kvmeld::workspace_bytes(made.extent, made.wave_tracks) <= 4u << 20));
  }
}

TEST_CASE("a cache takes its default wave from its executor, and the memory that cache_bytes says") {
  kvmeld::shape const s{4, 8, 4, 1, 4, 4, 4000};  // 128 tracks of 83 bytes per entry and little more
  support::engine_memory<float> memory(s);
  for (std::uint32_t threads : {1u, 3u, 20u}) {
    kvmeld::merged_cache const cache(kvmeld::host_executor(threads), chelsea(), memory.tensors(),
                                     kvmeld::cache_options{s});
    CAPTURE(threads);
    CHECK(cache.options().wave_tracks == 3 * threads + threads / 6);  // 3.157 per worker
    CHECK(kvmeld::detail::cache_bytes(kvmeld::cache_options{s}, kvmeld::channels_of(cache.policy().score, s),
                                      threads) == cache.ledger_bytes() + cache.workspace_bytes());
  }
}

TEST_CASE("a wave of any size gives the same result") {
  filled x;
  support::byte_list first;
  for (std::uint32_t wave : {1u, 2u, 3u, 4u}) {
    auto memory = x.memory;
    kvmeld::cache_options options{};
    options.wave_tracks = wave;
    auto cache = support::make_cache(memory, chelsea(), options);
    cache.open(0, 60);
    cache.open(1, 55);
    cache.compress({1, 0}, budget::entries(20));
    auto bytes = support::ledger_bytes(cache);
    for (auto const& part : {support::bytes_of(memory.keys), support::bytes_of(memory.values)})
      bytes.insert(bytes.end(), part.begin(), part.end());
    if (first.empty()) first = bytes;
    CHECK(first == bytes);
  }
}

}  // namespace copies_cases
