// A call that finds no memory leaves a cache as it was, and can be made again. On the host and on a
// device whose memory the host cannot touch; tests/kokkos and tests/cuda run the same.
#include "faults/every_call.hpp"

#include <kvmeld/compose/any_cache.hpp>
#include <kvmeld/kvmeld.hpp>

#include <cstdint>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "support/fenced_executor.hpp"

namespace faults_cases {

using faults::every_call;
using faults::extent;
using faults::usual_limits;
using kvmeld::quantity;

namespace {

// Sets beyond the budget, so that lengths follow from data.
auto small_chelsea() {
  return kvmeld::preset::chelsea::with_schedule({0.4, 0.1, 2, 0.05}, quantity::entries(2),
                                                quantity::entries(4));
}
auto small_ems() { return kvmeld::preset::ems::shared(quantity::entries(6), 6, 0.3f, 2.0); }
// How many failures were survived, so that a test that injects none is seen.
void check(faults::outcome const& sum, std::size_t failures_per_call) {
  MESSAGE(sum.failures << " failed allocations in " << sum.calls << " calls");
  CHECK(sum.failures > failures_per_call * sum.calls);
}

}  // namespace

TEST_CASE("every allocation of every call fails once: the host") {
  faults::outcome sum;
  every_call(sum, kvmeld::host_executor(1), small_chelsea(), usual_limits(false));
  every_call(sum, kvmeld::host_executor(3), kvmeld::preset::kvmerger::for_budget(), usual_limits(false));
  every_call(sum, kvmeld::host_executor(1, kvmeld::tuning::off), kvmeld::preset::snapkv::with_window(16),
             usual_limits(false));
  every_call(sum, kvmeld::host_executor(2), small_ems(), usual_limits(true));
  every_call(sum, kvmeld::host_executor(1), kvmeld::preset::cam::over_h2o(), usual_limits(false));
  check(sum, 1);
}

TEST_CASE("every allocation of every call fails once: options of caches") {
  faults::outcome sum;
  auto options = usual_limits(false);
  std::vector<std::int32_t> pages(5 * extent.sequences);  // of 16 tokens, and a page that nobody uses
  std::iota(pages.begin(), pages.end(), 0);
  options.ledger_pages = {16, kvmeld::dense_places(kvmeld::table_rows(pages.data(), 5), 16, extent)};
  every_call(sum, kvmeld::host_executor(1), kvmeld::preset::h2o::defaults(), options);
  every_call(sum, support::fenced_executor(), kvmeld::preset::h2o::defaults(), options);
  options = usual_limits(false);
  options.stats = true;
  options.wave_tracks = 1;
  every_call(sum, kvmeld::host_executor(1), kvmeld::preset::h2o::defaults(), options);
  options = usual_limits(false);
  options.budgets_over = kvmeld::budget_scope::layer;
  every_call(sum, kvmeld::host_executor(1), kvmeld::preset::h2o::defaults(), options);
  options = usual_limits(false);
  options.whole_plan = false;
  options.padded = true;
  every_call(sum, kvmeld::host_executor(1), kvmeld::preset::h2o::defaults(), options);
  every_call(sum, support::fenced_executor(), kvmeld::preset::h2o::defaults(), options);
  check(sum, 1);
}

TEST_CASE("every allocation of every call fails once: a device") {
  faults::outcome sum;
  every_call(sum, support::fenced_executor(), small_chelsea(), usual_limits(false));
  every_call(sum, support::fenced_executor(), small_ems(), usual_limits(true));
  check(sum, 1);
}

TEST_CASE("every allocation of recorded calls fails once: the host's view goes back") {
  std::size_t failures = 0;
  for (bool replays : {false, true}) {
    for (std::int64_t n = 1;; ++n) {
      CAPTURE(n);
      auto s = faults::lived(support::fenced_executor(), small_chelsea(), usual_limits(false));
      support::fenced_graph graph(s.cache.executor());
      auto const calls = [&] {
        s.cache.commit({1}, {3});
        s.cache.append({0}, {2});
        s.cache.commit({0}, {1});
        s.cache.compress({0, 1}, kvmeld::budget::entries(30));
      };
      if (replays) REQUIRE(graph.record(s.cache.executor(), calls).empty());
      if (replays) s.cache.append({1}, {4});
      faults::state const was(s);
      bool failed = false, over = false;
      {
        faults::failing_allocation const fault(n);
        try {
          if (replays) {
            graph.replay(s.cache.executor(), calls);
          } else {
            graph.record(s.cache.executor(), calls);
          }
        } catch (std::bad_alloc const&) {
          failed = true;
        } catch (kvmeld::invalid_argument const&) {
          failed = true;
        }
        over = fault.waits();
      }
      if (failed) {
        ++failures;
        CHECK(faults::state(s) == was);
      }
      if (over) break;
    }
  }
  CHECK(failures > 10);
}

TEST_CASE("moving a cache allocates nothing") {
  auto s = faults::lived(kvmeld::host_executor(1), small_chelsea(), usual_limits(false));
  using cache_type = decltype(s.cache);
  static_assert(std::is_nothrow_move_constructible_v<cache_type>, "");
  bool over = false;
  cache_type other = support::twin_of(s.cache);
  {
    faults::failing_allocation const fault(1);
    cache_type moved = std::move(s.cache);
    other = std::move(moved);
    over = fault.waits();
  }
  CHECK(over);
  CHECK(other.longest(0) == 60);
  CHECK_THROWS_WITH_AS(s.cache.longest(0),
                       "merged_cache: cache is moved from; it must be the one that it was moved to",
                       kvmeld::invalid_argument);
}

TEST_CASE("construction without memory is refused by name, and leaks nothing") {
  support::engine_memory<float> memory(extent);
  for (std::int64_t n = 1;; ++n) {
    bool over = false;
    {
      faults::failing_allocation const fault(n);
      try {
        kvmeld::merged_cache const cache{kvmeld::host_executor(1), kvmeld::preset::h2o::defaults(),
                                         memory.tensors(), kvmeld::cache_options{extent}};
      } catch (std::bad_alloc const&) {
      } catch (kvmeld::invalid_argument const& refusal) {
        CHECK(std::string(refusal.what()).find("merged_cache: memory in bytes is ") == 0);
      }
      over = fault.waits();
    }
    if (over) break;
  }
  // More than there can be: nobody has to arm anything.
  kvmeld::host_executor executor(1);
  CHECK(executor.allocate(std::size_t{1} << 62).data() == nullptr);
  CHECK_THROWS_WITH_AS(
      executor.reserve(std::size_t{1} << 60),
      "host_executor: scratch per worker in bytes is 1152921504606846976; it must be no more than the "
      "executor can allocate",
      kvmeld::invalid_argument);
}

TEST_CASE("a cache chosen at run time passes failures on") {
  auto const start = faults::lived(kvmeld::host_executor(1), small_chelsea(), usual_limits(false));
  for (std::int64_t n = 1;; ++n) {
    auto s = start;
    auto const held = kvmeld::make_any_cache(std::move(s.cache));
    kvmeld::any_cache& any = *held;
    std::uint32_t const before = any.longest(0);
    bool failed = false, over = false;
    {
      faults::failing_allocation const fault(n);
      try {
        any.compress({0}, kvmeld::budget::entries(20));
      } catch (std::exception const&) {
        failed = true;
      }
      over = fault.waits();
    }
    if (failed) CHECK(any.longest(0) == before);
    if (!failed) CHECK(any.longest(0) == 20);
    if (over) break;
  }
}

}  // namespace faults_cases
