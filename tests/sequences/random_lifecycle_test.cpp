// Random calls on small caches against a naive model of the ledger, others in every run of CI.
// tests/fuzz/lives.cpp draws them from bytes.
#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include <doctest/doctest.h>

#include "support/brief.hpp"
#include "support/random_cache.hpp"
#include "support/shadowed_life.hpp"

namespace random_lifecycle_cases {

namespace {

using support::shadow;

template <class Policy> void lives(shadow known, Policy const& policy, std::uint32_t calls) {
  calls = support::long_life(calls);
  for (std::uint64_t life_number = 1; life_number <= 4; ++life_number) {
    std::uint64_t const seed = life_number + 4 * support::test_run();
    CAPTURE(seed);
    support::shadowed_life life(support::engine_memory<float>({1, 4, 2, 1, 4, 2, 20}), policy, known,
                                support::dice(seed), seed);
    std::string failure;
    try {
      for (std::size_t i = 0; i < calls / 4; ++i) life.step(i);
    } catch (std::exception const& e) {
      failure = e.what();
    }
    CHECK(failure == "");
    CHECK(life.refusals > calls / 200);
    CHECK(life.compressions > calls / 200);
  }
}

}  // namespace

TEST_CASE("random lives: StreamingLLM") {
  lives(shadow::streaming, kvmeld::preset::streaming_llm::with_sinks(support::shadowed_sinks), 40000);
}

TEST_CASE("random lives: H2O") { lives(shadow::h2o, kvmeld::preset::h2o::defaults(), 40000); }

TEST_CASE("random lives: Chelsea") {
  auto policy = kvmeld::preset::chelsea::with_schedule(
      {0.4, 0.0, 0, 0.05}, kvmeld::quantity::entries(support::shadowed_sinks), kvmeld::quantity::entries(2));
  policy.identify.chunk = 6;
  lives(shadow::chelsea, policy, 40000);
}

}  // namespace random_lifecycle_cases
