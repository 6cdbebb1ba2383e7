// Forked, shortened and resumed sequences, and plans that heads share, on any number of lanes.
#include <kvmeld/testing/lane_executor.hpp>

#include "scenario.hpp"

#include "support/compositions.hpp"

namespace sequences_cases {

namespace {

using namespace lanes_test;

constexpr kvmeld::shape extent{2, 3, 2, 1, 12, 8, 300};

template <class Storage, class Executor, class Policy>
result live(Executor executor, Policy const& policy, kvmeld::plan_scope scope) {
  support::dice d(5);
  world<Storage> w(extent);
  kvmeld::cache_options options{};
  options.extent = extent;
  options.scope = scope;
  kvmeld::merged_cache cache{std::move(executor), policy, w.tensors(), options};
  w.write(d, 0, 0, 290);
  w.poison(0, 1, 20);
  cache.open(0, 290, 3, kvmeld::sequence_id{0});
  support::for_tracks(extent, 0, [&](kvmeld::track t) {
    for (std::uint32_t c = 0; c < cache.ledger().channels.count; ++c)
      support::set_scores(cache.ledger(), t, support::random_scores(d, 290), c);
  });
  cache.fork(0, 1, 2);
  cache.compress({0, 1}, kvmeld::budget::entries(90), kvmeld::shortfall::evict_lowest);
  for (std::uint32_t q : {0u, 1u}) w.write(d, q, cache.longest(q), 9);
  cache.append({0, 1}, {9, 7});
  cache.commit({0, 1}, {9, 5});
  cache.truncate(0, 293);
  kvmeld::rope_params rope;
  rope.pairing = kvmeld::rope_pairing::interleaved;
  cache.shift(0, 40, rope, 100);
  if constexpr (!kvmeld::shares_entries<typename Policy::merge_type>::value) cache.renumber(1, rope);
  cache.resume(2, cache.save(1));
  cache.drop_positions(0, 150, 160);
  cache.drop_positions(2, 60, 64);
  cache.compress({1, 0}, kvmeld::budget::entries(85), kvmeld::shortfall::evict_lowest);
  cache.truncate(2, 93);
  result r{support::bytes_of(w.keys), support::bytes_of(w.values), support::ledger_bytes(cache), {}, {}};
  for (std::uint32_t q : {0u, 1u, 2u}) r.lengths.push_back(cache.longest(q));
  return r;
}

template <class Storage, class Policy>
void same_on_all_lanes(char const* name, Policy const& policy, kvmeld::plan_scope scope) {
  CAPTURE(std::string(name));
  CAPTURE(int(scope));
  result const host = live<Storage>(kvmeld::host_executor(1), policy, scope);
  CHECK(host.lengths == std::vector<std::uint32_t>{85, 85, 89});
  for (std::uint32_t lanes : {1u, 3u, 8u}) {
    CAPTURE(lanes);
    CHECK(host == live<Storage>(kvmeld::testing::lane_executor(lanes), policy, scope));
  }
  using kvmeld::testing::tile_order;
  CHECK(host == live<Storage>(kvmeld::testing::lane_executor(2, 3, tile_order::descending), policy, scope));
}

}  // namespace

TEST_CASE("living sequences are the same on any number of lanes") {
  auto const chelsea = kvmeld::preset::chelsea::with_schedule(support::steep(), kvmeld::quantity::entries(3),
                                                              kvmeld::quantity::entries(5));
  for (auto scope : {kvmeld::plan_scope::head, kvmeld::plan_scope::layer, kvmeld::plan_scope::all_layers}) {
    same_on_all_lanes<row_keys>("chelsea", chelsea, scope);
    same_on_all_lanes<token_keys>("h2o", kvmeld::preset::h2o::defaults(), scope);
  }
}

}  // namespace sequences_cases
