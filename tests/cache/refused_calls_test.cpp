// Every call that check_calls refuses: by name, value and what is allowed, with the cache as it was.
#include "refusal.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace refused_calls_cases {

namespace {

using cache_test::refused;
using kvmeld::budget;
using kvmeld::quantity;

constexpr kvmeld::shape extent{2, 3, 2, 2, 12, 8, 64};

// Sequence 0 with 40 committed tokens, 1 with 20 committed and 3 pending, 2 closed.
template <class Policy> struct world {
  support::engine_memory<float> memory{extent};
  decltype(support::make_cache(memory, std::declval<Policy>())) cache;

  explicit world(Policy const& policy, kvmeld::cache_options options = {})
      : cache(support::make_cache(memory, policy, options)) {
    support::dice d(1);
    memory.fill_sequence(d, 0, 0, 40, support::texture::walk);
    memory.fill_sequence(d, 1, 0, 23, support::texture::walk);
    cache.open(0, 40, 5);
    cache.open(1, 20);
    cache.append({1}, {3});
  }
  template <class F> void refuses(F call, std::initializer_list<char const*> parts) {
    refused(cache, memory, call, parts);
  }
};

auto streaming() { return kvmeld::preset::streaming_llm::with_sinks(2); }

}  // namespace

TEST_CASE("open refuses") {
  world w(streaming());
  w.refuses([](auto& c) { c.open(3); }, {"open", "sequence is 3", "0 to 2"});
  w.refuses([](auto& c) { c.open(0); },
            {"open", ": sequence is 0", "it must be closed (call close first)", "close"});
  w.refuses([](auto& c) { c.open(2, 65); }, {"open", "tokens_cached is 65", "; it must be at most", "64"});
  w.refuses([](auto& c) { c.open(2, 10, 11); }, {"open", "frozen is 11", "; it must be at most", "10"});
}

TEST_CASE("close refuses") {
  world w(streaming());
  w.refuses([](auto& c) { c.close(4); }, {"close", "sequence is 4", "0 to 2"});
  w.refuses([](auto& c) { c.close(2); }, {"close", ": sequence is 2", "it must be open (call open first)",
                                          "it must be open (call open first)"});
}

TEST_CASE("append refuses") {
  world w(streaming());
  w.refuses(
      [](auto& c) {
        c.append({0, 1}, {1});
      },
      {"append", "append: number of counts is 1", "it must be 2, one for each sequence",
       ", one for each sequence"});
  w.refuses([](auto& c) { c.append({0, 7}, {1, 1}); }, {"append", "sequence is 7", "0 to 2"});
  w.refuses([](auto& c) { c.append({2}, {1}); },
            {"append", ": sequence is 2", "it must be open (call open first)"});
  w.refuses(
      [](auto& c) {
        c.append({1, 0, 1}, {1, 1, 1});
      },
      {"append", ": sequence is 1", "it must be listed only once"});
  w.refuses(
      [](auto& c) {
        c.append({1, 0}, {1, 25});
      },
      {"append", "append: counts[1] is 25", "layer 0, sequence 0, head 0", "holds 40",
       "it must be at most 24, the free entries of track (layer 0, sequence 0, head 0), which holds 40 of 64",
       "it must be at most 24, the free entries of track (layer 0, sequence 0, head 0), which holds 40 of "
       "64"});
  w.cache.append({0}, {24});  // the last that fits
  CHECK(w.cache.longest(0) == 64);
}

TEST_CASE("commit refuses") {
  world w(streaming());
  w.refuses(
      [](auto& c) {
        c.commit({1}, {1, 2});
      },
      {"commit", "commit: number of counts is 2", "it must be 1, one for each sequence",
       ", one for each sequence"});
  w.refuses([](auto& c) { c.commit({1}, {4}); },
            {"commit: accepted[0] is 4; it must be at most 3, the pending entries of sequence 1"});
  w.refuses(
      [](auto& c) {
        c.commit({1, 0}, {1, 1});
      },
      {"commit: accepted[1] is 1; it must be at most 0, the pending entries of sequence 0"});
  w.refuses([](auto& c) { c.commit({5}, {1}); }, {"commit", "sequence is 5", "0 to 2"});
  w.refuses([](auto& c) { c.commit({2}, {0}); },
            {"commit", ": sequence is 2", "it must be open (call open first)"});
  w.refuses(
      [](auto& c) {
        c.commit({1, 1}, {0, 0});
      },
      {"commit", ": sequence is 1", "it must be listed only once"});
}

TEST_CASE("observe refuses") {
  world w(kvmeld::preset::h2o::defaults());
  std::vector<std::uint32_t> const zero{0}, one{1}, two{2}, twice{0, 0}, nine{9}, many{41}, both{1, 1};
  auto const rows = [&](std::uint32_t layer, auto const& sequences, auto const& counts) {
    return [&, layer](auto& c) {
      c.observe_rows({layer, sequences, counts}, kvmeld::head_rows<float const>{});
    };
  };
  w.refuses(rows(2, zero, one), {"observe", "layer is 2", "0 to 1"});
  w.refuses(rows(0, twice, one), {"observe", "observe: number of query counts is 1",
                                  "it must be 2, one for each sequence", ", one for each sequence"});
  w.refuses(rows(0, nine, one), {"observe", "sequence is 9", "0 to 2"});
  w.refuses(rows(0, two, one), {"observe", ": sequence is 2", "it must be open (call open first)"});
  w.refuses(rows(0, twice, both), {"observe", ": sequence is 0", "it must be listed only once"});
  w.refuses(rows(0, one, one), {"observe", ": number of pending entries of sequence 1 is 3", "commit"});
  w.refuses(rows(1, zero, many), {"observe", "observe: queries[0] is 41", "layer 1, sequence 0, head 0",
                                  "it must be at most 40, the entries of track (layer 1, sequence 0, head 0) "
                                  "(the queries are those of its last tokens)",
                                  "40"});
  w.refuses(
      [&](auto& c) {
        c.observe({2, zero, one}, kvmeld::head_rows<float const>{}, kvmeld::head_rows<float const>{});
      },
      {"observe", "layer is 2", "0 to 1"});
  w.refuses(rows(0, zero, one), {"observe", "null", ".data is null"});
  w.refuses(
      [&](auto& c) {
        c.observe({0, 0, 1}, kvmeld::head_rows<float const>{}, kvmeld::head_rows<float const>{});
      },
      {"observe", "null", ".data is null"});
}

TEST_CASE("compress and plan refuse") {
  world w(streaming(), support::with_plan());
  auto const both = [&](auto const& slots, budget b, std::initializer_list<char const*> parts) {
    w.refuses([&](auto& c) { c.compress(slots, b); }, parts);
    w.refuses([&](auto& c) { c.plan(slots, b); }, parts);
    w.refuses([&](auto& c) { c.compress(slots, b); }, {"compress: "});
    w.refuses([&](auto& c) { c.plan(slots, b); }, {"plan: "});
    CHECK(w.cache.planned_work().sequence_count == 0);
  };
  using list = std::vector<std::uint32_t>;
  both(list{3}, budget::entries(10), {"sequence is 3", "0 to 2"});
  both(list{2}, budget::entries(10), {": sequence is 2", "it must be open (call open first)"});
  both(list{0, 0}, budget::entries(10), {": sequence is 0", "it must be listed only once"});
  for (double ratio : {0.0, -0.5, 1.25})
    both(list{0}, budget::ratio(ratio), {"budget ratio is", ": budget ratio is"});
  both(list{0}, budget::ratio(1.25), {"1.25"});
  both(list{0}, budget::per_track(nullptr), {"per-track", "null", "one number per track"});
  both(list{0, 1}, budget::entries(10), {": number of pending entries of sequence 1 is 3", "commit"});
  both(list{0}, budget::entries(0),
       {"layer 0, sequence 0, head 0", "is 0", ": budget of track (layer 0, sequence 0, head 0) is 0"});
  both(list{0}, budget::ratio(0.01),
       {": budget of track (layer 0, sequence 0, head 0) is 1",
        "5 sinks or frozen"});  // a ratio gives at least one
  // The frozen five do not fit.
  both(list{0}, budget::entries(4),
       {": budget of track (layer 0, sequence 0, head 0) is 4", "5 of the 40", "5 sinks or frozen",
        "it must be at least 5, because 5 of the 40 entries are pinned (5 sinks or frozen, 0 recents, 0 by "
        "score)"});
  w.cache.compress({0}, budget::entries(5));
  CHECK(w.cache.longest(0) == 5);
}

TEST_CASE("compress refuses budgets that pins overfill, and keeps one slot for sets") {
  using kvmeld::preset::chelsea::with_schedule;
  world w(with_schedule({0.4, 0.0, 0, 0.05}, quantity::entries(3), quantity::entries(6)));
  w.refuses([](auto& c) { c.compress({0}, budget::entries(11)); },
            {"compress: budget of track (layer 0, sequence 0, head 0) is 11", "11 of the 40",
             "5 sinks or frozen", "6 recents", "0 by score",
             "it must be at least 12, because 11 of the 40 entries are pinned (5 sinks or frozen, 6 recents, "
             "0 by score)"});
  w.cache.compress({0}, budget::entries(12));
  CHECK(w.cache.longest(0) == 12);
  w.refuses([](auto& c) { c.plan({0}, budget::entries(12)); }, {"plan: ", "whole_plan is false", "compress"});
}

TEST_CASE("compress refuses scores that were never fed") {
  world w(kvmeld::preset::h2o::defaults());
  w.refuses([](auto& c) { c.compress({0}, budget::entries(20)); },
            {"attention", "layer 0, sequence 0, head 0", "call observe"});
  std::vector<float> const rows(std::size_t{1} * extent.query_heads() * extent.capacity, 0.5f);
  std::vector<std::uint32_t> const zero{0}, one{1};
  auto const view = kvmeld::rows_by_head<float const>(rows.data(), 1, extent.query_heads(), extent.capacity);
  w.cache.observe_rows({0, zero, one}, view);
  w.refuses([](auto& c) { c.compress({0}, budget::entries(20)); },
            {"attention", "layer 1, sequence 0, head 0", "every layer"});
  w.cache.observe_rows({1, zero, one}, view);
  w.cache.compress({0}, budget::entries(20));
  CHECK(w.cache.longest(0) == 20);
}

TEST_CASE("rebind refuses tensors that do not fit") {
  world w(streaming());
  auto const x = w.memory.tensors();
  auto const bind = [&](auto keys, auto values) {
    return [=](auto& c) { c.rebind(kvmeld::kv{keys, values}); };
  };
  kvmeld::strided<float> const narrow(w.memory.keys.data(), "LSHTC", extent, 11);
  w.refuses(bind(narrow, x.values),
            {"keys", "rebind: keys: number of channels is 11", "12", ", as the shape says"});
  kvmeld::strided<float> const wide(w.memory.values.data(), "LSHTC", extent, 9);
  w.refuses(bind(x.keys, wide),
            {"values", "rebind: values: number of channels is 9", "8", ", as the shape says"});
  kvmeld::strided<float> const null(nullptr, "LSHTC", extent, 8);
  w.refuses(bind(x.keys, null), {"values", "null", "tensor"});
}

}  // namespace refused_calls_cases
