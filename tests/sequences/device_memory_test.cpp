// A cache whose ledger the host cannot touch does what a cache in host memory does, call by call.
#include "twins.hpp"

#include "layout/tensors.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace device_memory_cases {

using namespace sequences_test;

TEST_CASE("the host never looks at memory of a device, and gets the same entries") {
  each_policy([](char const* name, auto const& policy) {
    CAPTURE(std::string(name));
    for (auto fallback : {kvmeld::shortfall::keep, kvmeld::shortfall::evict_lowest}) {
      twins<std::decay_t<decltype(policy)>> pair(policy, 31);
      pair.open(0);
      pair.open(1);
      for (int step = 0; step < 25; ++step) {
        pair.append();
        pair.compress(fallback);
        pair.check();
        pair.other_calls();
        pair.check();
      }
    }
  });
}

TEST_CASE("attention over memory of a device") {
  support::dice d(5);
  support::engine_memory<float> memory(extent);
  memory.fill_sequence(d, 0, 0, 40, support::texture::walk);
  memory.fill_sequence(d, 1, 0, 30, support::texture::walk);
  auto const policy = kvmeld::preset::streaming_llm::with_sinks();
  auto near = cache_for(memory, policy);
  kvmeld::merged_cache far{support::fenced_executor(), policy, memory.tensors(),
                           kvmeld::cache_options{extent}};
  std::uint32_t const slots[] = {0, 1}, counts[] = {2, 1};
  std::vector<float> q(2 * 2 * extent.query_heads() * extent.key_dim);
  for (float& x : q) x = static_cast<float>(d.normal());
  auto const attend = [&](auto& cache) {
    cache.open(0, 40);
    cache.open(1, 30);
    std::vector<float> out(2 * 2 * extent.query_heads() * extent.value_dim);
    kvmeld::attention::attend(
        cache.executor(), kvmeld::query_batch{1, {slots, 2}, {counts, 2}},
        kvmeld::rows_by_token<float const>(q.data(), 2, extent.query_heads(), extent.key_dim), cache.ref(),
        kvmeld::rows_by_token(out.data(), 2, extent.query_heads(), extent.value_dim));
    std::vector<float> bias(2 * extent.kv_heads * extent.capacity);
    kvmeld::attention::write_log_degree(
        cache.executor(), cache.ref(), 1, {slots, 2},
        kvmeld::rows_by_head(bias.data(), 1, extent.kv_heads, extent.capacity));
    out.insert(out.end(), bias.begin(), bias.end());
    return out;
  };
  CHECK(attend(near) == attend(far));
}

namespace {

// Rows of which the first ones of every track may not be written, as pages shared with another sequence.
struct guarded : kvmeld::addressed_rows<guarded, float> {
  static constexpr int channel_run = 0, token_run = 1;
  kvmeld::strided<float> rows;
  kvmeld::slot_t shared;
  guarded(kvmeld::strided<float> const& r, kvmeld::slot_t n) : rows(r), shared(n) {}
  kvmeld::segment<float> locate(kvmeld::track t, kvmeld::slot_t s) const { return rows.locate(t, s); }
  std::uint32_t channels() const { return rows.channels(); }
  bool writable(kvmeld::track, kvmeld::slot_t s) const { return s >= shared; }
};

}  // namespace

TEST_CASE("a report is asked for and polled, and what happens meanwhile is taken into account") {
  support::dice d(6);
  support::engine_memory<float> memory(extent), twin(extent);
  for (std::uint32_t q : {0u, 1u, 2u}) memory.fill_sequence(d, q, 0, 90, support::texture::walk);
  twin = memory;
  // Sets beyond the budget: lengths follow from data, and the host has bounds.
  auto const policy = kvmeld::preset::chelsea::with_schedule(
      {0.4, 0.1, 2, 0.05}, kvmeld::quantity::entries(2), kvmeld::quantity::entries(4));
  auto near = cache_for(twin, policy);
  kvmeld::merged_cache far{support::fenced_executor(), policy, memory.tensors(),
                           kvmeld::cache_options{extent}};
  auto const both = [&](auto f) {
    f(near);
    f(far);
  };
  auto const arrive = [&] {
    CHECK_FALSE(far.poll_lengths());
    CHECK_FALSE(far.poll_lengths());
    CHECK(far.poll_lengths());
    CHECK_FALSE(far.poll_lengths());
  };
  CHECK_FALSE(far.poll_lengths());  // none was asked for
  CHECK(near.poll_lengths());
  both([](auto& c) {
    c.open(0, 60);
    c.open(1, 60);
    c.compress({0, 1}, budget::entries(30), kvmeld::shortfall::keep);
  });
  CHECK(near.longest(0) == 30);
  CHECK(far.length_bound(0) == 60);
  far.request_lengths();
  auto elsewhere = std::move(far);  // what is under way moves with the cache
  far = std::move(elsewhere);
  both([](auto& c) {
    c.append({0, 1}, {5, 3});
    c.commit({0}, {2});
    c.truncate(0, c.tokens(0) - 1);
    c.open(2, 50);
  });
  CHECK(far.length_bound(0) == 61);
  arrive();
  for (std::uint32_t q : {0u, 1u, 2u}) {
    CHECK(far.length_bound(q) == near.longest(q));
    CHECK(far.rounds(q) == near.rounds(q));
    CHECK(far.compressed_at(q) == near.compressed_at(q));
    CHECK(far.warnings(q) == near.warnings(q));
  }
  // Compressed while it was under way: a bound from before holds, warnings and rounds wait for the next one.
  both([](auto& c) { c.compress({0}, budget::entries(20), kvmeld::shortfall::keep); });
  far.request_lengths();
  std::uint32_t const rounds = far.rounds(0), was = near.longest(0);
  both([](auto& c) { c.compress({0}, budget::entries(15), kvmeld::shortfall::keep); });
  arrive();
  CHECK(far.length_bound(0) == was);
  CHECK(near.longest(0) < was);
  CHECK(far.rounds(0) == rounds);
  // Another sequence in its slot: the report says nothing about it. A copy of the cache waits for nothing.
  far.request_lengths();
  auto copy = support::twin_of(far);
  CHECK_FALSE(copy.poll_lengths());
  far.close(2);
  far.open(2, 70);
  arrive();
  CHECK(far.length_bound(2) == 70);
  CHECK(far.length_bound(0) == near.longest(0));
  CHECK(far.rounds(0) == near.rounds(0));
  // The step of a schedule, which the host knows at once and the device from then on.
  near.close(2);
  near.open(2, 70);
  both([](auto& c) {
    c.set_rounds(2, 7);
    CHECK(c.rounds(2) == 7);
  });
  far.request_lengths();
  arrive();
  CHECK(far.rounds(2) == 7);
  both([](auto& c) { c.compress({2}, budget::entries(30)); });
  far.sync_lengths(2);
  CHECK(near.rounds(2) > 7);
  CHECK(far.rounds(2) == near.rounds(2));
}

TEST_CASE("whatever the host believes, entries stay in their track") {
  support::engine_memory<float> memory(extent);
  auto cache = cache_for(memory, kvmeld::preset::streaming_llm::with_sinks());
  cache.open(0, extent.capacity - 3);
  cache.open(1, 7, 0, kvmeld::sequence_id{5});
  auto const degrees = [&] {
    auto const& l = cache.ledger();
    kvmeld::track const t = kvmeld::make_track(extent, 0, 1, 0);
    return std::vector<float>(l.degree + l.at(t, 0), l.degree + l.at(t, extent.capacity));
  };
  auto const before = degrees();
  std::uint32_t const slot = 0, five = 5, four = 4;
  auto const launch = [&](auto const& phase) {
    kvmeld::track_source const source{extent, phase.work};
    cache.executor().run(phase, extent, phase.work.tracks(extent), source);
  };
  namespace sequences = kvmeld::sequences;
  // What no host that can look would do.
  launch(sequences::tracks_phase<sequences::append>{{cache.ledger(), {&slot, 1}, &five}, {}});
  launch(sequences::numbers_phase<sequences::append>{{cache.ledger(), {&slot, 1}, &five}, {}});
  CHECK(cache.length(0, 0, 0) == extent.capacity);
  CHECK(cache.warnings(0) == kvmeld::warning::overfull);
  CHECK(cache.warnings(1) == kvmeld::warning::none);
  launch(sequences::tracks_phase<sequences::commit>{{cache.ledger(), {&slot, 1}, &four}, {}});
  CHECK(cache.length(0, 0, 0) <= extent.capacity);
  CHECK(cache.length(0, 0, 0) >= extent.capacity - 5);
  CHECK(degrees() == before);
}

TEST_CASE("layouts that lie in memory of a device: tensors move, and what is recorded follows them") {
  support::dice d(8);
  support::engine_memory<float> memory(extent), moved(extent), expected(extent);
  for (std::uint32_t q : {0u, 1u}) memory.fill_sequence(d, q, 0, 60, support::texture::walk);
  expected = memory;
  auto const policy = kvmeld::preset::chelsea::with_schedule(
      {0.4, 0.1, 2, 0.05}, kvmeld::quantity::entries(2), kvmeld::quantity::entries(4));
  constexpr kvmeld::slot_t shared = 5;
  auto const layouts = [&](support::engine_memory<float>& m) {
    auto const x = m.tensors();
    return kvmeld::kv{guarded(x.keys, shared), guarded(x.values, shared)};
  };
  auto near = kvmeld::merged_cache{kvmeld::host_executor(1), policy, layouts(expected),
                                   kvmeld::cache_options{extent}};

  support::fenced_executor executor;
  auto const place = executor.allocate(2 * sizeof(guarded));
  auto* const at = static_cast<guarded*>(place.data());
  auto const put = [&](support::engine_memory<float>& m) {
    auto const now = layouts(m);
    executor.upload(at, &now.keys, sizeof now.keys);
    executor.upload(at + 1, &now.values, sizeof now.values);
  };
  put(memory);
  using there = kvmeld::relocatable<guarded>;
  kvmeld::merged_cache far{executor, policy,
                           kvmeld::kv{there(at, extent.key_dim), there(at + 1, extent.value_dim)},
                           kvmeld::cache_options{extent}};
  auto const both = [&](auto f) {
    f(near);
    f(far);
  };
  both([](auto& c) {
    c.open(0, 60);
    c.open(1, 60);
  });
  support::fenced_graph shrink(far.executor());
  auto const compress = [](auto& c, std::uint32_t n) { c.compress({0, 1}, budget::entries(n)); };
  compress(near, 40);
  CHECK(shrink.record(far.executor(), [&] { compress(far, 40); }) == "");
  CHECK(memory == expected);
  moved = memory;
  put(moved);
  support::engine_memory<float> const left = memory;
  compress(near, 30);
  CHECK(shrink.replay(far.executor(), [&] { compress(far, 30); }) == "");
  CHECK(moved == expected);
  CHECK(memory == left);
  for (std::uint32_t q : {0u, 1u}) CHECK(far.save(q) == near.save(q));
  // What the host cannot see it cannot refuse: phases leave alone what may not be written.
  CHECK(cache_test::refusal_of([&] { near.fork(0, 2); }).find("fork: slot 0 of track") == 0);
  support::engine_memory<float> before = moved;
  far.fork(0, 2);
  support::for_tracks(extent, 2, [&](kvmeld::track t) {
    for (kvmeld::slot_t s = 0; s < 30; ++s) {
      kvmeld::track const from = kvmeld::make_track(extent, t.layer, 0, t.kv_head);
      auto const was = s < shared ? support::get_row(before.tensors().keys, t, s)
                                  : support::get_row(moved.tensors().keys, from, s);
      CHECK(support::get_row(moved.tensors().keys, t, s) == was);
    }
  });
}

TEST_CASE("an identifier never needs more rounds than it says") {
  support::dice d(9);
  std::uint32_t most = 0;
  for (int run = 0; run < 60; ++run) {
    kvmeld::shape const s{1, 1, 1, 1, 12, 8, 400};
    support::engine_memory<float> memory(s);
    std::uint32_t const n = d.between(40, 400), limit = d.between(20, n);
    memory.fill_sequence(d, 0, 0, n, support::texture::walk);
    double const floor = 0.02 * d.between(1, 10);
    auto policy = kvmeld::preset::chelsea::with_schedule({0.45, 0.1, d.below(5), floor},
                                                         kvmeld::quantity::entries(d.below(9)),
                                                         kvmeld::quantity::entries(d.below(9)));
    policy.identify.chunk = d.between(2, 90);
    auto cache = cache_for(memory, policy);
    cache.open(0, n);
    cache.compress({0}, budget::entries(limit), kvmeld::shortfall::keep);
    CHECK(cache.longest(0) == limit);
    CHECK(cache.rounds(0) <= kvmeld::max_rounds(policy.identify, n, limit));
    // Every row is a number, so that no round was an unlikely one.
    std::uint32_t const pinned = policy.select.pinned(n, limit, 0).total();
    CHECK(cache.rounds(0) <= kvmeld::likely_rounds(policy.identify, n, limit, pinned));
    most = std::max(most, cache.rounds(0));
  }
  CHECK(most > 5);  // some took several
  // Rows that are no numbers: budgets are met within as many rounds where an edge is sure, and wherever they
  // are many, the host's memory and a device's see the same.
  std::uint32_t stuck = 0;
  for (int run = 0; run < 80; ++run) {
    kvmeld::shape const s{1, 1, 1, 1, 12, 8, 200};
    support::engine_memory<float> memory(s);
    std::uint32_t const n = d.between(40, 200), limit = d.between(10, n - 1);
    memory.fill_sequence(d, 0, 0, n, support::texture::clusters);
    auto policy =
        kvmeld::preset::chelsea::with_schedule({0.45, 0.1, d.below(5), 0.02 * d.between(1, 10)},
                                               kvmeld::quantity::entries(4), kvmeld::quantity::entries(5));
    policy.identify.chunk = d.between(2, 60);
    double const share = d.pick({0.05, 0.2, 0.5, 0.8});
    std::uint32_t bad = 0, pairs = 0;
    for (std::uint32_t i = 4; i < n - 5; ++i) {
      if (!d.chance(share) && !(share > 0.4 && i % 2 == 0)) continue;
      ++bad;
      support::write_row(memory.tensors().keys, {0, 0, 0, 0}, i, {kvmeld::bits_float(0x7fc00000u)});
    }
    for (std::uint32_t i = 0; i + 9 <= limit; ++i) pairs += i % policy.identify.chunk % 2;
    auto copy = memory;
    auto near = support::make_cache(copy, policy);
    near.open(0, n);
    near.compress({0}, budget::entries(limit), kvmeld::shortfall::keep);
    CHECK(near.rounds(0) <= kvmeld::max_rounds(policy.identify, n, limit));
    if (bad < pairs) CHECK(near.longest(0) == limit);
    stuck += near.longest(0) != limit ? 1 : 0;
    kvmeld::merged_cache far{support::fenced_executor(), policy, memory.tensors(), kvmeld::cache_options{s}};
    far.open(0, n);
    far.compress({0}, budget::entries(limit), kvmeld::shortfall::keep);
    CHECK(far.save(0) == near.save(0));
    CHECK(memory == copy);
  }
  CHECK(stuck > 10);
  CHECK(kvmeld::max_rounds(kvmeld::preset::kvmerger::for_budget().identify, 100, 20) == 1);
  auto const llama3 = kvmeld::preset::chelsea::llama3();
  CHECK(kvmeld::max_rounds(llama3.identify, 20, 20) == 0);
  CHECK(kvmeld::likely_rounds(llama3.identify, 20, 20, 3) == 0);
  CHECK(kvmeld::likely_rounds(llama3.identify, 65536, 63569, 80) == 1);
  CHECK(kvmeld::likely_rounds(llama3.identify, 65536, 13107, 80) <= 10);
}

TEST_CASE("where lengths cannot be looked at, a plan is of the past once its sequence has grown") {
  support::dice d(3);
  support::engine_memory<float> memory(extent);
  kvmeld::cache_options options = support::with_plan();
  options.extent = extent;
  auto const policy = kvmeld::preset::streaming_llm::with_sinks();
  kvmeld::merged_cache far{support::fenced_executor(), policy, memory.tensors(), options};
  far.open(0, 40);
  far.plan({0}, budget::entries(20));
  far.append({0}, {2});
  far.commit({0}, {2});
  CHECK(cache_test::refusal_of([&] { far.apply(); }).find("apply: plan is missing") == 0);
  far.plan({0}, budget::entries(20));
  // Refused: nothing has grown.
  CHECK_FALSE(cache_test::refusal_of([&] { far.append({0}, {extent.capacity}); }).empty());
  far.apply();
  far.sync_lengths(0);
  CHECK(far.longest(0) == 20);
}

TEST_CASE("the host knows which layers were observed") {
  support::engine_memory<float> memory(extent);
  kvmeld::merged_cache far{support::fenced_executor(), kvmeld::preset::h2o::defaults(), memory.tensors(),
                           kvmeld::cache_options{extent}};
  far.open(0, 40);
  std::vector<float> const p(extent.query_heads() * extent.capacity, 0.01f);
  auto const rows = kvmeld::rows_by_head(p.data(), 1, extent.query_heads(), extent.capacity);
  far.observe_rows({0, 0, 1}, rows);
  std::string const refused = cache_test::refusal_of([&] { far.compress({0}, budget::entries(20)); });
  CHECK(refused.find("layer 1") != std::string::npos);
  for (std::uint32_t layer = 1; layer < extent.layers; ++layer) far.observe_rows({layer, 0, 1}, rows);
  far.compress({0}, budget::entries(20));
  CHECK(far.length_bound(0) == 20);
}

TEST_CASE("pages that became shared without a word do not make padded tracks longer than the host thinks") {
  using tensor = layout_test::paged_tensor<float, 8>;
  kvmeld::shape const s{1, 1, 2, 1, 12, 8, 96};
  for (auto fallback : {kvmeld::shortfall::keep, kvmeld::shortfall::evict_lowest}) {
    tensor keys(s, s.key_dim), values(s, s.value_dim);
    kvmeld::cache_options options{s};
    options.padded = true;
    kvmeld::merged_cache far{support::fenced_executor(), kvmeld::preset::streaming_llm::with_sinks(2),
                             kvmeld::kv{keys.view(), values.view()}, options};
    far.open(0, 60);
    for (std::uint32_t page = 0; page < 4; ++page)
      keys.shared[static_cast<std::size_t>(keys.table[page])] = 1;  // slots 0 to 31
    far.compress({0}, budget::entries(25), fallback);
    CHECK(far.length_bound(0) == 60);
    far.sync_lengths(0);
    CHECK(far.longest(0) == 60);
    CHECK(far.entries(0) >= 2 * 32);
    CHECK((far.warnings(0) & kvmeld::warning::overfull) == 0);
    // The entries are known now, and with them how far the next compression has to fill.
    std::size_t const left = far.entries(0) / 2;
    far.compress({0}, budget::entries(25), fallback);
    CHECK(far.length_bound(0) == left);
  }
}

}  // namespace device_memory_cases
