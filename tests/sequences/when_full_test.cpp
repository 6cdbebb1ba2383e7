// append with when_full: a full sequence is compressed first, and nothing else happens to it.
#include <kvmeld/compose/any_cache.hpp>

#include "twins.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace when_full_cases {

using namespace sequences_test;
using cache_test::refused;
using kvmeld::shortfall;
using kvmeld::when_full;

namespace {

auto exact_merging() {
  return kvmeld::preset::chelsea::with_schedule(support::steep(), kvmeld::quantity::entries(2),
                                                kvmeld::quantity::entries(4));
}

// One token for each of `slots`, and its scores. `append` adds its entry.
template <class Cache, class Append>
void step(Cache& cache, support::dice& d, std::vector<std::uint32_t> const& slots, Append append) {
  std::vector<std::uint32_t> const ones(slots.size(), 1);
  append(slots, ones);
  for (std::uint32_t q : slots) {
    support::for_tracks(extent, q, [&](kvmeld::track t) {
      std::uint32_t const last = cache.ref().length(t) - 1;
      auto const k = support::random_rows(d, 1, extent.key_dim, support::texture::walk);
      auto const v = support::random_rows(d, 1, extent.value_dim, support::texture::noise);
      support::put_row(cache.ref().keys, t, last, k[0]);
      support::put_row(cache.ref().values, t, last, v[0]);
    });
  }
  cache.commit(slots, ones);
  for (std::uint32_t q : slots) score(cache, d, q);
}

}  // namespace

TEST_CASE("a stream far longer than the capacity: each full sequence is compressed first, as if by hand") {
  each_policy([](char const* name, auto const& policy) {
    CAPTURE(std::string(name));
    when_full const full{budget::entries(40)};
    support::engine_memory<float> one(extent), two(extent);
    auto cache = cache_for(one, policy), by_hand = cache_for(two, policy);
    support::dice d(8), e(8);
    std::uint32_t compressions = 0;
    for (auto* c : {&cache, &by_hand}) {
      c->open(0);
      c->open(1, 0, 0, kvmeld::sequence_id{5});
    }
    for (std::uint32_t i = 0; i < 230; ++i) {
      // The second sequence gets every other token, so that the two are full at different times.
      std::vector<std::uint32_t> const slots =
          i % 2 == 0 ? std::vector<std::uint32_t>{0, 1} : std::vector<std::uint32_t>{0};
      step(cache, d, slots, [&](auto const& list, auto const& ones) { cache.append(list, ones, full); });
      step(by_hand, e, slots, [&](auto const& list, auto const& ones) {
        for (std::uint32_t q : list) {
          if (by_hand.longest(q) < extent.capacity) continue;
          by_hand.compress({q}, full.shrink_to, full.fallback);
          ++compressions;
        }
        by_hand.append(list, ones);
      });
      REQUIRE(cache.longest(0) <= extent.capacity);
    }
    CHECK(compressions == 4);  // entries 97, 153 and 209 of the first sequence, 97 of the second
    CHECK(cache.tokens(0) == 230);
    CHECK(cache.tokens(1) == 115);
    for (std::uint32_t q : {0u, 1u}) CHECK(digest(cache, q) == digest(by_hand, q));
  });
}

TEST_CASE("memory of a device: room is made by what the host knows, and no entry is lost") {
  each_policy([](char const* name, auto const& policy) {
    CAPTURE(std::string(name));
    support::engine_memory<float> near_memory(extent), far_memory(extent);
    auto near = cache_for(near_memory, policy);
    kvmeld::cache_options options{extent};
    options.members = near.options().members;
    kvmeld::merged_cache far{support::fenced_executor(), policy, far_memory.tensors(), options};
    support::dice d(3);
    std::vector<float> p(std::size_t{extent.query_heads()} * (extent.capacity + members));
    near.open(0);
    far.open(0);
    bool same = true;
    for (std::uint32_t i = 0; i < 200; ++i) {
      near.append({0}, {1}, {budget::entries(40)});
      far.append({0}, {1}, {budget::entries(40)});
      support::for_tracks(extent, 0, [&](kvmeld::track t) {
        auto const k = support::random_rows(d, 1, extent.key_dim, support::texture::walk);
        auto const v = support::random_rows(d, 1, extent.value_dim, support::texture::noise);
        near_memory.fill(t, near.ref().length(t) - 1, k, v);
        far_memory.fill(t, near.ref().length(t) - 1, k, v);
      });
      near.commit({0}, {1});
      far.commit({0}, {1});
      for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
        for (float& x : p) x = static_cast<float>(d.uniform()) * 0.1f;
        support::observe_numbers(near, {layer, 0, 1}, p.data(), 1, extent.capacity + members);
        support::observe_numbers(far, {layer, 0, 1}, p.data(), 1, extent.capacity + members);
      }
      // Bounds above the lengths would compress earlier than the host does; with these budgets they are the
      // lengths.
      same = same && far.length_bound(0) == near.longest(0);
    }
    CHECK(same);
    CHECK(far.tokens(0) == 200);
    CHECK(far.save(0) == near.save(0));
    CHECK(near_memory == far_memory);
    far.sync_lengths(0);
    CHECK((far.warnings(0) & kvmeld::warning::overfull) == 0);
  });
}

TEST_CASE("what cannot make room is refused, and nothing has been compressed") {
  support::engine_memory<float> memory(extent);
  support::dice d(4);
  auto cache = cache_for(memory, exact_merging());
  open(cache, d, 0, extent.capacity);
  open(cache, d, 1, 20);
  std::uint32_t const capacity = extent.capacity;
  auto const append = [](std::uint32_t n, when_full const& full) {
    return [=](auto& c) { c.append({0, 1}, {n, 1}, full); };
  };
  // Merging alone promises no length.
  refused(cache, memory, append(1, {budget::entries(40), shortfall::keep}),
          {"append", "full.shrink_to", "96", "sequence 0", "full.fallback"});
  refused(cache, memory, append(57, {budget::entries(40)}), {"full.shrink_to", "40", "at most 39"});
  refused(cache, memory, append(1, {budget::ratio(1.0)}), {"full.shrink_to", "96", "at most 95"});
  refused(cache, memory, append(capacity + 1, {budget::entries(40)}), {"counts[0]", "97", "96"});
  refused(cache, memory, append(1, {budget::entries(0)}), {"budget"});
  refused(cache, memory, [](auto& c) { c.append({0}, {1, 1}, {budget::entries(40)}); }, {"append", "counts"});
  refused(cache, memory, [](auto& c) { c.append({2}, {1}, {budget::entries(40)}); }, {"append", "open"});
  // Pending entries of a full sequence; those of one with room are nobody's business.
  cache.append({1}, {3});
  cache.append({0, 1}, {1, 2}, {budget::entries(40)});
  CHECK(cache.longest(0) == 41);
  CHECK(cache.longest(1) == 25);
  cache.append({0}, {55});
  refused(cache, memory, append(1, {budget::entries(40)}), {"sequence 0", "56", "pending"});
  cache.commit({0}, {56});
  cache.append({0}, {56}, {budget::entries(40)});  // as many as then fit
  CHECK(cache.longest(0) == capacity);
}

TEST_CASE("evicting policies need no fallback") {
  support::engine_memory<float> memory(extent);
  support::dice d(4);
  auto evicting = cache_for(memory, kvmeld::preset::streaming_llm::with_sinks());
  open(evicting, d, 0, extent.capacity);
  evicting.append({0}, {1}, {budget::entries(40), shortfall::keep});
  CHECK(evicting.longest(0) == 41);
}

TEST_CASE("a sequence of the most tokens is refused before it is compressed") {
  support::engine_memory<float> memory(extent);
  support::dice d(4);
  auto cache = cache_for(memory, kvmeld::preset::streaming_llm::with_sinks());
  open(cache, d, 0, extent.capacity);
  cache.shift(0, static_cast<std::int32_t>(kvmeld::largest::tokens - extent.capacity));
  refused(cache, memory, [](auto& c) { c.append({0}, {1}, {budget::entries(40)}); },
          {"append", "counts[0] is 1", "at most 0", "the tokens of a sequence"});
  CHECK(cache.longest(0) == extent.capacity);
}

TEST_CASE("the same behind any_cache") {
  support::engine_memory<float> memory(extent);
  support::dice d(4);
  auto cache = cache_for(memory, exact_merging());
  open(cache, d, 0, extent.capacity);
  auto const held = kvmeld::make_any_cache(std::move(cache));
  kvmeld::any_cache& any = *held;
  any.append({0}, {2}, {budget::entries(40)});
  CHECK(any.longest(0) == 42);
}

}  // namespace when_full_cases
