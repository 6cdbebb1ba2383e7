// D2O's nearest merge against the reference: repeated compressions of growing tracks, with the threshold they
// leave.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/d2o.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace d2o_cases {

using support::dice;

namespace {

reference::d2o_options options_for(std::uint32_t budget, float beta, bool degrees) {
  reference::d2o_options o;
  o.budget = budget;
  o.beta = static_cast<double>(beta);
  o.add_degrees = degrees;
  return o;
}

// A sequence that grows and is compressed several times; every compression starts the reference from the
// cache's own state, so that only the threshold is carried along.
template <class T> void compare(dice& d, support::tally& count) {
  constexpr std::uint32_t dims[] = {8, 17, 64};
  kvmeld::shape const s{1, d.between(1, 2), d.between(1, 3), 1, d.pick(dims), d.pick(dims), 300};
  auto policy = kvmeld::preset::d2o::defaults(d.chance(0.5) ? 0.7f : 0.3f);
  policy.merge.degrees = d.chance(0.7);
  support::engine_memory<T> memory(s);
  auto cache = make_cache(memory, policy);
  std::uint32_t const q = s.sequences - 1;
  std::uint32_t const budget = d.between(8, 60);
  auto const options = options_for(budget, policy.identify.admission.beta, policy.merge.degrees);
  auto const texture = d.chance(0.5) ? support::texture::walk : support::texture::clusters;
  cache.open(q, budget);
  memory.fill_sequence(d, q, 0, budget, texture);
  std::vector<reference::d2o_memory> tau(s.tracks());
  for (int step = 0; step < 4; ++step) {
    std::uint32_t const more = d.between(1, step == 0 ? 180 : 30);
    cache.append({q}, {more});
    cache.commit({q}, {more});
    std::vector<reference::track_state> before(s.tracks());
    support::for_tracks(s, q, [&](kvmeld::track t) {
      std::uint32_t const n = cache.ref().length(t);
      auto const keys = support::random_rows(d, more, s.key_dim, texture);
      memory.fill(t, n - more, keys, support::random_rows(d, more, s.value_dim, support::texture::noise));
      support::set_scores(cache.ledger(), t, support::random_scores(d, n));
      before[t.index] = support::read_track(cache.ref(), t);
    });
    cache.compress({q}, kvmeld::budget::entries(budget));
    support::for_tracks(s, q, [&](kvmeld::track t) {
      reference::d2o_outcome const expected =
          reference::d2o(before[t.index], options, tau[t.index], support::store_as<T>());
      CHECK(cache.ref().length(t) == budget);
      std::uint32_t const word = cache.ledger().word(t, kvmeld::track_word::carried);
      CHECK((word != 0) == expected.memory.started);
      CHECK(std::fabs(static_cast<double>(kvmeld::order_value(word)) - expected.memory.tau) < 1e-5);
      tau[t.index] = expected.memory;
      tau[t.index].tau = static_cast<double>(kvmeld::order_value(word));
      if (expected.margin < support::decision_margin) {
        ++count.skipped;
        return;
      }
      ++count.compared;
      CHECK(support::difference<T>(expected, before[t.index], support::read_track(cache.ref(), t)) == "");
    });
  }
}

}  // namespace

TEST_CASE("D2O's merges and thresholds are the reference's") {
  dice d(501);
  support::tally count;
  for (int i = 0; i < 120; ++i) {
    compare<float>(d, count);
    compare<kvmeld::float16>(d, count);
    compare<kvmeld::bfloat16>(d, count);
  }
  CHECK(count.compared > 6 * count.skipped);
}

TEST_CASE("planning alone does not move D2O's threshold") {
  dice d(502);
  kvmeld::shape const s{1, 1, 1, 1, 8, 8, 64};
  support::engine_memory<float> memory(s);
  auto cache = make_cache(memory, kvmeld::preset::d2o::defaults(), support::with_plan());
  cache.open(0, 40);
  memory.fill_sequence(d, 0, 0, 40, support::texture::walk);
  kvmeld::track const t{0, 0, 0, 0};
  support::set_scores(cache.ledger(), t, support::random_scores(d, 40));
  for (int i = 0; i < 3; ++i) {
    cache.plan({0}, kvmeld::budget::entries(16));
    CHECK(cache.ledger().word(t, kvmeld::track_word::carried) == 0);
  }
  cache.apply();
  std::uint32_t const first = cache.ledger().word(t, kvmeld::track_word::carried);
  CHECK(first != 0);
  // A compression that has nothing to do leaves it alone.
  cache.compress({0}, kvmeld::budget::entries(16));
  CHECK(cache.ledger().word(t, kvmeld::track_word::carried) == first);
}

TEST_CASE("D2O refuses shares that are none") {
  auto policy = kvmeld::preset::d2o::defaults(1.5f);
  kvmeld::shape const s{1, 1, 1, 1, 2, 2, 8};
  support::engine_memory<float> memory(s);
  CHECK_THROWS_WITH(make_cache(memory, policy),
                    "merged_cache: policy: admit::ema_threshold.beta is 1.5; it must be 0 to 1");
}

}  // namespace d2o_cases
