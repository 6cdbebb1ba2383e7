// Every refusal of fork, truncate, freeze and the readings, with the cache as it was.
#include "life.hpp"

#include "layout/tensors.hpp"

namespace refused_sequences_cases {

using namespace sequences_test;
using cache_test::check_text;
using cache_test::refusal_of;
using cache_test::refused;

namespace {

constexpr kvmeld::shape extent{2, 4, 2, 1, 12, 8, 64};

// Sequence 0 ragged with 12 to 15 of 40 tokens and 3 more, 1 with 3 pending entries, 2 with 20 tokens, 5 of
// them frozen; 3 is closed.
struct world {
  support::engine_memory<float> memory{extent};
  decltype(support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2))) cache =
      support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  world() {
    std::vector<std::uint32_t> table(extent.tracks());
    support::for_tracks(extent, 0, [&](kvmeld::track t) { table[t.index] = 12 + 2 * t.layer + t.kv_head; });
    cache.open(0, 40);
    cache.compress({0}, budget::per_track(table.data()));
    cache.append({0}, {3});
    cache.commit({0}, {3});
    cache.open(1, 20);
    cache.append({1}, {3});
    cache.open(2, 20, 5);
  }
  template <class F> void refuses(F call, std::initializer_list<char const*> parts) {
    refused(cache, memory, call, parts);
  }
};

}  // namespace

TEST_CASE("fork refuses") {
  world w;
  w.refuses([](auto& c) { c.fork(9, 3); }, {"fork", "sequence is 9", "0 to 3"});
  w.refuses([](auto& c) { c.fork(0, 4); }, {"fork", "sequence is 4", "0 to 3"});
  w.refuses([](auto& c) { c.fork(3, 3); }, {"fork", ": sequence is 3", "it must be open (call open first)"});
  w.refuses([](auto& c) { c.fork(0, 0); },
            {"fork", "fork: sequence is 0", "it must be closed (call close first)", "close"});
  w.refuses([](auto& c) { c.fork(0, 2); },
            {"fork", "fork: sequence is 2", "it must be closed (call close first)", "close"});
  w.refuses([](auto& c) { c.fork(1, 3); },
            {"fork", "sequence 1", ": number of pending entries of sequence 1 is 3", "commit"});
  for (auto how : {kvmeld::fork_rows::copy, kvmeld::fork_rows::shared}) {
    w.refuses([&](auto& c) { c.fork(0, 3, 16, {}, how); },
              {"fork", "frozen is 16",
               "it must be at most 15, the committed entries of the shortest track of sequence 0",
               "shortest track"});
    w.cache.fork(0, 3, 15, {}, how);
    w.cache.close(3);
  }
}

TEST_CASE("fork refuses to copy into pages that are shared") {
  using tensor = layout_test::paged_tensor<float, 8>;
  tensor keys(extent, extent.key_dim), values(extent, extent.value_dim);
  kvmeld::cache_options const options{extent};
  kvmeld::merged_cache cache{kvmeld::host_executor(1), kvmeld::preset::streaming_llm::with_sinks(2),
                             kvmeld::kv{keys.view(), values.view()}, options};
  cache.open(0, 20);
  auto const page = static_cast<std::size_t>(values.table[2 * tensor::pages(extent) + 1]);
  values.shared[page] = 1;  // slots 8 to 15 of sequence 2
  auto const before = keys.bytes();
  check_text(refusal_of([&] { cache.fork(0, 2, 7); }),
             {"fork", "slot 8", "layer 0, sequence 2, head 0",
              "fork: slot 8 of track (layer 0, sequence 2, head 0) is not writable", "frozen = 7", "shared"});
  CHECK(keys.bytes() == before);
  CHECK(cache.ledger().is_open[2] == 0);
  cache.fork(0, 2, 16);
  cache.close(2);
  cache.fork(0, 2, 0, {}, kvmeld::fork_rows::shared);
}

TEST_CASE("truncate refuses") {
  world w;
  w.refuses([](auto& c) { c.truncate(4, 1); }, {"truncate", "sequence is 4", "0 to 3"});
  w.refuses([](auto& c) { c.truncate(3, 1); },
            {"truncate", ": sequence is 3", "it must be open (call open first)"});
  w.refuses([](auto& c) { c.truncate(1, 20); },
            {"truncate", "sequence 1", ": number of pending entries of sequence 1 is 3", "commit"});
  w.refuses([](auto& c) { c.truncate(0, 39); },
            {"truncate", "tokens is 39", "sequence 0",
             "it must be 40 to 43, the tokens of sequence 0 that are seen but not compressed",
             "it must be 40 to 43, the tokens of sequence 0 that are seen but not compressed"});
  w.refuses([](auto& c) { c.truncate(0, 44); },
            {"truncate", "tokens is 44",
             "it must be 40 to 43, the tokens of sequence 0 that are seen but not compressed"});
  w.refuses([](auto& c) { c.truncate(2, 4); },
            {"truncate", "tokens is 4",
             "it must be 5 to 20, the tokens of sequence 2 that are seen but not frozen", "frozen"});
  w.refuses([](auto& c) { c.truncate(2, 21); },
            {"truncate", "tokens is 21",
             "it must be 5 to 20, the tokens of sequence 2 that are seen but not frozen"});
  w.cache.freeze(0, 14);
  w.refuses([](auto& c) { c.truncate(0, 41); },
            {"truncate", "tokens is 41",
             "it must be 42 to 43, the tokens of sequence 0 that are seen but not frozen", "frozen"});
  w.cache.truncate(0, 42);
  w.cache.close(2);
  w.cache.open(2, 5);
  w.refuses([](auto& c) { c.truncate(2, 6); },
            {"truncate", "tokens is 6", "it must be 0 to 5, the tokens of sequence 2 that are seen",
             "it must be 0 to 5, the tokens of sequence 2 that are seen"});
}

TEST_CASE("freeze refuses") {
  world w;
  w.refuses([](auto& c) { c.freeze(5, 1); }, {"freeze", "sequence is 5", "0 to 3"});
  w.refuses([](auto& c) { c.freeze(3, 1); },
            {"freeze", ": sequence is 3", "it must be open (call open first)"});
  w.refuses([](auto& c) { c.freeze(0, 16); },
            {"freeze", "frozen is 16",
             "it must be at most 15, the committed entries of the shortest track of sequence 0",
             "shortest track"});
  w.refuses([](auto& c) { c.freeze(1, 21); },
            {"freeze", "frozen is 21",
             "it must be at most 20, the committed entries of the shortest track of sequence 1"});
  w.cache.freeze(1, 20);
  w.cache.commit({1}, {0});
}

TEST_CASE("committing more than was appended is refused, on ragged tracks too") {
  world w;
  w.cache.append({0}, {4});
  w.refuses([](auto& c) { c.commit({0}, {5}); }, {"commit", "commit: accepted[0] is 5", "sequence 0",
                                                  "it must be at most 4, the pending entries of sequence 0"});
  w.refuses([](auto& c) { c.compress({0}, budget::entries(10)); },
            {"compress", "compress: number of pending entries of sequence 0 is 4", "commit"});
  auto const before = rows_of(w.cache, 0, 0, 15);
  w.cache.commit({0}, {1});
  support::for_tracks(extent, 0, [&](kvmeld::track t) {
    std::uint32_t const n = 12 + 2 * t.layer + t.kv_head + 3 + 1;
    CHECK(w.cache.ref().length(t) == n);
    CHECK(w.cache.ref().position(t, n - 1) == 43);
    CHECK(w.cache.ref().degree(t, n - 1) == 1.0f);
  });
  CHECK(rows_of(w.cache, 0, 0, 15) == before);
  w.refuses([](auto& c) { c.commit({0}, {1}); }, {"commit", "commit: accepted[0] is 1",
                                                  "it must be at most 0, the pending entries of sequence 0"});
}

TEST_CASE("readings refuse arguments out of range") {
  world w;
  w.refuses([](auto& c) { c.length(2, 0, 0); }, {"length", "layer is 2", "0 to 1"});
  w.refuses([](auto& c) { c.length(0, 4, 0); }, {"length", "sequence is 4", "0 to 3"});
  w.refuses([](auto& c) { c.length(0, 0, 2); }, {"length", "head is 2", "0 to 1"});
  w.refuses([](auto& c) { c.longest(4); }, {"longest", "sequence is 4", "0 to 3"});
  w.refuses([](auto& c) { c.length_bound(4); }, {"length_bound", "sequence is 4", "0 to 3"});
  w.refuses([](auto& c) { c.sync_lengths(4); }, {"sync_lengths", "sequence is 4", "0 to 3"});
  w.refuses([](auto& c) { c.length_after(4, budget::entries(3)); }, {"length_after", "sequence is 4"});
  w.refuses([](auto& c) { c.tokens(4); }, {"tokens", "sequence is 4", "0 to 3"});
  w.refuses([](auto& c) { c.entries(4); }, {"entries", "sequence is 4", "0 to 3"});
  w.refuses([](auto& c) { c.warnings(4); }, {"warnings", "sequence is 4", "0 to 3"});
  w.refuses([](auto& c) { c.due(4, {1, 1}); }, {"length_bound", "sequence is 4", "0 to 3"});
  w.refuses([](auto& c) { c.rounds(4); }, {"rounds", "sequence is 4", "0 to 3"});
  w.refuses([](auto& c) { c.set_rounds(4, 0); }, {"set_rounds", "sequence is 4", "0 to 3"});
  w.refuses([](auto& c) { c.compressed_at(4); }, {"compressed_at", "sequence is 4", "0 to 3"});
  auto moved = std::move(w.cache);
  check_text(refusal_of([&] { w.cache.longest(0); }), {"moved from"});
  CHECK(moved.longest(0) == 18);
}

}  // namespace refused_sequences_cases
