// Traps that an engine could fall into: stale plans, overlapping tracks, overfull shared pages, moved caches.
#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "refusal.hpp"
#include "support/random_cache.hpp"

namespace guards_cases {

namespace {

using cache_test::check_text;
using cache_test::refusal_of;
using kvmeld::budget;

constexpr kvmeld::shape extent{1, 2, 1, 1, 8, 8, 512};

// Rows below `first` are shared with other sequences.
struct half_shared : kvmeld::strided<float> {
  static constexpr bool always_writable = false;
  kvmeld::slot_t first;
  half_shared(float* base, kvmeld::slot_t f)
      : kvmeld::strided<float>(base, "LSHTC", extent, extent.key_dim), first(f) {}
  bool writable(kvmeld::track, kvmeld::slot_t s) const { return s >= first; }
};

struct tensors {
  std::vector<float> k = std::vector<float>(extent.slots() * extent.key_dim);
  std::vector<float> v = k;
  tensors() {
    support::dice d(7);
    for (float& x : k) x = static_cast<float>(d.normal());
    for (float& x : v) x = static_cast<float>(d.normal());
  }
  auto plain() {
    return kvmeld::kv{kvmeld::strided<float>{k.data(), "LSHTC", extent, 8},
                      kvmeld::strided<float>{v.data(), "LSHTC", extent, 8}};
  }
};

template <class Policy, class Tensors> auto cache_of(Policy policy, Tensors x, bool whole_plan = true) {
  kvmeld::cache_options options{extent};
  options.whole_plan = whole_plan;
  return kvmeld::merged_cache{kvmeld::host_executor{1}, policy, x, options};
}

}  // namespace

TEST_CASE("a plan is for the sequences that were open when it was made") {
  tensors x;
  auto cache = cache_of(kvmeld::preset::streaming_llm::with_sinks(), x.plain());
  cache.open(0, 300);
  cache.plan({0}, budget::entries(100));
  cache.close(0);
  check_text(refusal_of([&] { cache.apply(); }), {"apply", "apply: plan is missing"});
  cache.open(0, 300);
  check_text(refusal_of([&] { cache.apply(); }), {"apply", "apply: plan is missing"});
  CHECK(cache.longest(0) == 300);
}

TEST_CASE("shared pages that fill the budget are refused like a frozen beginning") {
  tensors x;
  kvmeld::kv const shared{half_shared(x.k.data(), 150), half_shared(x.v.data(), 120)};
  auto evict = cache_of(kvmeld::preset::streaming_llm::with_sinks(), shared);
  auto merge = cache_of(kvmeld::preset::chelsea::llama3(), shared);
  evict.open(0, 300);
  merge.open(0, 300);
  check_text(refusal_of([&] { evict.compress({0}, budget::entries(100)); }),
             {"compress", "compress: budget of track (layer 0, sequence 0, head 0) is 100", "150 of the 300",
              "150 sinks or frozen",
              "it must be at least 150, because 150 of the 300 entries are pinned (150 sinks or frozen, 0 "
              "recents, 0 by score)"});
  check_text(refusal_of([&] { merge.plan({0}, budget::entries(200)); }),
             {"plan", "214 of the 300", "plan: budget of track (layer 0, sequence 0, head 0) is 200"});
  CHECK(evict.longest(0) == 300);
  merge.compress({0}, budget::entries(230));
  CHECK(merge.longest(0) == 230);
  kvmeld::track const t = merge.ref().where(0, 0, 0);
  for (kvmeld::slot_t s = 0; s < 150; ++s) CHECK(merge.ref().position(t, s) == static_cast<std::int32_t>(s));

  // A plan written by hand may not touch them either.
  auto hand = cache_of(kvmeld::preset::streaming_llm::with_sinks(), shared);
  hand.open(0, 300);
  hand.plan({0}, budget::entries(300));
  hand.current_plan().fates[149] = kvmeld::fate::drop;
  check_text(refusal_of([&] { hand.apply(); }), {"slot 149", "frozen beginning of 150"});
}

TEST_CASE("a chunk longer than the track is one chunk") {
  for (std::uint32_t chunk : {512u, 1u << 30, 0xffffffffu}) {
    tensors x;
    auto policy = kvmeld::preset::chelsea::llama3();
    policy.identify.chunk = chunk;
    auto cache = cache_of(policy, x.plain());
    cache.open(0, 500);
    cache.compress({0}, budget::entries(400));
    CHECK(cache.longest(0) == 400);
    CHECK(cache.warnings(0) == kvmeld::warning::none);
  }
}

TEST_CASE("an empty sequence in a batch is nothing to do") {
  tensors x;
  auto cache = cache_of(kvmeld::preset::streaming_llm::with_sinks(1), x.plain());
  cache.open(0, 300);
  cache.open(1, 0);
  cache.compress({0, 1}, budget::ratio(0.5));
  CHECK(cache.longest(0) == 150);
  CHECK(cache.longest(1) == 0);
}

TEST_CASE("layouts that do not fit the extent are refused") {
  tensors x;
  auto const made = [&](auto keys) {
    return refusal_of([&] {
      cache_of(kvmeld::preset::streaming_llm::with_sinks(),
               kvmeld::kv{keys, kvmeld::strided<float>{x.v.data(), "LSHTC", extent, 8}});
    });
  };
  kvmeld::shape small = extent;
  small.capacity = 16;
  check_text(made(kvmeld::strided<float>{x.k.data(), "LSHTC", small, 8}),
             {"keys", "merged_cache: keys: capacity is 16", "512", "it must be 512, the shape's capacity"});
  check_text(made(kvmeld::transposed<float>{x.k.data(), "LSHTC", extent, 8}),
             {"keys", "merged_cache: keys: slot stride is 8", "ends in T"});
  kvmeld::cache_strides overlap = kvmeld::dense_strides("LSHTC", extent, 8);
  overlap.sequence = 0;
  check_text(made(kvmeld::strided<float>{x.k.data(), overlap, extent, 8}),
             {"keys", "merged_cache: keys: sequence stride is 0",
              "it must be another number, because there are 2 of them"});
  CHECK(made(kvmeld::transposed<float>{x.k.data(), "LSHCT", extent, 8}).empty());
}

TEST_CASE("a moved-from cache refuses, the new one goes on") {
  tensors x;
  auto cache = cache_of(kvmeld::preset::streaming_llm::with_sinks(), x.plain());
  cache.open(0, 300);
  auto moved = std::move(cache);
  check_text(refusal_of([&] { cache.open(1, 3); }), {"moved from"});
  moved.compress({0}, budget::entries(50));
  CHECK(moved.longest(0) == 50);
}

TEST_CASE("degree weights that would leave an entry without tokens are refused") {
  tensors x;
  auto cache = cache_of(kvmeld::preset::streaming_llm::with_sinks(), x.plain());
  cache.open(0, 20);
  for (float bad : {-3.0f, 0.0f}) {
    cache.plan({0}, budget::entries(20));
    cache.current_plan().degree_weight[5] = bad;
    check_text(refusal_of([&] { cache.apply(); }),
               {"slot 5", "apply: plan: degree_weight of slot 5 of track (layer 0, sequence 0, head 0) is",
                "it must be a"});
  }
}

TEST_CASE("a named batch holds its numbers") {
  kvmeld::query_batch const one{3, 4, 5};
  kvmeld::query_batch const copy = one;
  CHECK(copy.layer() == 3);
  CHECK(copy.size() == 1);
  CHECK(copy.sequence(0) == 4);
  CHECK(copy.queries(0) == 5);
  std::vector<std::uint32_t> const sequences{1, 0}, counts{2, 7};
  kvmeld::query_batch const two{0, sequences, counts};
  CHECK(two.size() == 2);
  CHECK(two.sequence(1) == 0);
  CHECK(two.queries(1) == 7);
}

TEST_CASE("draws are keyed by global numbers and positions") {
  tensors x;
  kvmeld::cache_options options{extent};
  options.first_layer = 12;
  options.first_kv_head = 4;
  kvmeld::merged_cache cache{kvmeld::host_executor{1}, kvmeld::preset::streaming_llm::with_sinks(2),
                             x.plain(), options};
  cache.open(1, 300, 0, kvmeld::sequence_id{99});
  cache.compress({1}, budget::entries(10));
  kvmeld::track const t = cache.ref().where(0, 1, 0);
  kvmeld::random_key const key = kvmeld::draw_key(cache.ledger(), t, 9, 5);
  CHECK(key.seed == 5);
  CHECK(key.layer == 12);
  CHECK(key.sequence_id == 99);
  CHECK(key.kv_head == 4);
  CHECK(key.position == 299);
}

#if !defined(__FAST_MATH__)
TEST_CASE("NaN in a visible key shows in the output, and counts for no score") {
  tensors x;
  x.k[50 * 8] = kvmeld::bits_float(0x7fc00000u);
  auto cache = cache_of(kvmeld::preset::h2o::defaults(), x.plain());
  cache.open(0, 100);
  std::vector<float> q(8, 1.0f), out(8), lse(1);
  kvmeld::query_batch const batch{0, 0, 1};
  kvmeld::attention::attend(cache.executor(), batch, kvmeld::rows_by_token(q.data(), 1, 1, 8), cache.ref(),
                            kvmeld::rows_by_token(out.data(), 1, 1, 8),
                            kvmeld::rows_by_token(lse.data(), 1, 1, 1));
  CHECK_FALSE(kvmeld::is_finite(out[0]));
  CHECK_FALSE(kvmeld::is_finite(lse[0]));
  float const* const seen = lse.data();
  cache.observe(batch, kvmeld::rows_by_token(q.data(), 1, 1, 8), kvmeld::rows_by_token(seen, 1, 1, 1));
  for (std::uint32_t s = 0; s < 100; ++s) CHECK(cache.ledger().channel_data[0][s] == 0.0f);
}
#endif

TEST_CASE("warnings end with the sequence that they are about") {
  tensors x;
  auto cache = cache_of(kvmeld::preset::chelsea::llama3(), x.plain());
  cache.open(0, 300);
  for (std::size_t c = 150 * 8; c < 151 * 8; ++c) x.k[c] = kvmeld::bits_float(0x7fc00000u);
  cache.compress({0}, budget::entries(200));
  CHECK(cache.warnings(0) != kvmeld::warning::none);
  cache.close(0);
  cache.open(0, 10);
  CHECK(cache.warnings(0) == kvmeld::warning::none);
}

}  // namespace guards_cases
