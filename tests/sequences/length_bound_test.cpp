// What the host knows of lengths without looking: never too little, and for exact policies the lengths
// themselves.
#include "life.hpp"

#include <kvmeld/cache/plan_readings.hpp>

#include "cache/refusal.hpp"
#include "layout/tensors.hpp"
#include "support/fenced_executor.hpp"

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace length_bound_cases {

using namespace sequences_test;

namespace {

constexpr kvmeld::shape extent{2, 3, 2, 1, 12, 8, 96};

// A host whose results would have to be waited for.
struct deferred_executor : kvmeld::host_executor {
  static constexpr bool immediate = false;
  using transfer = support::slow_transfer;
  using host_executor::host_executor;
};

template <class Policy> auto deferred_cache(support::engine_memory<float>& memory, Policy const& policy) {
  kvmeld::cache_options options{};
  options.extent = memory.extent;
  options.whole_plan = true;
  options.members = kvmeld::shares_entries<typename Policy::merge_type>::value ? members : 0;
  return kvmeld::merged_cache{deferred_executor(1), policy, memory.tensors(), options};
}

// As the ledger has it, which is in host memory here.
template <class Cache> std::uint32_t held(Cache const& cache, std::uint32_t slot) {
  std::uint32_t most = 0;
  support::for_tracks(extent, slot,
                      [&](kvmeld::track t) { most = std::max(most, cache.ledger().length[t.index]); });
  return most;
}

// Scores for every entry, and a call that tells the host of them: it does not look.
template <class Cache> void observe(Cache& cache, support::dice& d, std::uint32_t slot) {
  score(cache, d, slot);
  std::vector<float> const nothing(extent.query_heads() * (extent.capacity + members), 0.0f);
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer)
    support::observe_numbers(cache, {layer, slot, 1}, nothing.data(), 1, extent.capacity + members);
}

// Random calls; bad rows every so often.
template <class Policy> void bounds(char const* name, Policy const& policy, kvmeld::shortfall fallback) {
  CAPTURE(std::string(name));
  CAPTURE(int(fallback));
  support::dice d(12);
  std::size_t tighter = 0;
  for (int run = 0; run < 12; ++run) {
    support::engine_memory<float> memory(extent);
    auto cache = deferred_cache(memory, policy);
    bool const exact = cache.exact(fallback);
    bool known[3] = {true, true, true};
    auto const check = [&] {
      for (std::uint32_t q = 0; q < 3; ++q) {
        CHECK(cache.length_bound(q) >= held(cache, q));
        if (exact && known[q]) CHECK(cache.lengths_known(q));
        if (cache.lengths_known(q)) CHECK(cache.length_bound(q) == held(cache, q));
        CHECK(cache.is_open(q) == (cache.ledger().is_open[q] != 0));
      }
    };
    for (std::uint32_t q = 0; q < 2; ++q) {
      open(cache, d, q, d.between(20, 60), d.below(3));
      observe(cache, d, q);
    }
    for (int step = 0; step < 14; ++step) {
      std::uint32_t const q = d.below(2);
      if (d.chance(0.3)) {
        support::for_tracks(extent, q, [&](kvmeld::track t) {
          if (d.chance(0.5) && cache.ref().length(t) > 12) {
            support::put_row(memory.tensors().keys, t, d.between(8, 12),
                             std::vector<float>(12, kvmeld::bits_float(0x7fc00000u)));
          }
        });
      }
      if (cache.length_bound(q) + 5 <= extent.capacity) {
        write_rows(cache, d, q, 4);
        cache.append({q}, {4});
        check();
        cache.commit({q}, {d.below(5)});
        check();
        observe(cache, d, q);
      }
      // sinks, frozen and new ones, and the share a paper's own setting pins whatever the budget
      std::uint32_t const least = std::max(18u, cache.length_bound(q) * 3 / 10 + 6);
      std::vector<std::uint32_t> table(extent.tracks());
      for (std::uint32_t& n : table) n = d.between(least, 40);
      auto const allowed =
          d.chance(0.4) ? budget::per_track(table.data()) : budget::entries(d.between(least, 40));
      std::uint32_t const after = cache.length_after(q, allowed, fallback);
      tighter += after < cache.length_bound(q) ? 1u : 0u;
      if (d.chance(0.3)) {
        cache.plan({q}, allowed, fallback);
        cache.apply();
        known[q] = false;
      } else {
        cache.compress({q}, allowed, fallback);
        CHECK(cache.length_bound(q) == after);
      }
      check();
      if (cache.compressed_at(q) < cache.tokens(q) && d.chance(0.5)) {
        cache.truncate(q, cache.tokens(q) - 1);
        check();
      }
      if (d.chance(0.2)) {
        if (cache.ledger().is_open[2] != 0) cache.close(2);
        cache.fork(q, 2);
        known[2] = known[q];
        check();
      }
      if (d.chance(0.1)) {
        cache.close(q);
        open(cache, d, q, d.between(20, 60), d.below(3));
        observe(cache, d, q);
        known[q] = true;
        check();
      }
      if (d.chance(0.3)) {
        cache.sync_lengths(q);
        CHECK(cache.lengths_known(q));
        CHECK(cache.length_bound(q) == held(cache, q));
        known[q] = true;
      }
    }
  }
  if (kvmeld::detail::is_exact(policy, fallback)) CHECK(tighter > 20);
}

}  // namespace

TEST_CASE("bounds hold for every preset and are the lengths for exact ones") {
  each_policy([](char const* name, auto const& policy) {
    for (auto fallback : {kvmeld::shortfall::keep, kvmeld::shortfall::evict_lowest})
      bounds(name, policy, fallback);
  });
}

TEST_CASE("to know lengths, the host copies numbers of tracks and sequences, and nothing of the entries") {
  struct counting_executor : deferred_executor {
    using deferred_executor::deferred_executor;
    std::size_t* copied = nullptr;
    void download(void* to, void const* from, std::size_t bytes) const {
      *copied += bytes;
      deferred_executor::download(to, from, bytes);
    }
  };
  std::size_t copied = 0;
  counting_executor executor(1);
  executor.copied = &copied;
  support::engine_memory<float> memory(extent);
  kvmeld::cache_options options{};
  options.extent = extent;
  auto const policy = kvmeld::preset::chelsea::with_schedule(
      {0.45, 0.05, 3, 0.05}, kvmeld::quantity::entries(2), kvmeld::quantity::entries(4));
  kvmeld::merged_cache cache{executor, policy, memory.tensors(), options};
  cache.open(0, 60);
  CHECK(cache.lengths_known(0));
  cache.compress({0}, budget::entries(40), kvmeld::shortfall::keep);
  CHECK_FALSE(cache.lengths_known(0));
  CHECK(copied == 0);
  cache.sync_lengths(0);
  CHECK(cache.lengths_known(0));
  CHECK(cache.length_bound(0) == held(cache, 0));
  CHECK(copied > 0);
  CHECK(copied < extent.slots());  // the flags of entries alone are a byte each
  // A saved sequence is one of three.
  kvmeld::arena whole;
  kvmeld::detail::carve_ledger(whole, options, cache.ledger().channels, cache.ledger().table_floats);
  copied = 0;
  std::vector<std::byte> const saved = cache.save(0);
  CHECK(copied > saved.size() / 2);
  CHECK(copied < whole.bytes() / 2);
  CHECK_THROWS_WITH_AS(cache.lengths_known(3), "lengths_known: sequence is 3; it must be 0 to 2",
                       kvmeld::invalid_argument);
  CHECK_THROWS_WITH_AS(cache.is_open(3), "is_open: sequence is 3; it must be 0 to 2",
                       kvmeld::invalid_argument);
}

TEST_CASE("which policies are exact") {
  using kvmeld::shortfall;
  support::engine_memory<float> memory(extent);
  support::each_eviction_preset([&](char const*, auto const& policy) {
    // Where a threshold decides, only a bound is known.
    bool const counts = kvmeld::facts_of<kvmeld::select_facts>(policy.select).pins_exactly;
    CHECK(support::make_cache(memory, policy).exact() == counts);
    CHECK(support::make_cache(memory, policy).exact(shortfall::keep) == counts);
  });
  support::each_chelsea_preset([&](char const*, auto const& policy) {
    CHECK(support::make_cache(memory, policy).exact());
    CHECK_FALSE(support::make_cache(memory, policy).exact(shortfall::keep));
  });
  auto const budgeted = kvmeld::preset::kvmerger::for_budget();
  CHECK(kvmeld::detail::is_exact(budgeted, shortfall::evict_lowest));
  CHECK_FALSE(kvmeld::detail::is_exact(budgeted, shortfall::keep));
  CHECK_FALSE(kvmeld::detail::is_exact(kvmeld::preset::kvmerger::paper_50(), shortfall::evict_lowest));
  CHECK(kvmeld::detail::is_exact(kvmeld::preset::ems::shared(), shortfall::keep));
  CHECK(kvmeld::detail::is_exact(kvmeld::preset::d2o::defaults(), shortfall::keep));
}

TEST_CASE("pages that may be shared keep a track above its budget, and the host's bound stays above it") {
  using tensor = layout_test::paged_tensor<float, 8>;
  tensor keys(extent, extent.key_dim), values(extent, extent.value_dim);
  for (std::uint32_t page = 0; page < 3; ++page) keys.shared[static_cast<std::size_t>(keys.table[page])] = 1;
  kvmeld::cache_options options{};
  options.extent = extent;
  options.budgets_over = kvmeld::budget_scope::layer;
  auto const policy = kvmeld::preset::h2o::defaults();
  auto const in_scope = [](kvmeld::budget_scope among) { return budget::entries(10).over(among); };
  for (auto among : {kvmeld::budget_scope::head, kvmeld::budget_scope::layer}) {
    CAPTURE(int(among));
    kvmeld::merged_cache cache{deferred_executor(1), policy, kvmeld::kv{keys.view(), values.view()}, options};
    CHECK_FALSE(cache.exact());
    support::dice d(4);
    for (std::uint32_t q : {0u, 1u}) {
      cache.open(q, 40);
      observe(cache, d, q);
    }
    CHECK(cache.length_after(0, in_scope(among)) == 40);
    cache.compress({0, 1}, in_scope(among));
    CHECK(held(cache, 0) >= 24);
    for (std::uint32_t q : {0u, 1u}) {
      CHECK(cache.length_bound(q) == 40);
      cache.sync_lengths(q);
      CHECK(cache.length_bound(q) == held(cache, q));
    }
    CHECK((cache.warnings(0) & kvmeld::warning::budget_unreached) != 0);
    CHECK(held(cache, 1) <= 20);
    // Sequences within their budgets stay known.
    std::uint32_t const left = cache.length_bound(1);
    cache.compress({1}, in_scope(among));
    CHECK(cache.length_bound(1) == left);
    cache.append({1}, {extent.capacity - left});
  }
  // The host sees the rows itself: a budget that cannot be met is refused, one that can is met.
  auto const recent = kvmeld::preset::streaming_llm::with_sinks(2);
  kvmeld::merged_cache here{kvmeld::host_executor(1), recent, kvmeld::kv{keys.view(), values.view()},
                            options};
  here.open(0, 40);
  CHECK(here.exact());
  CHECK(here.length_after(0, budget::entries(30)) == 30);
  CHECK_FALSE(cache_test::refusal_of([&] { here.compress({0}, budget::entries(10)); }).empty());
  here.compress({0}, budget::entries(30));
  CHECK(here.length_bound(0) == 30);
}

TEST_CASE("pages without marks of shared ones are known to be writable") {
  std::vector<float> pool(64);
  std::vector<std::int32_t> table{0, 1};
  std::vector<std::uint8_t> marks(2, 0);
  auto const rows = [](auto const& from) {
    using pages = kvmeld::paged<std::decay_t<decltype(from)>>;
    return kvmeld::is_always_writable<pages>::value &&
           kvmeld::is_always_writable<kvmeld::per_layer<pages>>::value;
  };
  auto const listed = kvmeld::table_rows(table.data(), 2);
  CHECK(rows(kvmeld::pool_pages(pool.data(), listed)));
  CHECK(rows(kvmeld::pool_pages(pool.data(), listed, nullptr, 2)));
  CHECK(rows(kvmeld::pointed_pages<float>{}));
  CHECK_FALSE(rows(kvmeld::pool_pages(pool.data(), listed, marks.data(), 2)));
  CHECK(std::is_same_v<decltype(kvmeld::pool_pages(pool.data(), listed, marks.data())),
                       kvmeld::shareable_pages<float>>);
  CHECK_FALSE(rows(kvmeld::pool_pages(pool.data(), listed, static_cast<std::uint8_t const*>(nullptr))));
}

TEST_CASE("an evicting policy that pins less than its budget falls below it, and the host knows") {
  support::engine_memory<float> memory(extent);
  kvmeld::policy const policy{
      kvmeld::score::none{},
      kvmeld::select::sinks_and_recents{kvmeld::quantity::entries(4), kvmeld::quantity::of_length(0.25)},
      kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}};
  auto cache = deferred_cache(memory, policy);
  cache.open(0, 40);
  CHECK(cache.length_after(0, budget::entries(30)) == 14);
  cache.compress({0}, budget::entries(30));
  CHECK(held(cache, 0) == 14);
  CHECK(cache.length_bound(0) == 14);
}

TEST_CASE("a trigger is due by the bound, which an immediate executor keeps at the length") {
  support::engine_memory<float> memory(extent);
  support::dice d(3);
  auto const policy = kvmeld::preset::chelsea::with_schedule(support::steep(), kvmeld::quantity::entries(2),
                                                             kvmeld::quantity::entries(4));
  auto waits = deferred_cache(memory, policy);
  open(waits, d, 0, 50);
  waits.compress({0}, budget::entries(20), kvmeld::shortfall::keep);
  CHECK(held(waits, 0) == 20);
  CHECK(waits.length_bound(0) == 50);
  CHECK(waits.due(0, {20, 20}));
  waits.sync_lengths(0);
  CHECK_FALSE(waits.due(0, {20, 20}));
  auto immediate = support::make_cache(memory, policy);
  immediate.open(1, 50);
  immediate.compress({1}, budget::entries(20));
  CHECK(immediate.length_bound(1) == immediate.longest(1));
}

TEST_CASE("a plan that the host cannot read is not printed") {
  support::engine_memory<float> memory(extent);
  auto cache = deferred_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  cache.open(0, 20);
  cache.plan({0}, kvmeld::budget::entries(10));
  std::ostringstream out;
  CHECK(cache_test::refusal_of([&] { print_plan(out, cache); }) ==
        "print_plan: the executor is a device's; it must be one whose memory the host can read");
  CHECK(out.str().empty());
}

}  // namespace length_bound_cases
