// A saved sequence goes on as if nothing had happened, in another slot of another cache.
#include "life.hpp"

#include <cstring>

namespace save_cases {

using namespace sequences_test;

namespace {

constexpr kvmeld::shape extent{2, 2, 2, 2, 12, 8, 96};

// The queries and log-sum-exps of a sequence's last token feed the score, as in an engine.
template <class Cache> support::byte_list attend(Cache& cache, support::dice& d, std::uint32_t slot) {
  kvmeld::shape const& s = cache.options().extent;
  std::uint32_t const heads = s.query_heads();
  std::vector<float> q(std::size_t{heads} * s.key_dim), out(std::size_t{heads} * s.value_dim), lse(heads);
  support::byte_list bytes;
  for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
    for (float& x : q) x = static_cast<float>(d.normal());
    kvmeld::query_batch const batch{layer, slot, 1};
    auto const queries = kvmeld::rows_by_token<float const>(q.data(), 1, heads, s.key_dim);
    kvmeld::attention::attend(cache.executor(), batch, queries, cache.ref(),
                              kvmeld::rows_by_token(out.data(), 1, heads, s.value_dim),
                              kvmeld::rows_by_head(lse.data(), 1, heads, 1));
    cache.observe(batch, queries, kvmeld::rows_by_head<float const>(lse.data(), 1, heads, 1));
    auto const part = support::bytes_of(out);
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  return bytes;
}

template <class Cache>
support::byte_list generate(Cache& cache, support::dice& d, std::uint32_t slot, std::uint32_t tokens) {
  support::byte_list bytes;
  for (std::uint32_t i = 0; i < tokens; ++i) {
    write_rows(cache, d, slot, 2);
    cache.append({slot}, {2});
    cache.commit({slot}, {1});
    auto const part = attend(cache, d, slot);
    bytes.insert(bytes.end(), part.begin(), part.end());
    if (cache.due(slot, {30, 9})) cache.compress({slot}, budget::entries(30));
  }
  return bytes;
}

template <class Policy> void goes_on(char const* name, Policy const& policy) {
  CAPTURE(std::string(name));
  support::engine_memory<float> memory(extent);
  support::dice d(6);
  auto cache = cache_for(memory, policy);
  write_rows(cache, d, 1, 50);
  cache.open(1, 50, 3, kvmeld::sequence_id{77});
  attend(cache, d, 1);
  cache.compress({1}, budget::entries(30));
  generate(cache, d, 1, 15);
  write_rows(cache, d, 1, 2);
  cache.append({1}, {2});  // in the middle of a draft

  kvmeld::shape other = extent;
  other.sequences = 4;
  other.capacity = 80;
  support::engine_memory<float> elsewhere(other, "SLTHC");
  auto second = cache_for(elsewhere, policy);
  second.open(0, 9);
  second.open(3, 5);
  second.close(3);
  auto const bytes = cache.save(1);
  CHECK(bytes.size() == cache.saved_bytes(1));
  std::vector<std::byte> exactly(cache.saved_bytes(1));
  CHECK(cache.save(1, {exactly.data(), exactly.size()}).ok());
  CHECK(exactly == bytes);
  second.resume(3, bytes);
  copy_rows(cache, 1, second, 3);
  CHECK(second.save(3) == bytes);
  CHECK(second.longest(3) == cache.longest(1));
  CHECK(second.length_bound(3) == cache.length_bound(1));
  support::for_tracks(other, 3, [&](kvmeld::track t) {
    for (kvmeld::slot_t s = second.ref().length(t); s < other.capacity; ++s)
      CHECK(degree(second, t, s) == 0.0f);
  });
  cache.commit({1}, {1});
  second.commit({3}, {1});
  support::dice same = d;
  CHECK(generate(cache, d, 1, 25) == generate(second, same, 3, 25));
  CHECK(digest(cache, 1) == digest(second, 3));
  CHECK(second.longest(0) == 9);
}

}  // namespace

TEST_CASE("a saved sequence goes on bit for bit, for every preset") {
  each_policy_once([](char const* name, auto const& policy) { goes_on(name, policy); });
}

TEST_CASE("members are saved with their owners") {
  support::engine_memory<float> memory(extent);
  support::dice d(1);
  auto const policy = kvmeld::preset::streaming_llm::with_sinks(2);
  auto cache = support::make_cache(memory, policy, support::with_plan(12));
  open(cache, d, 0, 20);
  cache.plan({0}, budget::entries(20));
  for (std::uint32_t item = 0; item < 4; ++item) {
    auto const& plan = cache.current_plan();
    for (std::uint32_t s : {4u, 7u}) {
      plan.fates[plan.at(item, s)] = kvmeld::fate::share;
      plan.target[plan.at(item, s)] = 9;
    }
  }
  cache.apply();
  kvmeld::track const t = cache.ref().where(1, 0, 1);
  CHECK(cache.ledger().members.count[t.index] == 2);
  auto other = support::make_cache(memory, policy, support::with_plan(12));
  other.resume(1, cache.save(0));
  kvmeld::track const u = other.ref().where(1, 1, 1);
  auto const& a = cache.ledger().members;
  auto const& b = other.ledger().members;
  CHECK(b.count[u.index] == 2);
  CHECK(other.ledger().is_direction(u, 7));
  for (std::uint32_t m = 0; m < 2; ++m) {
    std::size_t const x = cache.ledger().members.at(t, m), y = other.ledger().members.at(u, m);
    CHECK(a.norm[x] == b.norm[y]);
    CHECK(a.position[x] == b.position[y]);
    CHECK(a.owner[x] == b.owner[y]);
  }
  CHECK(other.save(1) == cache.save(0));
  // A fork has them too.
  cache.fork(0, 1);
  CHECK(cache.save(1) == cache.save(0));
  // Less room would decide otherwise which members the next compression keeps.
  auto small = support::make_cache(memory, policy, support::with_plan(11));
  cache_test::check_text(
      cache_test::refusal_of([&] { small.resume(1, cache.save(0)); }),
      {"resume: options.members of the saved ledger is 12", "it must be 11, as in this cache"});
  cache.ledger().members.count[t.index] = 13;  // as no cache has them
  cache_test::check_text(cache_test::refusal_of([&] { other.resume(0, cache.save(0)); }),
                         {"resume: number of members of a track of the saved ledger is 13",
                          "it must be at most 12, the options.members of this cache"});
}

TEST_CASE("a span is filled, not a byte beyond") {
  support::engine_memory<float> memory(extent);
  auto cache = support::make_cache(memory, kvmeld::preset::h2o::defaults());
  cache.open(0, 7);
  std::size_t const n = cache.saved_bytes(0);
  support::byte_list out(n + 8, std::byte{0x55});
  cache.save(0, out);
  CHECK(support::byte_list(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(n)) == cache.save(0));
  for (std::size_t i = n; i < n + 8; ++i) CHECK(out[i] == std::byte{0x55});
  // Proportional to the entries held: length 0 needs the counters only.
  cache.close(0);
  cache.open(0, 0);
  CHECK(n - cache.saved_bytes(0) == std::size_t{4} * 7 * 13);
}

TEST_CASE("the format is what it was: ledgers saved by an earlier build can be read") {
  support::engine_memory<float> memory({1, 1, 2, 1, 4, 4, 32});
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(3));
  cache.open(0, 20, 2, kvmeld::sequence_id{7});
  cache.compress({0}, budget::entries(10));
  cache.append({0}, {1});
  auto const bytes = cache.save(0);
  kvmeld::saved::header head;
  std::memcpy(&head, bytes.data(), sizeof head);
  // Whoever changes the bytes on purpose changes these numbers and the version.
  CHECK(head.version == 3);
  CHECK(bytes.size() == 478);
  CHECK(head.checksum == 159578403u);
}

}  // namespace save_cases
