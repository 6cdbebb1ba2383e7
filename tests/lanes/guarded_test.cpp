// Guarded merging decides the same on any number of lanes.
#include <kvmeld/testing/lane_executor.hpp>

#include "scenario.hpp"

namespace guarded_cases {

using lanes_test::row_keys;
using lanes_test::same_on_all_lanes;

namespace {

using kvmeld::quantity;
namespace preset = kvmeld::preset;

// One compression measured with probes: K, V, ledger and what is said of the error.
template <class Executor, class Policy> lanes_test::result measured(Executor executor, Policy const& policy) {
  using guard_type = kvmeld::guard::probed<float>;
  kvmeld::shape const s{1, 1, 2, 2, 20, 19, 64};
  support::dice d(11);
  lanes_test::world<row_keys> w(s);
  kvmeld::merged_cache cache{std::move(executor), policy, w.tensors(), kvmeld::cache_options{s}};
  w.write(d, 0, 0, 60);
  cache.open(0, 60);
  if constexpr (kvmeld::observation_of<Policy> != kvmeld::observation::none) {
    support::for_tracks(s, 0, [&](kvmeld::track t) {
      support::set_scores(cache.ledger(), t, support::random_scores(d, 60));
    });
  }
  constexpr std::uint32_t probes = 5;
  std::vector<float> q(probes * s.query_heads() * s.key_dim), out(probes * s.query_heads() * s.value_dim);
  std::vector<float> lse(probes * s.query_heads()), room(kvmeld::guard::probe_room(s, probes));
  for (float& x : q) x = static_cast<float>(d.normal());
  guard_type guard{0.3f};
  guard.probes.query = kvmeld::rows_by_token<float const>(q.data(), probes, s.query_heads(), s.key_dim);
  guard.probes.lse = kvmeld::rows_by_token<float const>(lse.data(), probes, s.query_heads(), 1);
  guard.probes.count = probes;
  guard.probes.room = room.data();
  kvmeld::attention::attend(cache.executor(), {0, 0, probes}, guard.probes.query, cache.ref(),
                            kvmeld::rows_by_token(out.data(), probes, s.query_heads(), s.value_dim),
                            kvmeld::rows_by_token(lse.data(), probes, s.query_heads(), 1));
  cache.set_guard(guard);
  cache.compress({0}, kvmeld::budget::entries(12), kvmeld::shortfall::keep);
  lanes_test::result r;
  r.keys = support::bytes_of(w.keys);
  r.values = support::bytes_of(w.values);
  r.ledger = support::ledger_bytes(cache);
  r.attention = support::bytes_of(room);
  support::for_tracks(s, 0, [&](kvmeld::track t) { r.lengths.push_back(cache.ref().length(t)); });
  return r;
}

}  // namespace

TEST_CASE("guarded merging does not depend on the number of lanes") {
  using guard_type = kvmeld::guard::probed<float>;
  auto const same = [](auto const& policy) {
    lanes_test::result const host = measured(kvmeld::host_executor(1, kvmeld::tuning::off), policy);
    for (std::uint32_t n : host.lengths) {
      CHECK(n < 50);
      CHECK(n > 12);
    }
    for (std::uint32_t lanes : {1u, 2u, 5u, 8u}) {
      CAPTURE(lanes);
      CHECK(host == measured(kvmeld::testing::lane_executor(lanes), policy));
    }
  };
  same(preset::chelsea::guarded(
      guard_type{0.3f},
      preset::chelsea::with_schedule({0.6, 0.1, 3, 0.3}, quantity::entries(2), quantity::entries(6))));
  same(preset::kvmerger::guarded(guard_type{0.3f},
                                 preset::kvmerger::for_budget(quantity::entries(6), quantity::entries(0))));
}

}  // namespace guarded_cases
