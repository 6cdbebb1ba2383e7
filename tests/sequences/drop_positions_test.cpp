// Entries of a range of positions go, from every track and in place; what stays is as it was.
#include "padded.hpp"
#include "turned.hpp"
#include "twins.hpp"

#include "layout/tensors.hpp"

#include <kvmeld/compose/any_cache.hpp>
#include <kvmeld/testing.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace drop_positions_cases {

using namespace sequences_test;
using kvmeld::position_t;

namespace {

// The entries of a track outside of [first, last), bit by bit, with their members.
template <class Cache>
std::vector<support::byte_list> left_of(Cache const& cache, kvmeld::track t, position_t first,
                                        position_t last) {
  std::vector<support::byte_list> out;
  auto const x = cache.ref();
  kvmeld::ledger_ref const& l = cache.ledger();
  for (kvmeld::slot_t s = 0; s < x.length(t); ++s) {
    std::size_t const e = l.at(t, s);
    if (l.position[e] >= first && l.position[e] < last) continue;
    std::vector<float> numbers{l.degree[e], static_cast<float>(l.position[e]),
                               static_cast<float>(l.flags[e])};
    for (std::uint32_t c = 0; c < l.channels.count; ++c) numbers.push_back(l.channel_data[c][e]);
    for (auto const& row : {support::get_row(x.keys, t, s), support::get_row(x.values, t, s)})
      numbers.insert(numbers.end(), row.begin(), row.end());
    if (l.members.capacity != 0) {
      numbers.push_back(l.members.own_norm[e]);
      for (std::uint32_t m = 0; m < l.members.count[t.index]; ++m) {
        std::size_t const i = l.members.at(t, m);
        if (l.members.owner[i] != s) continue;
        numbers.push_back(l.members.norm[i]);
        numbers.push_back(static_cast<float>(l.members.position[i]));
        for (std::uint32_t c = 0; c < l.channels.count; ++c) numbers.push_back(l.members.channel_data[c][i]);
      }
    }
    out.push_back(support::bytes_of(numbers));
  }
  return out;
}

// Drops a range, and compares with the naive selection of what was there before.
template <class Cache> void drop(Cache& cache, std::uint32_t q, position_t first, position_t last) {
  CAPTURE(first);
  CAPTURE(last);
  std::vector<std::vector<support::byte_list>> wanted, got;
  auto const collect = [&](auto& into) {
    support::for_tracks(extent, q, [&](kvmeld::track t) { into.push_back(left_of(cache, t, first, last)); });
  };
  std::vector<std::uint32_t> const before{cache.tokens(q), cache.rounds(q), cache.warnings(q),
                                          cache.compressed_at(q)};
  collect(wanted);
  cache.drop_positions(q, first, last);
  collect(got);
  CHECK(got == wanted);
  CHECK(before == std::vector<std::uint32_t>{cache.tokens(q), cache.rounds(q), cache.warnings(q),
                                             cache.compressed_at(q)});
  CHECK(kvmeld::testing::invariant_problem(cache) == "");
}

// Head 1 shares its first 20 rows, and head 0 none.
struct shared_by_head_1 : kvmeld::strided<float> {
  static constexpr bool always_writable = false;
  explicit shared_by_head_1(kvmeld::strided<float> const& rows) : kvmeld::strided<float>(rows) {}
  bool writable(kvmeld::track t, kvmeld::slot_t s) const { return t.kv_head != 1 || s >= 20; }
};

template <class Policy> void drops(char const* name, Policy const& policy) {
  CAPTURE(std::string(name));
  support::engine_memory<float> memory(extent);
  support::dice d(21);
  kvmeld::cache_options options{};
  options.stats = true;
  auto cache = cache_for(memory, policy, options);
  open(cache, d, 0, 70, 3, 5);
  open(cache, d, 1, 40);
  std::vector<std::uint32_t> table(extent.tracks());
  for (std::uint32_t& n : table) n = d.between(36, 50);
  cache.compress({0}, budget::per_track(table.data()), kvmeld::shortfall::keep);
  feed(cache, d, 0, 11);
  auto const other = digest(cache, 1);
  for (auto range : {std::pair{40, 60}, {65, 74}, {10, 11}, {3, 30}, {80, 81}, {12, 12}, {3, 81}})
    drop(cache, 0, range.first, range.second);
  CHECK(digest(cache, 1) == other);
  CHECK(cache.longest(0) == 3);
  // It goes on: saved, resumed, forked, grown and compressed again.
  auto const bytes = cache.save(0);
  cache.close(0);
  cache.resume(0, bytes);
  CHECK(cache.save(0) == bytes);
  feed(cache, d, 0, 30);
  drop(cache, 0, 85, 100);
  cache.freeze(0, 0);
  drop(cache, 0, 0, 2);
  cache.fork(0, 2);
  CHECK(rows_of(cache, 2) == rows_of(cache, 0));
  cache.compress({0, 2}, budget::entries(14), kvmeld::shortfall::keep);
  CHECK(kvmeld::testing::invariant_problem(cache) == "");
}

// Three sequences of tokens, never compressed.
auto plain(support::engine_memory<float>& memory, std::uint32_t tokens, std::uint32_t frozen = 0) {
  support::dice d(2);
  auto cache = cache_for(memory, kvmeld::preset::streaming_llm::with_sinks(2), support::with_plan());
  open(cache, d, 0, tokens, frozen);
  return cache;
}
template <class Cache> std::vector<position_t> positions(Cache const& cache, std::uint32_t q = 0) {
  std::vector<position_t> out;
  auto const x = cache.ref();
  kvmeld::track const t = kvmeld::make_track(cache.options().extent, 1, q, 1);
  for (kvmeld::slot_t s = 0; s < x.length(t); ++s) out.push_back(x.position(t, s));
  return out;
}

}  // namespace

TEST_CASE("what lies outside of the range stays bit for bit, for every preset") {
  each_policy([](char const* name, auto const& policy) { drops(name, policy); });
}

TEST_CASE("an entry goes with all the tokens it stands for, and stays with them") {
  support::engine_memory<float> memory(extent);
  support::dice d(4);
  auto cache =
      cache_for(memory, kvmeld::preset::chelsea::with_schedule(support::steep(), kvmeld::quantity::entries(2),
                                                               kvmeld::quantity::entries(4)));
  open(cache, d, 0, 60);
  cache.compress({0}, budget::entries(30));
  kvmeld::track const t = kvmeld::make_track(extent, 0, 0, 0);
  auto const x = cache.ref();
  float in = 0, out = 0;
  for (kvmeld::slot_t s = 0; s < x.length(t); ++s)
    (x.position(t, s) >= 21 && x.position(t, s) < 40 ? in : out) += x.degree(t, s);
  CHECK(in != 19.0f);  // some stand for tokens of the other side
  cache.drop_positions(0, 21, 40);
  float left = 0;
  for (kvmeld::slot_t s = 0; s < x.length(t); ++s) left += x.degree(t, s);
  CHECK(left == out);
  CHECK(in + out == 60.0f);
}

TEST_CASE("members go with the entry they share") {
  support::engine_memory<float> memory(extent);
  support::dice d(6);
  auto cache = cache_for(memory, kvmeld::preset::ems::shared(kvmeld::quantity::entries(6), 6, 0.05f, 2.0));
  open(cache, d, 0, 70);
  cache.compress({0}, budget::entries(30));
  kvmeld::ledger_ref const& l = cache.ledger();
  kvmeld::track const t = kvmeld::make_track(extent, 1, 0, 1);
  std::uint32_t const members = l.members.count[t.index];
  position_t const shared = l.position[l.at(t, l.members.owner[l.members.at(t, 0)])];
  std::uint32_t gone = 0;
  while (gone < members && l.members.owner[l.members.at(t, gone)] == l.members.owner[l.members.at(t, 0)])
    ++gone;
  cache.drop_positions(0, shared, shared + 1);
  CHECK(gone > 0);
  CHECK(l.members.count[t.index] == members - gone);
  CHECK(kvmeld::testing::invariant_problem(cache) == "");
}

TEST_CASE("positions stay: shift and renumber close the gap") {
  support::engine_memory<float> memory(extent);
  auto cache = plain(memory, 12);
  cache.drop_positions(0, 3, 8);
  CHECK(positions(cache) == std::vector<position_t>{0, 1, 2, 8, 9, 10, 11});
  CHECK(cache.tokens(0) == 12);
  auto copy = support::twin_of(cache);
  cache.shift(0, -5, {}, 8);
  copy.renumber(0);
  for (auto* c : {&cache, &copy}) {
    CHECK(positions(*c) == std::vector<position_t>{0, 1, 2, 3, 4, 5, 6});
    CHECK(c->tokens(0) == 7);
    CHECK(c->compressed_at(0) == 0);
    c->truncate(0, 2);
    CHECK(positions(*c) == std::vector<position_t>{0, 1});
  }
}

TEST_CASE("going back to before and behind a gap") {
  support::engine_memory<float> memory(extent);
  for (std::uint32_t tokens : {0u, 1u, 3u, 5u, 8u, 9u, 12u}) {
    CAPTURE(tokens);
    auto cache = plain(memory, 12);
    cache.drop_positions(0, 3, 8);
    cache.truncate(0, tokens);
    std::vector<position_t> wanted;
    for (position_t p = 0; p < static_cast<position_t>(tokens); ++p) {
      if (p < 3 || p >= 8) wanted.push_back(p);
    }
    CHECK(positions(cache) == wanted);
    CHECK(cache.tokens(0) == tokens);
    cache.append({0}, {2});
    cache.commit({0}, {2});
    CHECK(positions(cache).back() == static_cast<position_t>(tokens) + 1);
  }
  auto frozen = plain(memory, 12, 2);
  frozen.drop_positions(0, 3, 8);
  CHECK(cache_test::refusal_of([&] { frozen.truncate(0, 1); }).find("it must be 2 to 12") !=
        std::string::npos);
  frozen.truncate(0, 2);
  CHECK(positions(frozen) == std::vector<position_t>{0, 1});
}

TEST_CASE("a shift by nothing changes nothing, and going back after a shift refuses what it must alone") {
  support::engine_memory<float> memory(extent);
  auto cache = plain(memory, 20);
  auto const before = digest(cache, 0);
  cache.shift(0, 0, rope_of(kvmeld::rope_pairing::half_split), 10);
  CHECK(digest(cache, 0) == before);
  cache.truncate(0, 4);
  CHECK(positions(cache) == std::vector<position_t>{0, 1, 2, 3});

  auto moved = plain(memory, 20);
  moved.shift(0, 7, {}, 10);  // nothing was compressed: tokens on both sides can be forgotten
  CHECK(moved.compressed_at(0) == 0);
  moved.truncate(0, 20);
  CHECK(positions(moved).back() == 19);
  moved.truncate(0, 12);
  CHECK(positions(moved).back() == 9);
  moved.truncate(0, 5);
  CHECK(positions(moved) == std::vector<position_t>{0, 1, 2, 3, 4});

  // Compressed at 20 tokens: what moves takes the limit along, what stays does not.
  auto merged = plain(memory, 20);
  merged.compress({0}, budget::entries(8));
  support::dice d(1);
  feed(merged, d, 0, 6);
  merged.shift(0, 5, {}, 3);
  CHECK(merged.compressed_at(0) == 25);
  merged.shift(0, 4, {}, 28);
  CHECK(merged.compressed_at(0) == 25);
  CHECK(cache_test::refusal_of([&] { merged.truncate(0, 24); }).find("it must be 25 to 35") !=
        std::string::npos);
  merged.truncate(0, 26);
  CHECK(positions(merged).back() == 25);
  // A document among compressed tokens goes, and the gap closes: the limit lies where the others begin.
  auto closed = plain(memory, 20);
  closed.compress({0}, budget::entries(12));  // 0, 1 and 10 to 19
  feed(closed, d, 0, 6);
  closed.drop_positions(0, 12, 22);
  closed.shift(0, -10, {}, 22);
  CHECK(positions(closed) == std::vector<position_t>{0, 1, 10, 11, 12, 13, 14, 15});
  CHECK(closed.compressed_at(0) == 12);
  closed.truncate(0, 12);
  CHECK(closed.longest(0) == 4);
}

TEST_CASE("dropping is no round, and leaves nothing of the compression before it to be counted again") {
  support::engine_memory<float> memory(extent);
  auto cache = plain(memory, 40);
  cache.compress({0}, budget::entries(20));
  CHECK(cache.rounds(0) == 1);
  for (position_t p = 30; p < 34; ++p) cache.drop_positions(0, p, p + 1);
  CHECK(cache.rounds(0) == 1);
  CHECK(cache.compressed_at(0) == 40);
}

TEST_CASE("a plan made before is forgotten, whatever sequence it is of") {
  support::engine_memory<float> memory(extent);
  auto cache = plain(memory, 40);
  cache.open(1, 30);
  cache.plan({1}, budget::entries(20));
  cache.drop_positions(0, 4, 9);
  CHECK(cache_test::refusal_of([&] { cache.apply(); }).find("apply: plan is missing") == 0);
}

TEST_CASE("heads that share a plan keep the same entries") {
  for (auto scope : {kvmeld::plan_scope::layer, kvmeld::plan_scope::all_layers}) {
    support::engine_memory<float> memory(extent);
    support::dice d(9);
    kvmeld::cache_options options{};
    options.scope = scope;
    auto cache = cache_for(memory, kvmeld::preset::streaming_llm::with_sinks(2), options);
    open(cache, d, 0, 60);
    cache.compress({0}, budget::entries(40));
    drop(cache, 0, 30, 52);
    cache.compress({0}, budget::entries(12));
    CHECK(cache.longest(0) == 12);
  }
}

TEST_CASE("the host knows what goes from tracks of a device, or bounds it") {
  support::engine_memory<float> memory(extent);
  auto const policy = kvmeld::preset::streaming_llm::with_sinks(2);
  kvmeld::merged_cache far{support::fenced_executor(), policy, memory.tensors(),
                           kvmeld::cache_options{extent}};
  far.open(0, 60);
  far.drop_positions(0, 10, 30);
  CHECK(far.lengths_known(0));
  CHECK(far.length_bound(0) == 40);
  far.truncate(0, 25);  // to before the gap: 10 entries stay
  CHECK(far.lengths_known(0));
  CHECK(far.length_bound(0) == 10);
  far.append({0}, {5});
  far.commit({0}, {5});
  far.compress({0}, budget::entries(8));
  far.append({0}, {6});
  far.commit({0}, {6});
  CHECK(far.compressed_at(0) == 30);
  far.request_lengths();
  far.drop_positions(0, 31, 33);  // after the compression
  CHECK(far.lengths_known(0));
  CHECK(far.length_bound(0) == 12);
  far.drop_positions(0, 5, 32);  // most of it before
  CHECK_FALSE(far.lengths_known(0));
  CHECK(far.length_bound(0) == 12);
  while (!far.poll_lengths()) continue;
  CHECK(far.length_bound(0) == 12);
  far.sync_lengths(0);
  CHECK(far.length_bound(0) == 5);  // 0, 1, 33, 34, 35
  CHECK(far.entries(0) == 5u * extent.layers * extent.kv_heads);
}

TEST_CASE("which ranges are refused") {
  support::engine_memory<float> memory(extent);
  auto cache = plain(memory, 40, 3);
  auto const refused = [&](auto call, std::initializer_list<char const*> parts) {
    cache_test::refused(cache, memory, call, parts);
  };
  refused([](auto& c) { c.drop_positions(3, 0, 1); }, {"drop_positions: sequence is 3; it must be 0 to 2"});
  refused([](auto& c) { c.drop_positions(1, 0, 0); }, {"drop_positions: sequence is 1; it must be open"});
  refused([](auto& c) { c.drop_positions(0, 5, 41); },
          {"drop_positions: last is 41; it must be 0 to 40, the tokens seen"});
  refused([](auto& c) { c.drop_positions(0, -2, -1); }, {"drop_positions: last is -1"});
  refused([](auto& c) { c.drop_positions(0, -1, 5); },
          {"drop_positions: first is -1; it must be 0 to last, which is 5"});
  refused([](auto& c) { c.drop_positions(0, 6, 5); }, {"drop_positions: first is 6"});
  refused([](auto& c) { c.drop_positions(0, 2, 5); },
          {"drop_positions: slot 2 of track (layer 0, sequence 0, head 0) is frozen; it must be writable, "
           "because it holds position 2, which goes"});
  cache.append({0}, {2});
  refused([](auto& c) { c.drop_positions(0, 5, 6); },
          {"drop_positions: number of pending entries of sequence 0 is 2; it must be 0 (call commit first)"});
  cache.commit({0}, {0});
  cache.drop_positions(0, 3, 5);
  CHECK(cache.longest(0) == 38);
  auto const held = kvmeld::make_any_cache(std::move(cache));
  held->drop_positions(0, 5, 7);
  CHECK(held->longest(0) == 36);
}

TEST_CASE("a device refuses frozen entries, and while recording") {
  support::engine_memory<float> memory(extent);
  kvmeld::merged_cache far{support::fenced_executor(), kvmeld::preset::streaming_llm::with_sinks(2),
                           memory.tensors(), kvmeld::cache_options{extent}};
  far.open(0, 40, 3);
  CHECK(cache_test::refusal_of([&] { far.drop_positions(0, 2, 5); }).find("slot 2 of track") !=
        std::string::npos);
  support::fenced_graph graph(far.executor());
  std::string text;
  CHECK(graph.record(far.executor(),
                     [&] { text = cache_test::refusal_of([&] { far.drop_positions(0, 5, 6); }); }) == "");
  CHECK(text.find("drop_positions: recording is on") == 0);
  CHECK(far.length_bound(0) == 40);
}

TEST_CASE("rows that are shared do not move: refused, or where the host cannot ask, found") {
  using tensor = layout_test::paged_tensor<float, 8>;
  tensor keys(extent, extent.key_dim), values(extent, extent.value_dim);
  keys.shared[static_cast<std::size_t>(keys.table[1])] = 1;  // slots 8 to 15 of sequence 0
  auto const policy = kvmeld::preset::streaming_llm::with_sinks(2);
  kvmeld::kv const tensors{keys.view(), values.view()};
  kvmeld::merged_cache near{kvmeld::host_executor(1), policy, tensors, kvmeld::cache_options{extent}};
  near.open(0, 30);
  cache_test::check_text(
      cache_test::refusal_of([&] { near.drop_positions(0, 4, 6); }),
      {"drop_positions: slot 15 of track (layer 0, sequence 0, head 0) is not writable; it "
       "must be writable, because an entry before it holds position 4, which goes"});
  cache_test::check_text(cache_test::refusal_of([&] { near.drop_positions(0, 15, 20); }),
                         {"slot 15 of track", "because it holds position 15, which goes"});
  near.drop_positions(0, 16, 20);
  CHECK(near.longest(0) == 26);
  kvmeld::merged_cache far{support::fenced_executor(), policy, tensors, kvmeld::cache_options{extent}};
  far.open(0, 30);
  far.drop_positions(0, 14, 20);
  CHECK(far.length_bound(0) == 30);
  far.sync_lengths(0);
  CHECK(far.longest(0) == 26);  // 14 and 15 stay
  CHECK(far.warnings(0) == kvmeld::warning::undropped);
}

TEST_CASE("heads that share a plan keep what one of them may not write") {
  support::engine_memory<float> memory(extent);
  kvmeld::cache_options options{extent};
  options.scope = kvmeld::plan_scope::layer;
  auto const plain = memory.tensors();
  kvmeld::merged_cache far{support::fenced_executor(), kvmeld::preset::streaming_llm::with_sinks(2),
                           kvmeld::kv{shared_by_head_1(plain.keys), shared_by_head_1(plain.values)}, options};
  far.open(0, 40);
  far.drop_positions(0, 15, 25);
  far.sync_lengths(0);
  CHECK(far.entries(0) == 35u * extent.layers * extent.kv_heads);  // 20 to 24 went
  CHECK(far.warnings(0) == kvmeld::warning::undropped);
}

TEST_CASE(
    "an executor whose memory the host cannot read drops the same entries while reports are on their way") {
  each_policy([](char const* name, auto const& policy) {
    CAPTURE(std::string(name));
    twins pair(policy, 17);
    for (std::uint32_t q : {0u, 1u}) pair.open(q);
    for (int step = 0; step < 8; ++step) {
      pair.append();
      pair.drop_positions(0);
      pair.check();
      pair.compress(kvmeld::shortfall::evict_lowest);
      pair.turn_while_reporting(1, [](auto& c) { c.shift(1, 3); });
      pair.drop_positions(1);
      pair.check();
    }
  });
}

}  // namespace drop_positions_cases
