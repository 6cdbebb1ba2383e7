// Plans written by hand with shared and spread entries, applied by any number of lanes.
#include <kvmeld/testing/lane_executor.hpp>

#include "scenario.hpp"
#include "support/compositions.hpp"

#include <utility>

namespace hand_plans_cases {

namespace {

using kvmeld::fate;

constexpr kvmeld::shape extent{1, 1, 2, 1, 18, 21, 40};
constexpr std::uint32_t length = 36;

void send(kvmeld::plan_ref const& p, std::uint32_t item, kvmeld::slot_t from, kvmeld::slot_t to, fate how,
          float key, float value, float degree) {
  std::size_t const i = p.at(item, from);
  p.fates[i] = how;
  p.target[i] = to;
  p.key_weight[i] = key;
  p.value_weight[i] = value;
  p.degree_weight[i] = degree;
}

void weigh_own(kvmeld::plan_ref const& p, std::uint32_t item, kvmeld::slot_t s, float key, float value,
               float degree) {
  std::size_t const i = p.at(item, s);
  p.key_weight[i] = key;
  p.value_weight[i] = value;
  p.degree_weight[i] = degree;
}

// Head 0 shares and merges, head 1 spreads over overlapping spans and drops.
void write_plan(kvmeld::plan_ref const& p) {
  weigh_own(p, 0, 5, 0.25f, 0.5f, 1.0f);
  for (kvmeld::slot_t s : {3u, 9u, 20u, 35u}) send(p, 0, s, 5, fate::share, 0.2f, 0.125f, 1.0f);
  weigh_own(p, 0, 12, 0.5f, 0.5f, 1.0f);
  for (kvmeld::slot_t s = 13; s < 19; ++s) send(p, 0, s, 12, fate::merge, 0.1f, 0.05f, 1.0f);
  send(p, 0, 30, 0, fate::drop, 1.0f, 1.0f, 1.0f);
  for (kvmeld::slot_t s : {1u, 4u, 7u}) {
    send(p, 1, s, 8, fate::spread, 1.0f, 0.2f, 0.25f);
    p.span[p.at(1, s)] = 4 + s;
  }
  for (kvmeld::slot_t s = 8; s < 19; ++s) weigh_own(p, 1, s, 1.0f, 0.75f, 1.0f);
  send(p, 1, 2, 2, fate::drop, 1.0f, 1.0f, 1.0f);
}

template <class Storage, class Executor> lanes_test::result apply_by_hand(Executor executor) {
  support::dice d(3);
  lanes_test::world<Storage> w(extent);
  w.write(d, 0, 0, length);
  kvmeld::cache_options options{};
  options.extent = extent;
  options.whole_plan = true;
  options.members = 8;
  auto const policy = kvmeld::preset::streaming_llm::with_sinks(2);
  kvmeld::merged_cache cache{std::move(executor), policy, w.tensors(), options};
  cache.open(0, length);
  cache.plan({0}, kvmeld::budget::entries(length));
  write_plan(cache.current_plan());
  cache.apply();
  lanes_test::result r;
  for (std::uint32_t head = 0; head < 2; ++head) {
    r.lengths.push_back(cache.length(0, 0, head));
    r.lengths.push_back(cache.ledger().members.count[head]);
  }
  r.keys = support::bytes_of(w.keys);
  r.values = support::bytes_of(w.values);
  r.ledger = support::ledger_bytes(cache);
  return r;
}

template <class Storage> void same_by_hand() {
  auto const host = apply_by_hand<Storage>(kvmeld::host_executor(1, kvmeld::tuning::off));
  CHECK(host.lengths == std::vector<std::uint32_t>{length - 11, 4, length - 4, 0});
  for (std::uint32_t lanes : {1u, 2u, 5u, 8u}) {
    CAPTURE(lanes);
    CHECK(host == apply_by_hand<Storage>(kvmeld::testing::lane_executor(lanes)));
  }
}

}  // namespace

TEST_CASE("shared and spread entries do not depend on the number of lanes") {
  same_by_hand<lanes_test::row_keys>();
  same_by_hand<lanes_test::token_keys>();
}

TEST_CASE("plan and apply on lanes equal those on the host") {
  auto const run = [](auto executor) {
    support::dice d(5);
    lanes_test::world<lanes_test::row_keys> w(extent);
    w.write(d, 0, 0, length);
    kvmeld::cache_options options{};
    options.extent = extent;
    options.whole_plan = true;
    auto const policy = kvmeld::preset::chelsea::with_schedule(support::steep(), kvmeld::quantity::entries(2),
                                                               kvmeld::quantity::entries(3));
    kvmeld::merged_cache cache{std::move(executor), policy, w.tensors(), options};
    cache.open(0, length);
    while (cache.longest(0) > 15) {
      cache.plan({0}, kvmeld::budget::entries(15));
      cache.apply();
    }
    return lanes_test::result{support::bytes_of(w.keys),
                              support::bytes_of(w.values),
                              support::ledger_bytes(cache),
                              {},
                              {cache.rounds(0)}};
  };
  auto const host = run(kvmeld::host_executor(1, kvmeld::tuning::off));
  CHECK(host.lengths[0] >= 2);
  for (std::uint32_t lanes : {2u, 5u, 8u}) CHECK(host == run(kvmeld::testing::lane_executor(lanes)));
}

TEST_CASE("plans with an eviction fallback on lanes equal those on the host") {
  using namespace kvmeld;
  policy const p{
      score::global{}, select::top{quantity::entries(1), quantity::entries(3), quantity::entries(4)},
      identify::consecutive_threshold<admit::threshold>{identify::anchor_rule::fixed, {}, false, {0.9f}},
      merge::gaussian{}};
  auto const run = [&](auto executor) {
    support::dice d(8);
    lanes_test::world<lanes_test::token_keys> w(extent);
    w.write(d, 0, 0, length);
    cache_options options{};
    options.extent = extent;
    options.whole_plan = true;
    merged_cache cache{std::move(executor), p, w.tensors(), options};
    cache.open(0, length);
    support::for_tracks(extent, 0, [&](track t) {
      support::set_scores(cache.ledger(), t, support::random_scores(d, length));
    });
    cache.plan({0}, budget::entries(12), shortfall::evict_lowest);
    cache.apply();
    return lanes_test::result{support::bytes_of(w.keys),
                              support::bytes_of(w.values),
                              support::ledger_bytes(cache),
                              {},
                              {cache.longest(0), cache.warnings(0)}};
  };
  auto const host = run(host_executor(1, kvmeld::tuning::off));
  CHECK(host.lengths == std::vector<std::uint32_t>{12, warning::evicted_fallback});
  for (std::uint32_t lanes : {2u, 5u, 8u}) CHECK(host == run(kvmeld::testing::lane_executor(lanes)));
}

}  // namespace hand_plans_cases
