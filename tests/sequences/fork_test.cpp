// A forked sequence is the same sequence twice, until the two go their own ways.
#include "life.hpp"

#include "layout/tensors.hpp"

namespace fork_cases {

using namespace sequences_test;

namespace {

constexpr kvmeld::shape extent{2, 3, 2, 1, 12, 8, 96};

template <class Policy> void forks(char const* name, Policy const& policy) {
  CAPTURE(std::string(name));
  support::engine_memory<float> memory(extent);
  support::dice d(3);
  auto cache = cache_for(memory, policy);
  open(cache, d, 0, 60, 5, 7);
  open(cache, d, 1, 40);
  cache.compress({0}, budget::entries(32));
  feed(cache, d, 0, 3);
  auto const neighbour = digest(cache, 1);
  cache.fork(0, 2, 0, kvmeld::sequence_id{7});
  cache.freeze(2, 5);  // copied rows are the copy's own, so the beginning is not frozen by itself
  CHECK(digest(cache, 2) == digest(cache, 0));
  CHECK(cache.tokens(2) == 63);
  CHECK(cache.compressed_at(2) == cache.compressed_at(0));
  support::for_tracks(extent, 2, [&](kvmeld::track t) {
    for (kvmeld::slot_t s = cache.ref().length(t); s < extent.capacity; ++s)
      CHECK(degree(cache, t, s) == 0.0f);
  });

  // The same tokens, the same sequence; only one of them, and the other stays as it was.
  support::dice same = d;
  feed(cache, d, 0, 9);
  feed(cache, same, 2, 9);
  cache.compress({2, 0}, budget::entries(30));
  CHECK(digest(cache, 2) == digest(cache, 0));
  auto const left = digest(cache, 0);
  feed(cache, d, 2, 4);
  cache.compress({2}, budget::entries(28));
  CHECK(digest(cache, 0) == left);
  CHECK(digest(cache, 1) == neighbour);
  CHECK(digest(cache, 2) != left);
}

template <class Tensor> void copies_rows(char const* name) {
  CAPTURE(std::string(name));
  constexpr kvmeld::shape s{1, 2, 2, 1, 16, 8, 40};
  Tensor keys(s, s.key_dim), values(s, s.value_dim);
  kvmeld::cache_options options{s};
  kvmeld::merged_cache cache{kvmeld::host_executor(1), kvmeld::preset::streaming_llm::with_sinks(2),
                             kvmeld::kv{keys.view(), values.view()}, options};
  support::dice d(5);
  open(cache, d, 1, 37);
  auto const rows = rows_of(cache, 1);
  cache.fork(1, 0);
  CHECK(rows_of(cache, 0) == rows);
  CHECK(rows_of(cache, 1) == rows);
}

}  // namespace

TEST_CASE("a fork is the same sequence, for every preset") {
  each_policy([](char const* name, auto const& policy) { forks(name, policy); });
}

TEST_CASE("a fork copies rows of any layout") {
  copies_rows<layout_test::strided_tensor<float>>("strided");
  copies_rows<layout_test::transposed_tensor<kvmeld::float16>>("transposed");
  copies_rows<layout_test::paged_tensor<kvmeld::bfloat16, 7>>("paged");
  copies_rows<layout_test::interleaved_tensor<kvmeld::float16>>("interleaved");
  copies_rows<layout_test::interleaved_tensor<kvmeld::bfloat16>>("interleaved bfloat16");
  static_assert(kvmeld::has_plain_rows<support::paged<float>>::value);
  static_assert(!kvmeld::has_plain_rows<kvmeld::tiled<kvmeld::strided<float>>>::value);
  static_assert(!kvmeld::has_plain_rows<support::int8_rows>::value);
}

TEST_CASE("raw bits are copied where rows are addressed: NaN keeps its payload") {
  constexpr kvmeld::shape s{1, 2, 1, 1, 4, 4, 8};
  support::engine_memory<kvmeld::float16> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(1));
  memory.keys[2].bits = 0x7d55;
  cache.open(0, 3);
  cache.fork(0, 1);
  CHECK(memory.keys[s.capacity * s.key_dim + 2].bits == 0x7d55);
}

TEST_CASE("shared rows are the engine's: not copied, frozen in both") {
  support::engine_memory<float> memory(extent);
  support::dice d(9);
  auto cache = support::make_cache(
      memory, kvmeld::preset::chelsea::with_schedule(support::steep(), kvmeld::quantity::entries(2),
                                                     kvmeld::quantity::entries(4)));
  open(cache, d, 0, 50, 4);
  auto const before = memory;
  cache.fork(0, 1, 20, kvmeld::sequence_id{11}, kvmeld::fork_rows::shared);
  CHECK(memory == before);
  CHECK(cache.ledger().frozen[0] == 20);
  CHECK(cache.ledger().frozen[1] == 20);
  CHECK(cache.ledger().id[1] == 11);
  CHECK(cache.ledger().id[0] == 0);
  copy_rows(cache, 0, cache, 1);  // the engine
  auto const beginning = rows_of(cache, 0, 0, 20);
  cache.compress({0, 1}, budget::entries(30));
  CHECK(rows_of(cache, 0, 0, 20) == beginning);
  CHECK(rows_of(cache, 1, 0, 20) == beginning);
  CHECK(cache.longest(0) == 30);
  // The engine shares the beginning and leaves the rest to be copied.
  cache.fork(1, 2, 10);
  CHECK(rows_of(cache, 2, 0, 10) != rows_of(cache, 1, 0, 10));
  CHECK(rows_of(cache, 2, 10) == rows_of(cache, 1, 10));
  CHECK(cache.ledger().frozen[1] == 20);
  CHECK(cache.ledger().frozen[2] == 10);
  // No longer shared.
  cache.freeze(0, 0);
  cache.compress({0}, budget::entries(12));
  CHECK(cache.longest(0) == 12);
}

}  // namespace fork_cases
