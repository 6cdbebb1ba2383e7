// Positions without gaps: every entry gets the position that its place from the end says, and its key turns
// by as much.
#include "padded.hpp"
#include "turned.hpp"
#include "twins.hpp"

#include "layout/tensors.hpp"

#include <kvmeld/compose/any_cache.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace renumber_cases {

using namespace sequences_test;
using kvmeld::position_t;
using kvmeld::rope_pairing;

namespace {

// Compresses tracks to different lengths, gives them new positions, and compares each entry with its old one.
template <class Policy>
void counts_from_the_end(char const* name, Policy const& policy, rope_pairing pairing, bool pads,
                         bool equal) {
  CAPTURE(std::string(name));
  CAPTURE(int(pairing));
  CAPTURE(pads);
  CAPTURE(equal);
  support::engine_memory<float> memory(extent);
  support::dice d(31);
  kvmeld::cache_options options{};
  options.padded = pads;
  auto cache = cache_for(memory, policy, options);
  open(cache, d, 1, 70);
  std::vector<std::uint32_t> table(extent.tracks());
  for (std::uint32_t& n : table) n = d.between(28, 50);
  auto const allowed = equal ? budget::entries(30) : budget::per_track(table.data());
  cache.compress({1}, allowed, kvmeld::shortfall::evict_lowest);
  write_rows(cache, d, 1, 3);
  cache.append({1}, {3});
  cache.commit({1}, {3});
  auto const was = memory;
  auto const before = support::twin_of(cache);
  std::uint32_t const longest = cache.longest(1);
  bool gaps = false;
  support::for_tracks(extent, 1, [&](kvmeld::track t) {
    gaps = gaps || cache.ledger().word(t, kvmeld::track_word::empty) != 0;
  });
  if (gaps) {
    cache_test::refused(
        cache, memory, [&](auto& c) { c.renumber(1, rope_of(pairing)); },
        {"renumber: number of empty slots of track (layer ",
         "it must be 0, because they would be gaps (compress all heads to one length first)"});
    return;
  }
  cache.renumber(1, rope_of(pairing));
  auto const x = cache.ref();
  kvmeld::strided<float> const old_keys(const_cast<float*>(was.keys.data()), "LSHTC", extent, extent.key_dim);
  support::for_tracks(extent, 1, [&](kvmeld::track t) {
    CHECK(x.length(t) == before.ref().length(t));
    for (kvmeld::slot_t s = 0; s < x.length(t); ++s) {
      CHECK(x.degree(t, s) == before.ref().degree(t, s));
      auto const place = static_cast<position_t>(longest - (x.length(t) - s));
      CHECK(x.position(t, s) == place);
      auto const row = in_double(support::get_row(x.keys, t, s));
      auto const wanted = turned(in_double(support::get_row(old_keys, t, s)), pairing, 10000.0,
                                 place - before.ref().position(t, s));
      for (std::size_t c = 0; c < row.size(); ++c)
        CHECK(std::fabs(row[c] - wanted[c]) <= 8 * 0x1p-24 * largest(wanted) + 1e-30);
    }
  });
  CHECK(memory.values == was.values);
  CHECK(cache.tokens(1) == longest);
  CHECK(cache.compressed_at(1) == longest - 3);
  CHECK(kvmeld::testing::invariant_problem(cache) == "");
  auto const settled = memory;
  cache.renumber(1, rope_of(pairing));  // changes nothing any more
  CHECK(memory.keys == settled.keys);
  cache.truncate(1, longest - 1);  // a token that came after the compression
  write_rows(cache, d, 1, 2);
  cache.append({1}, {2});
  support::for_tracks(extent, 1, [&](kvmeld::track t) {
    CHECK(x.position(t, x.length(t) - 1) == static_cast<position_t>(longest));
  });
}

}  // namespace

TEST_CASE("entries get positions from the end, and keys turn by as much, for every preset") {
  for (auto pairing : {rope_pairing::half_split, rope_pairing::interleaved}) {
    each_padded_policy([&](char const* name, auto const& policy) {
      if constexpr (!kvmeld::shares_entries<typename std::decay_t<decltype(policy)>::merge_type>::value) {
        counts_from_the_end(name, policy, pairing, false, false);
        for (bool equal : {false, true}) counts_from_the_end(name, policy, pairing, true, equal);
      }
    });
  }
}

// StreamingLLM, section 3.2: attention by the place within the cache. Keys that lie unrotated and turn by
// their slots when they are read, and keys that lie rotated and were renumbered, give the same outputs.
TEST_CASE("after renumber, attention is that of positions within the cache") {
  auto const policy = kvmeld::preset::streaming_llm::with_sinks(4);
  support::engine_memory<float> plain(extent), rotated(extent);
  support::dice d(5), again(5);
  auto by_slot = cache_for(plain, policy), by_position = cache_for(rotated, policy);
  open(by_slot, d, 0, 70);
  open(by_position, again, 0, 70);
  auto const rope = rope_of(rope_pairing::half_split);
  auto const keys = by_position.ref().keys;
  support::for_tracks(extent, 0, [&](kvmeld::track t) {
    for (kvmeld::slot_t s = 0; s < 70; ++s) {
      auto row = support::get_row(keys, t, s);
      kvmeld::rotate_row(rope, static_cast<position_t>(s), row.data(), extent.key_dim);
      support::put_row(keys, t, s, row);
    }
  });
  for (auto* cache : {&by_slot, &by_position}) cache->compress({0}, budget::entries(24));
  by_position.renumber(0, rope);
  std::uint32_t const heads = extent.query_heads(), dk = extent.key_dim, dv = extent.value_dim;
  std::vector<float> q(heads * dk);
  for (float& v : q) v = static_cast<float>(d.normal());
  for (std::uint32_t h = 0; h < heads; ++h) kvmeld::rotate_row(rope, 24, q.data() + h * dk, dk);
  auto const outputs = [&](auto& cache, kvmeld::rope_params const& on_read) {
    std::vector<float> out(heads * dv), lse(heads);
    kvmeld::attention_params params{};
    params.rope = on_read;
    kvmeld::attention::attend(cache.executor(), {1, 0, 1},
                              kvmeld::rows_by_token<float const>(q.data(), 1, heads, dk), cache.ref(),
                              kvmeld::rows_by_token(out.data(), 1, heads, dv),
                              kvmeld::rows_by_head(lse.data(), 1, heads, 1), params);
    out.insert(out.end(), lse.begin(), lse.end());
    return out;
  };
  auto slots = rope;
  slots.positions = kvmeld::rope_positions::slot;
  auto const a = outputs(by_slot, slots), b = outputs(by_position, {});
  for (std::size_t i = 0; i < a.size(); ++i)
    CHECK(std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])) < 2e-5);
}

TEST_CASE("an executor whose memory the host cannot read renumbers the same bits") {
  each_policy([](char const* name, auto const& policy) {
    using policy_type = std::decay_t<decltype(policy)>;
    if constexpr (!kvmeld::shares_entries<typename policy_type::merge_type>::value) {
      CAPTURE(std::string(name));
      auto const with = [](std::uint32_t q, rope_pairing pairing) {
        return [=](auto& c) { c.renumber(q, rope_of(pairing)); };
      };
      twins pair(policy, 17);
      for (std::uint32_t q : {0u, 1u}) pair.open(q);
      for (int step = 0; step < 6; ++step) {
        pair.append();
        pair.turn(0, with(0, rope_pairing::half_split));
        pair.check();
        pair.compress(kvmeld::shortfall::evict_lowest);
        pair.turn_while_reporting(1, with(1, rope_pairing::interleaved));
        pair.check();
        pair.turn(1, with(1, rope_pairing::none));
        pair.other_calls();
        pair.check();
      }
    }
  });
}

TEST_CASE("which sequences cannot be renumbered") {
  support::engine_memory<float> memory(extent);
  support::dice d(1);
  auto cache = cache_for(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  auto const rope = rope_of(rope_pairing::half_split);
  auto const refused = [&](auto call, std::initializer_list<char const*> parts) {
    cache_test::refused(cache, memory, call, parts);
  };
  refused([&](auto& c) { c.renumber(3, rope); }, {"renumber: sequence is 3", "it must be 0 to 2"});
  refused([&](auto& c) { c.renumber(0, rope); }, {"renumber: sequence is 0"});
  open(cache, d, 0, 40, 30);
  cache.renumber(0, rope);  // all entries are where they belong, and none turns
  cache.freeze(0, 0);
  cache.compress({0}, budget::entries(20));
  cache.freeze(0, 4);
  refused([&](auto& c) { c.renumber(0, rope); },
          {"renumber: slot 2 of track (layer 0, sequence 0, head 0) is frozen",
           "it must be writable, because its key turns (or renumber without rotation)"});
  auto odd = rope;
  odd.rotary_dim = 5;
  refused([&](auto& c) { c.renumber(0, odd); }, {"renumber: rope.rotary_dim is 5"});
  odd = rope;
  odd.positions = kvmeld::rope_positions::slot;
  refused([&](auto& c) { c.renumber(0, odd); }, {"renumber: rope.positions is rope_positions::slot"});
  cache.append({0}, {2});
  refused([&](auto& c) { c.renumber(0); }, {"renumber: number of pending entries of sequence 0 is 2"});
  cache.commit({0}, {0});
  cache.renumber(0);  // frozen keys that lie unrotated
  CHECK(cache.tokens(0) == 20);
  refused([&](auto& c) { c.truncate(0, 19); }, {"truncate: "});
  // Members keep positions of their own.
  auto sharing = cache_for(memory, kvmeld::preset::ems::shared());
  open(sharing, d, 0, 40);
  cache_test::refused(sharing, memory, [](auto& c) { c.renumber(0); },
                      {"renumber: policy is one that shares entries",
                       "it must be one that does not, because members keep positions of their own"});
  // Behind one interface.
  auto const held = kvmeld::make_any_cache(std::move(cache));
  held->append({0}, {1});
  held->commit({0}, {1});
  held->renumber(0);
  CHECK(held->tokens(0) == 21);
}

TEST_CASE("shared rows do not turn: refused, or where the host cannot ask, found") {
  using tensor = layout_test::paged_tensor<float, 8>;
  tensor keys(extent, extent.key_dim), values(extent, extent.value_dim);
  auto const policy = kvmeld::preset::streaming_llm::with_sinks(2);
  kvmeld::kv const tensors{keys.view(), values.view()};
  auto const rope = rope_of(rope_pairing::half_split);
  kvmeld::merged_cache near{kvmeld::host_executor(1), policy, tensors, kvmeld::cache_options{extent}};
  near.open(0, 30);
  near.compress({0}, budget::entries(20));
  keys.shared[static_cast<std::size_t>(keys.table[1])] = 1;  // slots 8 to 15 of sequence 0
  cache_test::check_text(cache_test::refusal_of([&] { near.renumber(0, rope); }),
                         {"renumber: slot 8 of track (layer 0, sequence 0, head 0) is not writable"});
  keys.shared[static_cast<std::size_t>(keys.table[1])] = 0;
  kvmeld::merged_cache far{support::fenced_executor(), policy, tensors, kvmeld::cache_options{extent}};
  far.open(0, 30);
  far.compress({0}, budget::entries(20));
  keys.shared[static_cast<std::size_t>(keys.table[1])] = 1;
  far.renumber(0, rope);
  far.sync_lengths(0);
  CHECK((far.warnings(0) & kvmeld::warning::unrotated) != 0);
}

}  // namespace renumber_cases
