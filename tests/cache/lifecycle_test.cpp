// The life of a sequence: open, append, commit, compress, close; and of a cache: copies, rebinding, what it
// reports.
#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

namespace lifecycle_cases {

namespace {

using kvmeld::budget;
using kvmeld::quantity;

constexpr kvmeld::shape extent{2, 3, 2, 1, 12, 8, 64};

template <class Cache> std::vector<int> positions(Cache const& cache, std::uint32_t sequence) {
  std::vector<int> out;
  kvmeld::track const t = cache.ref().where(0, sequence, 0);
  for (kvmeld::slot_t s = 0; s < cache.ref().length(t); ++s) out.push_back(cache.ref().position(t, s));
  return out;
}

auto chelsea() {
  return kvmeld::preset::chelsea::with_schedule({0.4, 0.0, 0, 0.05}, quantity::entries(2),
                                                quantity::entries(4));
}

}  // namespace

TEST_CASE("an opened sequence holds its cached tokens, once each") {
  support::engine_memory<float> memory(extent);
  auto cache = support::make_cache(memory, kvmeld::preset::h2o::defaults());
  CHECK(cache.longest(1) == 0);
  cache.open(1, 20, 6, kvmeld::sequence_id{99});
  auto const& l = cache.ledger();
  CHECK(l.is_open[1] == 1);
  CHECK(l.is_open[0] == 0);
  CHECK(l.seen[1] == 20);
  CHECK(l.pending[1] == 0);
  CHECK(l.frozen[1] == 6);
  CHECK(l.id[1] == 99);
  CHECK(cache.longest(1) == 20);
  CHECK(cache.entries(1) == 80);
  CHECK(cache.entries(0) == 0);
  CHECK(cache.warnings(1) == kvmeld::warning::none);
  support::for_tracks(extent, 1, [&](kvmeld::track t) {
    CHECK(cache.length(t.layer, 1, t.kv_head) == 20);
    for (kvmeld::slot_t s = 0; s < extent.capacity; ++s) {
      CHECK(cache.ref().degree(t, s) == (s < 20 ? 1.0f : 0.0f));
      if (s >= 20) continue;
      CHECK(cache.ref().log_degree(t, s) == 0.0f);
      CHECK(cache.ref().position(t, s) == static_cast<int>(s));
      CHECK(l.channel_data[0][l.at(t, s)] == 0.0f);
    }
  });
  CHECK(cache.ref().extent().capacity == extent.capacity);
}

TEST_CASE("appended entries are pending until committed, and rejected drafts leave no trace") {
  support::engine_memory<float> memory(extent);
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  cache.open(0, 10);
  cache.open(2);
  auto const before = support::ledger_bytes(cache);
  cache.append({0, 2}, {5, 1});
  CHECK(cache.ledger().pending[0] == 5);
  CHECK(cache.ledger().pending[2] == 1);
  CHECK(cache.ledger().seen[0] == 10);
  CHECK(cache.longest(0) == 15);
  CHECK(cache.longest(2) == 1);
  CHECK(cache.tokens(0) == 15);
  cache.append({0}, {2});  // drafts may come in parts
  CHECK(cache.ledger().pending[0] == 7);
  CHECK(positions(cache, 0).back() == 16);
  cache.commit({2, 0}, {0, 3});
  CHECK(cache.longest(2) == 0);
  CHECK(cache.ledger().seen[2] == 0);
  CHECK(cache.longest(0) == 13);
  CHECK(cache.ledger().pending[0] == 0);
  CHECK(cache.ledger().seen[0] == 13);
  CHECK(cache.tokens(0) == 13);
  support::for_tracks(extent, 0, [&](kvmeld::track t) {
    CHECK(cache.ref().degree(t, 12) == 1.0f);
    CHECK(cache.ref().length(t) == 13);
  });
  cache.append({0}, {2});  // the next tokens take the positions of the rejected ones
  CHECK(positions(cache, 0) == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14});
  cache.commit({0}, {2});
  cache.append({}, {});
  cache.commit({}, {});
  CHECK(before != support::ledger_bytes(cache));
}

TEST_CASE("positions go on from the tokens seen, however few entries are held") {
  support::engine_memory<float> memory(extent);
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  cache.open(0, 30);
  cache.compress({0}, budget::entries(6));
  CHECK(positions(cache, 0) == std::vector<int>{0, 1, 26, 27, 28, 29});
  cache.append({0}, {4});
  cache.commit({0}, {1});
  cache.append({0}, {1});
  CHECK(positions(cache, 0) == std::vector<int>{0, 1, 26, 27, 28, 29, 30, 31});
  cache.commit({0}, {1});
  CHECK(cache.ledger().seen[0] == 32);
  CHECK(cache.length(0, 0, 0) == 8);
  // A ratio counts tokens seen, so that it does not shrink the same tokens twice.
  cache.compress({0}, budget::ratio(0.25));
  CHECK(cache.longest(0) == 8);
}

TEST_CASE("per-track budgets make ragged lengths") {
  support::engine_memory<float> memory(extent);
  support::dice d(1);
  memory.fill_sequence(d, 0, 0, 40, support::texture::walk);
  auto cache = support::make_cache(memory, chelsea());
  cache.open(0, 40);
  std::vector<std::uint32_t> table(extent.tracks(), 1000);
  support::for_tracks(extent, 0, [&](kvmeld::track t) { table[t.index] = 12 + 7 * t.layer + 3 * t.kv_head; });
  cache.compress({0}, budget::per_track(table.data()));
  support::for_tracks(extent, 0, [&](kvmeld::track t) { CHECK(cache.ref().length(t) == table[t.index]); });
  CHECK(cache.longest(0) == 22);
  CHECK(cache.entries(0) == 12 + 15 + 19 + 22);
}

TEST_CASE("budgets per layer are the budgets per track of its heads, shared or not") {
  for (auto const among : {kvmeld::budget_scope::head, kvmeld::budget_scope::layer}) {
    support::engine_memory<float> memory(extent), other(extent);
    support::dice d(1), e(1);
    memory.fill_sequence(d, 0, 0, 40, support::texture::walk);
    other.fill_sequence(e, 0, 0, 40, support::texture::walk);
    kvmeld::cache_options options;
    options.budgets_over = kvmeld::budget_scope::layer;
    auto const policy = kvmeld::preset::keydiff::for_budget();
    auto a = support::make_cache(memory, policy, options), b = support::make_cache(other, policy, options);
    a.open(0, 40);
    b.open(0, 40);
    std::vector<std::uint32_t> tracks(extent.tracks(), 1000), layers;
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) layers.push_back(30 - 11 * layer);
    support::for_tracks(extent, 0, [&](kvmeld::track t) { tracks[t.index] = layers[t.layer]; });
    a.compress({0}, budget::per_track(tracks.data()).over(among));
    b.compress({0}, budget::per_layer(layers.data()).over(among));
    CHECK(memory == other);
    support::for_tracks(extent, 0, [&](kvmeld::track t) {
      CHECK(b.ref().length(t) == a.ref().length(t));
      if (among == kvmeld::budget_scope::head) CHECK(b.ref().length(t) == layers[t.layer]);
    });
  }
}

TEST_CASE("a closed slot can be opened again and starts afresh") {
  support::engine_memory<float> memory(extent);
  support::dice d(2);
  memory.fill_sequence(d, 1, 0, 50, support::texture::walk);
  auto cache = support::make_cache(memory, chelsea());
  cache.open(1, 50, 3, kvmeld::sequence_id{5});
  cache.compress({1}, budget::entries(20));
  CHECK(cache.rounds(1) > 0);
  cache.close(1);
  CHECK(cache.ledger().is_open[1] == 0);
  cache.open(1, 4);
  CHECK(cache.longest(1) == 4);
  CHECK(cache.rounds(1) == 0);
  CHECK(cache.ledger().frozen[1] == 0);
  CHECK(cache.ledger().seen[1] == 4);
  CHECK(positions(cache, 1) == std::vector<int>{0, 1, 2, 3});
  support::for_tracks(extent, 1, [&](kvmeld::track t) {
    CHECK(cache.ref().length(t) == 4);
    for (kvmeld::slot_t s = 0; s < 4; ++s) CHECK(cache.ref().degree(t, s) == 1.0f);
  });
}

TEST_CASE("rounds count a sequence's steps until they are reset") {
  support::engine_memory<float> memory(extent);
  support::dice d(3);
  for (std::uint32_t s : {0u, 1u}) memory.fill_sequence(d, s, 0, 60, support::texture::walk);
  auto cache = support::make_cache(memory, chelsea());
  cache.open(0, 60);
  cache.open(1, 60);
  cache.compress({0}, budget::entries(30));  // 60 - 21 = 39, then 9 of 33
  CHECK(cache.rounds(0) == 2);
  CHECK(cache.rounds(1) == 0);
  cache.compress({0, 1}, budget::entries(28));  // 0 needs one more, 1 goes on its own count
  CHECK(cache.rounds(0) == 3);
  CHECK(cache.rounds(1) == 2);
  cache.compress({0, 1}, budget::entries(28));  // nothing to do
  CHECK(cache.rounds(0) == 3);
  cache.set_rounds(0, 0);
  CHECK(cache.rounds(0) == 0);
  CHECK(cache.rounds(1) == 2);
}

TEST_CASE("a trigger is due by the longest track") {
  support::engine_memory<float> memory(extent);
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  cache.open(0, 20);
  CHECK_FALSE(cache.due(0, {10, 11}));
  CHECK(cache.due(0, {10, 10}));
  cache.append({0}, {1});
  CHECK(cache.due(0, {10, 11}));
}

TEST_CASE("warnings tell about rows that are not numbers and budgets out of reach") {
  support::engine_memory<float> memory(extent);
  support::dice d(4);
  for (std::uint32_t s : {0u, 1u}) memory.fill_sequence(d, s, 0, 40, support::texture::walk);
  auto const spoil = [&](std::uint32_t sequence, kvmeld::slot_t slot) {
    support::put_row(memory.tensors().values, kvmeld::make_track(extent, 0, sequence, 0), slot,
                     std::vector<float>(extent.value_dim, kvmeld::bits_float(0x7f800000u)));
  };
  spoil(0, 20);
  spoil(1, 0);  // pinned: it stays, whatever it holds
  auto cache = support::make_cache(memory, chelsea());
  cache.open(0, 40);
  cache.open(1, 40);
  cache.compress({0, 1}, budget::entries(20));
  CHECK(cache.warnings(0) == kvmeld::warning::nonfinite_rows);
  CHECK(cache.warnings(1) == kvmeld::warning::none);
  // Every key of the middle is broken: nothing merges, the budget is out of reach, or evicted for.
  for (std::uint32_t i = 0; i < 2; ++i) {
    support::engine_memory<float> broken(extent);
    broken.fill_sequence(d, 0, 0, 40, support::texture::walk);
    support::for_tracks(extent, 0, [&](kvmeld::track t) {
      for (kvmeld::slot_t s = 2; s < 36; ++s)
        support::put_row(broken.tensors().keys, t, s,
                         std::vector<float>(extent.key_dim, kvmeld::bits_float(0x7fc00000u)));
    });
    auto other = support::make_cache(broken, chelsea());
    other.open(0, 40);
    other.compress({0}, budget::entries(20),
                   i == 0 ? kvmeld::shortfall::keep : kvmeld::shortfall::evict_lowest);
    std::uint32_t const kind = i == 0 ? kvmeld::warning::budget_unreached : kvmeld::warning::evicted_fallback;
    CHECK(other.warnings(0) == (kvmeld::warning::nonfinite_rows | kind));
    CHECK(other.longest(0) == (i == 0 ? 40 : 20));
  }
}

TEST_CASE("emptied values are zeroed, or left to an engine that never reads them") {
  auto const life = [](auto const& policy, bool evicts) {
    support::dice d(6);
    support::engine_memory<kvmeld::bfloat16> at_first(extent);
    at_first.fill_sequence(d, 0, 0, 40, support::texture::walk);
    auto zeroed = at_first, left = at_first;
    kvmeld::cache_options options{};
    auto other = support::make_cache(left, policy, options);
    options.zero_emptied = true;
    auto cache = support::make_cache(zeroed, policy, options);
    for (auto* c : {&cache, &other}) {
      c->open(0, 40);
      kvmeld::testing::watch const before(*c);
      CHECK(c->compress({0}, budget::entries(15)).ok());
      CHECK(before.after_compress(*c, {0}) == "");
    }
    CHECK(support::ledger_bytes(other) == support::ledger_bytes(cache));
    std::uint32_t unlike = 0, changed = 0, zeros = 0, behind = 0;
    support::for_tracks(extent, 0, [&](kvmeld::track t) {
      std::uint32_t const n = cache.ref().length(t);
      for (kvmeld::slot_t s = 0; s < 40; ++s) {
        auto const row = support::get_row(zeroed.tensors().values, t, s),
                   own = support::get_row(left.tensors().values, t, s);
        if (s < n) {
          unlike += support::same_bits(row, own) ? 0 : 1;
          continue;
        }
        ++behind;
        zeros += support::same_bits(row, std::vector<float>(row.size(), 0.0f)) ? 1 : 0;
        changed += support::same_bits(own, support::get_row(at_first.tensors().values, t, s)) ? 0 : 1;
      }
    });
    CHECK(unlike == 0);
    CHECK(behind >= 4 * 25);
    CHECK(zeros == behind);
    if (evicts) CHECK(changed == 0);  // merged rows are written where they were
  };
  life(kvmeld::preset::streaming_llm::with_sinks(2), true);
  life(chelsea(), false);
}

TEST_CASE("nothing to do changes no bit") {
  support::engine_memory<kvmeld::float16> memory(extent);
  support::dice d(5);
  memory.fill_sequence(d, 0, 0, 40, support::texture::walk);
  auto cache = support::make_cache(memory, chelsea());
  cache.open(0, 40);
  cache.compress({0}, budget::entries(20));
  cache.compress({0}, budget::entries(20));  // takes no round, which the ledger notes
  auto const ledger = support::ledger_bytes(cache);
  auto const held = memory;
  cache.compress({0}, budget::entries(20));
  cache.compress({0}, budget::entries(64));
  cache.compress({}, budget::entries(5));
  CHECK(memory == held);
  CHECK(support::ledger_bytes(cache) == ledger);
}

}  // namespace lifecycle_cases
