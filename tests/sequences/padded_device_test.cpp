// Padded tracks on executors whose memory the host cannot read: the host knows every length, and no more than
// that.
#include "padded.hpp"

#include "support/fenced_executor.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace padded_device_cases {

using namespace sequences_test;

namespace {

constexpr kvmeld::shape extent{2, 3, 2, 2, 12, 8, 96};
using layout = kvmeld::strided<float>;

// A padded cache of a device beside an unpadded one in host memory.
template <class Policy> class device_pair {
public:
  device_pair(Policy const& policy, std::uint32_t seed)
      : d(seed),
        far_memory(extent),
        near_memory(extent),
        far(support::fenced_executor(), policy, far_memory.tensors(), padded({extent})),
        near(kvmeld::host_executor(1), policy, near_memory.tensors(), kvmeld::cache_options{extent}),
        seen(kvmeld::host_executor(1), policy, far_memory.tensors(), padded({extent})) {}

  template <class F> void both(F f) {
    f(far);
    f(near);
  }
  // Behind the length that the host knows, which is every track's.
  void write(std::uint32_t q, std::uint32_t n) {
    bool const open = near.ledger().is_open[q] != 0;
    support::for_tracks(extent, q, [&](kvmeld::track t) {
      auto const k = support::random_rows(d, n, extent.key_dim, support::texture::walk);
      auto const v = support::random_rows(d, n, extent.value_dim, support::texture::noise);
      far_memory.fill(t, open ? far.length_bound(q) : 0, k, v);
      near_memory.fill(t, open ? near.ref().length(t) : 0, k, v);
    });
  }
  // One query of attention each, as engines have it: by slot, anything where nothing lies.
  void observe(std::vector<std::uint32_t> const& slots) {
    std::vector<std::uint32_t> const rows(slots.size(), 1);
    std::size_t const row = extent.capacity;
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      std::vector<float> p(slots.size() * extent.query_heads() * row), packed(p.size());
      for (float& x : p) x = static_cast<float>(d.uniform()) * 0.1f;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        look(slots[i]);
        for (std::uint32_t head = 0; head < extent.query_heads(); ++head) {
          std::size_t const first = (i * extent.query_heads() + head) * row;
          std::size_t n = first;
          for (kvmeld::slot_t s : held_slots(seen, track_of(layer, slots[i], head)))
            packed[n++] = p[first + s];
        }
      }
      bool const absorbs = near.needs_observation().queries;  // queries know nothing of empty slots
      support::observe_numbers(far, {layer, slots, rows}, (absorbs ? packed : p).data(), 1, extent.capacity);
      support::observe_numbers(near, {layer, slots, rows}, packed.data(), 1, extent.capacity);
    }
  }
  void open(std::uint32_t q, std::uint32_t n) {
    write(q, n);
    both([&](auto& c) { c.open(q, n, q, kvmeld::sequence_id{q}); });
    observe({q});
  }
  void check() {
    for (std::uint32_t q = 0; q < extent.sequences; ++q) {
      if (near.ledger().is_open[q] == 0) continue;
      look(q);
      check_padding(seen, q, far.length_bound(q));
      CHECK(far.length_bound(q) >= near.longest(q));
      CHECK(far.longest(q) == far.length_bound(q));
      CHECK(far.entries(q) >= near.entries(q));
      CHECK(far.compressed_at(q) >= seen.compressed_at(q));
      support::for_tracks(extent, q,
                          [&](kvmeld::track t) { CHECK(entries_of(seen, t) == entries_of(near, t)); });
    }
  }
  // `seen` lies over the far rows, in memory of the host.
  void look(std::uint32_t q) {
    if (seen.ledger().is_open[q] != 0) seen.close(q);
    seen.resume(q, far.save(q));
  }
  static kvmeld::track track_of(std::uint32_t layer, std::uint32_t q, std::uint32_t head) {
    return kvmeld::make_track(extent, layer, q, head / extent.queries_per_kv_head);
  }

  support::dice d;
  support::engine_memory<float> far_memory, near_memory;
  kvmeld::merged_cache<support::fenced_executor, Policy, layout, layout> far;
  kvmeld::merged_cache<kvmeld::host_executor, Policy, layout, layout> near, seen;
};

template <class Policy> void live(char const* name, Policy const& policy, kvmeld::shortfall fallback) {
  CAPTURE(std::string(name));
  CAPTURE(int(fallback));
  device_pair<Policy> x(policy, 50);
  bool const exact = x.far.exact(fallback);
  for (std::uint32_t q : {0u, 1u}) x.open(q, 50 + 6 * q);
  x.check();
  support::fenced_graph step(x.far.executor()), shrink(x.far.executor());
  for (int i = 0; i < 12; ++i) {
    if (x.far.length_bound(1) + 4 > extent.capacity) {
      for (std::uint32_t q : {0u, 1u}) x.far.sync_lengths(q);  // the next compression leaves less
    } else {
      std::vector<std::uint32_t> const slots{0, 1}, counts{3, 2 + x.d.below(2)},
          accepted{1 + x.d.below(3), 2};
      for (std::uint32_t q : {0u, 1u}) x.write(q, counts[q]);
      auto const calls = [&](auto& c) {
        c.append(slots, counts);
        c.commit(slots, accepted);
      };
      auto const far = [&] { calls(x.far); };
      CHECK((i == 0 ? step.record(x.far.executor(), far) : step.replay(x.far.executor(), far)) == "");
      calls(x.near);
      x.observe(slots);
    }
    x.check();
    bool const first = shrink.launches() == 0;
    std::uint32_t const least = std::max(18u, x.far.length_bound(1) * 3 / 10 + 6);
    std::vector<std::uint32_t> table(extent.tracks()), slots{0};
    if (first || x.d.chance(0.7)) slots.push_back(1);
    for (std::uint32_t& n : table) n = first ? 18 : x.d.between(least, 48);
    std::uint32_t const after = x.far.length_after(0, budget::per_track(table.data()), fallback);
    bool const known = exact && x.far.length_bound(0) == x.near.longest(0);
    auto const calls = [&](auto& c) { c.compress(slots, budget::per_track(table.data()), fallback); };
    auto const far = [&] { calls(x.far); };
    if (first || x.d.chance(0.7)) {
      CHECK((first ? shrink.record(x.far.executor(), far) : shrink.replay(x.far.executor(), far)) == "");
    } else {
      far();
    }
    calls(x.near);
    x.check();
    CHECK(x.far.length_bound(0) == after);
    if (known) CHECK(after == x.near.longest(0));
    if (x.d.chance(0.3)) x.far.request_lengths();
    x.far.poll_lengths();
    if (i == 7) {
      int const seen = static_cast<int>(x.near.tokens(0));
      x.both([&](auto& c) { c.drop_positions(0, seen - 9, seen - 7); });
      x.check();
      x.both([&](auto& c) { c.drop_positions(0, 3, 40); });
      x.check();
    }
    if (i == 5) {
      x.both([&](auto& c) { c.fork(0, 2, 0, kvmeld::sequence_id{9}); });
      x.check();
    }
  }
  x.far.sync_lengths(0);
  CHECK(x.far.entries(0) == x.near.entries(0));
  CHECK(x.far.warnings(0) == x.near.warnings(0));
}

// The first rows of one track become shared after it was padded. The host cannot ask the layout; phases do.
struct shared_later : layout {
  static constexpr bool always_writable = false;
  std::uint32_t const* shared;
  shared_later(layout const& rows, std::uint32_t const* n) : layout(rows), shared(n) {}
  bool writable(kvmeld::track t, kvmeld::slot_t s) const { return t.index != 0 || s >= *shared; }
};

}  // namespace

TEST_CASE("the host knows the lengths of a device's padded tracks, whatever they hold, for every preset") {
  each_padded_policy([](char const* name, auto const& policy) {
    for (auto fallback : {kvmeld::shortfall::keep, kvmeld::shortfall::evict_lowest})
      live(name, policy, fallback);
  });
}

TEST_CASE("what a report does not know yet is not taken for entries") {
  auto policy = kvmeld::preset::kvmerger::paper_50();  // lengths follow from data
  policy.identify.admission.theta = 0.8f;
  device_pair<decltype(policy)> x(policy, 7);
  x.open(0, 80);
  x.both([](auto& c) { c.compress({0}, budget::entries(50), kvmeld::shortfall::keep); });
  x.check();
  CHECK(x.far.length_bound(0) == 80);
  CHECK(x.far.entries(0) == 4 * 80);
  x.far.request_lengths();
  while (!x.far.poll_lengths()) continue;
  CHECK(x.far.length_bound(0) == 80);
  CHECK(x.far.entries(0) == x.near.entries(0));
  x.far.freeze(0, 1);
  x.near.freeze(0, 1);
  x.both([](auto& c) { c.compress({0}, budget::entries(70), kvmeld::shortfall::keep); });
  CHECK(x.far.length_bound(0) == x.near.longest(0));
  x.check();
}

TEST_CASE("who freezes a beginning where the host has only bounds waits for the lengths") {
  auto policy = kvmeld::preset::kvmerger::paper_50();
  policy.identify.admission.theta = 0.8f;
  device_pair<decltype(policy)> x(policy, 7);
  x.open(0, 80);
  x.both([](auto& c) { c.compress({0}, budget::entries(50), kvmeld::shortfall::keep); });
  CHECK(x.far.entries(0) == 4 * 80);
  std::string texts[2];
  std::string* text = texts;
  x.both([&](auto& c) { *text++ = cache_test::refusal_of([&] { c.freeze(0, 80); }); });
  CHECK(texts[0].find(texts[1]) == 0);  // far is padded up to the bound, so it has more empty slots
  cache_test::check_text(texts[0],
                         {"freeze: frozen is 80", "the committed entries of the shortest track of sequence 0",
                          "before its first empty slot"});
  CHECK(x.far.entries(0) == x.near.entries(0));
  x.both([](auto& c) { c.freeze(0, 1); });
  x.check();
}

TEST_CASE("where lengths are exact, the host knows where empty slots of a device begin") {
  auto const policy = kvmeld::preset::streaming_llm::with_sinks();
  device_pair<std::decay_t<decltype(policy)>> x(policy, 8);
  x.open(0, 80);
  std::vector<std::uint32_t> table(extent.tracks(), 50);
  table[0] = 20;
  x.both([&](auto& c) { c.compress({0}, budget::per_track(table.data())); });
  CHECK(x.far.length_bound(0) == 50);
  cache_test::check_text(cache_test::refusal_of([&] { x.far.freeze(0, 21); }),
                         {"freeze: frozen is 21", "at most 20"});
  x.far.freeze(0, 20);
  x.near.freeze(0, 20);
  x.check();
}

TEST_CASE("empty slots before rows that became shared stay where they are") {
  support::engine_memory<float> memory(extent);
  support::dice d(8);
  memory.fill_sequence(d, 0, 0, 90, support::texture::walk);
  std::uint32_t shared = 0;
  auto const x = memory.tensors();
  kvmeld::kv const rows{shared_later(x.keys, &shared), shared_later(x.values, &shared)};
  auto const policy = kvmeld::preset::streaming_llm::with_sinks(2);
  kvmeld::merged_cache far{support::fenced_executor(), policy, rows, padded({extent})};
  far.open(0, 60);
  std::vector<std::uint32_t> table(extent.tracks(), 30);
  table[0] = 20;
  far.compress({0}, budget::per_track(table.data()));
  CHECK(far.length_bound(0) == 60);  // rows may have been shared already
  memory.fill_sequence(d, 0, 60, 10, support::texture::walk);
  far.append({0}, {10});
  far.commit({0}, {10});
  shared = 70;
  auto before = memory;
  table.assign(extent.tracks(), 40);  // the others stay as they are
  table[0] = 25;
  far.compress({0}, budget::per_track(table.data()));
  far.sync_lengths(0);
  kvmeld::merged_cache seen{kvmeld::host_executor(1), policy, rows, padded({extent})};
  seen.resume(0, far.save(0));
  kvmeld::track const t = kvmeld::make_track(extent, 0, 0, 0);
  std::vector<kvmeld::slot_t> expected;
  for (kvmeld::slot_t s = 0; s < 70; ++s) {
    if (s < 20 || s >= 60) expected.push_back(s);
    CHECK(support::get_row(x.keys, t, s) == support::get_row(before.tensors().keys, t, s));
  }
  CHECK(held_slots(seen, t) == expected);
  CHECK((far.warnings(0) & kvmeld::warning::budget_unreached) != 0);
  CHECK(held_slots(seen, kvmeld::make_track(extent, 1, 0, 1)).size() == 40);
}

}  // namespace padded_device_cases
