// Going back is exact: what came after is as if it had never been, and what was merged is out of reach.
#include "life.hpp"

namespace truncate_cases {

using namespace sequences_test;

namespace {

constexpr kvmeld::shape extent{2, 2, 2, 1, 12, 8, 96};

template <class Policy> void goes_back(char const* name, Policy const& policy) {
  CAPTURE(std::string(name));
  support::engine_memory<float> memory(extent), other(extent);
  support::dice d(4), same(4);
  auto cache = cache_for(memory, policy);
  auto expected = cache_for(other, policy);
  std::vector<std::uint32_t> ragged(extent.tracks());
  support::for_tracks(extent, 1, [&](kvmeld::track t) { ragged[t.index] = 30 + 3 * t.layer + t.kv_head; });
  open(cache, d, 1, 60, 3);
  open(expected, same, 1, 60, 3);
  for (auto* c : {&cache, &expected}) c->compress({1}, budget::per_track(ragged.data()));
  CHECK(cache.compressed_at(1) == 60);
  feed(cache, d, 1, 7);
  feed(expected, same, 1, 7);
  feed(cache, d, 1, 11);
  cache.truncate(1, 67);
  CHECK(cache.tokens(1) == 67);
  CHECK(cache.longest(1) == expected.longest(1));
  // Scores observed meanwhile stay: give both the same again.
  support::dice scores(8), again(8);
  score(cache, scores, 1);
  score(expected, again, 1);
  CHECK(digest(cache, 1) == digest(expected, 1));
  feed(cache, d, 1, 5);
  support::dice late = d;
  cache.truncate(1, 67);
  cache.truncate(1, 67);  // nothing to forget
  feed(cache, late, 1, 6);
  feed(expected, d, 1, 6);
  for (auto* c : {&cache, &expected}) c->compress({1}, budget::entries(29));
  CHECK(rows_of(cache, 1).size() == rows_of(expected, 1).size());
  CHECK(cache.compressed_at(1) == 73);
  CHECK(cache_test::refusal_of([&] {
          cache.truncate(1, 72);
        }).find("it must be 73 to 73, the tokens of sequence 1") != std::string::npos);
}

}  // namespace

TEST_CASE("truncate forgets the last tokens of ragged tracks, for every preset") {
  each_policy([](char const* name, auto const& policy) { goes_back(name, policy); });
}

TEST_CASE("a sequence that was never compressed goes back to any length behind its frozen beginning") {
  support::engine_memory<float> memory(extent);
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  cache.open(0, 20);
  cache.compress({0}, budget::entries(20));  // changes nothing
  CHECK(cache.compressed_at(0) == 0);
  cache.truncate(0, 0);
  CHECK(cache.longest(0) == 0);
  CHECK(cache.tokens(0) == 0);
  cache.append({0}, {4});
  cache.commit({0}, {4});
  CHECK(cache.ref().position(cache.ref().where(0, 0, 0), 3) == 3);
  cache.open(1, 20, 8);
  CHECK(cache_test::refusal_of([&] {
          cache.truncate(1, 7);
        }).find("it must be 8 to 20, the tokens of sequence 1") != std::string::npos);
  cache.truncate(1, 8);
  CHECK(cache.longest(1) == 8);
}

TEST_CASE("a round of plan and apply counts as a compression, an identity plan does not") {
  support::engine_memory<float> memory(extent);
  auto cache =
      support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2), support::with_plan());
  cache.open(0, 20);
  cache.plan({0}, budget::entries(30));
  cache.apply();
  CHECK(cache.compressed_at(0) == 0);
  cache.plan({0}, budget::entries(10));
  CHECK(cache.compressed_at(0) == 0);
  cache.apply();
  CHECK(cache.compressed_at(0) == 20);
  // The fallback's evictions and a single short track count as well.
  auto chelsea = support::make_cache(
      memory, kvmeld::preset::chelsea::with_schedule(support::steep(), kvmeld::quantity::entries(2),
                                                     kvmeld::quantity::entries(4)));
  std::vector<std::uint32_t> table(extent.tracks(), 1000);
  support::for_tracks(extent, 0, [&](kvmeld::track t) {
    if (t.layer == 1 && t.kv_head == 1) table[t.index] = 12;
    for (kvmeld::slot_t s = 0; s < 20; ++s)
      support::put_row(memory.tensors().keys, t, s, std::vector<float>(12, kvmeld::bits_float(0x7fc00000u)));
  });
  chelsea.open(0, 20);
  chelsea.compress({0}, budget::per_track(table.data()), kvmeld::shortfall::keep);
  CHECK(chelsea.compressed_at(0) == 0);
  chelsea.compress({0}, budget::per_track(table.data()));
  CHECK(chelsea.compressed_at(0) == 20);
  CHECK(chelsea.length(1, 0, 1) == 12);
}

TEST_CASE("a plan made before going back is forgotten") {
  support::engine_memory<float> memory(extent);
  auto cache =
      support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2), support::with_plan());
  cache.open(0, 20);
  cache.plan({0}, budget::entries(10));
  cache.truncate(0, 18);
  CHECK(cache_test::refusal_of([&] { cache.apply(); }).find("apply: plan is missing") != std::string::npos);
}

}  // namespace truncate_cases
