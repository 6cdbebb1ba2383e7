// Hand-made plans of every kind, applied: against the reference, read back and rebuilt, in both loop orders.
#include <doctest/doctest.h>

#include <kvmeld/cache/plan_readings.hpp>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "hand_made.hpp"
#include "reference/plan_apply.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

using doctest::Approx;
using hand_made::dump;
using hand_made::send;
using kvmeld::fate;
using support::dice;

namespace {

template <class Cache> void random_ledger(dice& d, Cache const& cache) {
  kvmeld::ledger_ref const& l = cache.ledger();
  for (std::size_t i = 0; i < l.extent.slots(); ++i) {
    l.degree[i] = static_cast<float>(d.between(1, 9));
    for (std::uint32_t c = 0; c < l.channels.count; ++c)
      l.channel_data[c][i] = static_cast<float>(d.normal());
  }
}

// Every number of a cache that engines can see, in bits.
template <class Cache> std::vector<std::uint32_t> everything(Cache const& cache) {
  std::vector<std::uint32_t> out;
  auto const ref = cache.ref();
  auto const add = [&](double x) { out.push_back(kvmeld::float_bits(static_cast<float>(x))); };
  kvmeld::shape const& s = ref.extent();
  for (std::uint32_t q = 0; q < s.sequences; ++q) {
    support::for_tracks(s, q, [&](kvmeld::track t) {
      out.push_back(ref.length(t));
      for (std::uint32_t i = 0; i < ref.length(t); ++i) {
        for (double x : support::read_row(ref.keys, t, i)) add(x);
      }
      for (std::uint32_t i = 0; i < s.capacity; ++i) {  // emptied values too
        for (double x : support::read_row(ref.values, t, i)) add(x);
      }
      for (std::uint32_t i = 0; i < ref.length(t); ++i) {
        add(static_cast<double>(ref.degree(t, i)));
        out.push_back(static_cast<std::uint32_t>(ref.position(t, i)));
        for (std::uint32_t c = 0; c < ref.ledger.channels.count; ++c)
          add(static_cast<double>(ref.ledger.channel_data[c][ref.ledger.at(t, i)]));
      }
      kvmeld::member_ref const& m = ref.ledger.members;
      for (std::uint32_t i = 0; m.capacity != 0 && i < m.count[t.index]; ++i) {
        std::size_t const at = ref.ledger.members.at(t, i);
        out.insert(out.end(),
                   {kvmeld::float_bits(m.norm[at]), static_cast<std::uint32_t>(m.position[at]), m.owner[at]});
      }
    });
  }
  return out;
}

// The channels of the reference's words: sums, maxima, the pivot's, means with the value weights.
void check_channels(kvmeld::ledger_ref const& l, kvmeld::track t, dump const& plan,
                    std::vector<std::vector<float>> const& before) {
  auto const linear = plan.in_reference();
  std::uint32_t place = 0;
  for (std::size_t p = 0; p < plan.fates.size(); ++p) {
    if (plan.fates[p] != fate::keep) continue;
    std::size_t const at = l.at(t, place++);
    auto set = reference::set_of(linear, p);
    bool const shared = std::any_of(set.begin(), set.end(),
                                    [&](std::size_t i) { return linear.fates[i] == reference::fate::share; });
    if (shared) set = {p};  // its members keep their own
    double sum = 0, weighted = 0;
    float largest = before[1][set.front()];
    for (std::size_t i : set) {
      sum += static_cast<double>(before[0][i]);
      weighted += static_cast<double>(plan.value_weight[i]) * static_cast<double>(before[3][i]);
      largest = std::max(largest, before[1][i]);
    }
    if (set.size() < 2) weighted = static_cast<double>(before[3][p]);
    CHECK(std::fabs(static_cast<double>(l.channel_data[0][at]) - sum) < 1e-4);
    CHECK(l.channel_data[1][at] == largest);
    CHECK(l.channel_data[2][at] == before[2][p]);
    CHECK(std::fabs(static_cast<double>(l.channel_data[3][at]) - weighted) < 1e-4);
  }
}

void check_members(kvmeld::ledger_ref const& l, kvmeld::track t,
                   std::vector<reference::member> const& expected) {
  REQUIRE(l.members.count[t.index] == expected.size());
  for (std::uint32_t i = 0; i < expected.size(); ++i) {
    std::size_t const m = l.members.at(t, i);
    CHECK(static_cast<double>(l.members.norm[m]) == Approx(expected[i].norm).epsilon(1e-5));
    CHECK(l.members.position[m] == expected[i].position);
    CHECK(l.members.owner[m] == expected[i].owner);
  }
}

template <class T> void compare_random(dice& d) {
  kvmeld::shape const s{d.between(1, 2), 2, d.between(1, 2), 1, d.between(1, 40), d.between(1, 40), 80};
  support::engine_memory<T> memory(s);
  auto cache = make_cache(memory, hand_made::policy(), support::with_plan(2 * s.capacity));
  std::uint32_t const n = d.between(2, 80), frozen = d.chance(0.3) ? d.below(n) : 0;
  cache.open(1, n, frozen);
  memory.fill_sequence(d, 1, 0, n, support::texture::noise);
  random_ledger(d, cache);
  if (d.chance(0.3)) {
    support::write_row(cache.ref().keys, kvmeld::make_track(s, 0, 1, 0), d.below(n),
                       {kvmeld::bits_float(0x7fc00000u)});
  }
  cache.plan({1}, kvmeld::budget::entries(s.capacity));
  std::vector<reference::track_state> before;
  std::vector<dump> plans;
  std::vector<std::vector<std::vector<float>>> channels;
  for (std::uint32_t item = 0; item < cache.planned_work().tracks(s); ++item) {
    kvmeld::track const t = cache.planned_work().at(s, item);
    before.push_back(support::read_track(cache.ref(), t));
    for (std::uint32_t i = 0; i < n; ++i)
      before.back().score[i] = static_cast<double>(cache.ledger().channel_data[0][cache.ledger().at(t, i)]);
    hand_made::randomise(d, cache.current_plan(), item, n, frozen, before.back().bad, d.chance(0.5));
    plans.emplace_back(cache.current_plan(), item, n);
    channels.emplace_back();
    for (float const* c : cache.ledger().channel_data) {
      if (c != nullptr)
        channels.back().emplace_back(c + cache.ledger().at(t, 0), c + cache.ledger().at(t, n));
    }
  }
  // Round trip: a second cache over a copy of the memory, its plan rebuilt from the dump.
  support::engine_memory<T> memory_copy = memory;
  auto twin = cache.clone(memory_copy.tensors());
  twin.plan({1}, kvmeld::budget::entries(s.capacity));
  for (std::uint32_t item = 0; item < plans.size(); ++item) plans[item].restore(twin.current_plan(), item);
  std::ostringstream one, two;
  print_plan(one, cache);
  print_plan(two, twin);
  CHECK(one.str() == two.str());
  cache.apply();
  twin.apply();
  CHECK(everything(cache) == everything(twin));
  for (std::uint32_t item = 0; item < plans.size(); ++item) {
    kvmeld::track const t = kvmeld::work_list{cache.planned_work().sequences, 1}.at(s, item);
    auto const applied =
        reference::plan_apply(before[item], plans[item].in_reference(), support::store_as<T>());
    reference::outcome expected;
    expected.after = applied.after;
    expected.near_rounding = applied.near_rounding;
    for (std::size_t i = 0; i < n; ++i) {
      bool const stays = plans[item].fates[i] == fate::keep;
      expected.target.push_back(stays ? static_cast<int>(i) : -1);
    }
    // `difference` takes entries of one member as untouched: owners and receivers are counted twice.
    auto const linear = plans[item].in_reference();
    for (std::size_t i = 0; i < n; ++i) {
      std::size_t const reach = linear.fates[i] == reference::fate::spread ? linear.span[i] : 1;
      for (std::size_t k = 0; k < reach; ++k) {
        if (linear.fates[i] != reference::fate::keep && linear.fates[i] != reference::fate::drop)
          expected.target.push_back(static_cast<int>(linear.target[i] + k));
      }
    }
    auto got = support::read_track(cache.ref(), t);
    for (std::uint32_t i = 0; i < got.size(); ++i)
      got.score[i] = static_cast<double>(cache.ledger().channel_data[0][cache.ledger().at(t, i)]);
    CHECK(support::difference<T>(expected, before[item], got) == "");
    check_channels(cache.ledger(), t, plans[item], channels[item]);
    check_members(cache.ledger(), t, applied.members);
  }
}

}  // namespace

TEST_CASE("a plan with every fate, by hand: what it prints and what it does") {
  kvmeld::shape const s{1, 1, 1, 1, 2, 1, 9};
  support::engine_memory<float> memory(s);
  memory.fill({0, 0, 0, 0}, 0, {{3, 4}, {0, 2}, {1, 0}, {6, 8}, {1, 1}, {2, 2}, {7, 7}, {8, 8}},
              {{10}, {20}, {30}, {40}, {50}, {60}, {70}, {80}});
  kvmeld::cache_options options = support::with_plan(4);
  options.zero_emptied = true;
  auto cache = make_cache(memory, hand_made::policy(), options);
  cache.open(0, 8);
  cache.plan({0}, kvmeld::budget::entries(9));
  kvmeld::plan_ref const& p = cache.current_plan();
  send(p, 0, 0, fate::merge, 1, 0.25f, 0.25f, 1);  // 0 merges into 1
  send(p, 0, 1, fate::keep, 1, 0.75f, 0.75f, 1);
  send(p, 0, 2, fate::spread, 4, 1, 0.5f, 0.5f, 2);  // 2 spreads over 4 and 5, of which 4 renormalises
  send(p, 0, 4, fate::keep, 4, 1, 0.5f, 1);
  send(p, 0, 3, fate::share, 6, 0.05f, 0.5f, 1);  // 3 shares 6
  send(p, 0, 6, fate::keep, 6, 0.5f, 0.5f, 1);
  send(p, 0, 7, fate::drop, 7, 1, 1, 1);
  dump::renumber(p, 0);
  std::ostringstream text;
  print_plan(text, cache);
  CHECK(text.str() == "track (layer 0, sequence 0, head 0): 8 -> 4 entries\n"
                      "  merge 0 (key 0.25, value 0.25) into 1 (key 0.75, value 0.75), then slot 0\n"
                      "  spread 2 over 4 to 5 (value 0.5)\n"
                      "  share 3 (key 0.05, value 0.5) into 6 (key 0.5, value 0.5), then slot 3\n"
                      "  drop 7\n"
                      "  2 entries stay as they are\n");
  cache.apply();
  auto const after = support::read_track(cache.ref(), {0, 0, 0, 0});
  // Keys: 0.25 (3,4) + 0.75 (0,2) = (0.75, 2.5); 4 and 5 keep theirs; 0.5 (7,7) + 0.05 (6,8) = (3.8, 3.9).
  CHECK(after.keys[0] == reference::row{0.75, 2.5});
  CHECK(after.keys[1] == reference::row{1, 1});
  CHECK(after.keys[3][0] == Approx(3.8));
  // Values: 2.5 + 15; 0.5 (50 + 15); 60 + 15; 35 + 20.
  CHECK(after.values == reference::matrix{{17.5}, {32.5}, {75}, {55}});
  CHECK(after.degree == std::vector<double>{2, 1.5, 1.5, 2});
  CHECK(after.position == std::vector<long>{1, 4, 5, 6});
  // Member 3 (norm 10) of what is now slot 3, whose own norm is 7 sqrt 2. Emptied values are zero.
  kvmeld::member_ref const& m = cache.ledger().members;
  REQUIRE(m.count[0] == 1);
  CHECK(m.norm[0] == 10);
  CHECK((m.position[0] == 3 && m.owner[0] == 3));
  CHECK(m.own_norm[3] == Approx(9.899495));
  for (std::uint32_t i = 0; i < 3; ++i) CHECK(m.own_norm[i] == 0);
  for (std::uint32_t i = 4; i < 8; ++i) CHECK(memory.values[i] == 0);
}

TEST_CASE("random plans of every kind are what the reference makes of them, and survive a round trip") {
  dice d(71);
  for (int i = 0; i < 150; ++i) {
    compare_random<float>(d);
    compare_random<kvmeld::float16>(d);
    compare_random<kvmeld::bfloat16>(d);
  }
}

TEST_CASE("printing runs of drops, several tracks and nothing to do") {
  support::engine_memory<float> memory({2, 1, 1, 1, 1, 1, 6});
  auto cache = make_cache(memory, hand_made::policy(), support::with_plan());
  cache.open(0, 6);
  cache.plan({0}, kvmeld::budget::entries(6));
  for (std::uint32_t s : {0u, 2u, 3u, 5u})
    cache.current_plan().fates[cache.current_plan().at(1, s)] = fate::drop;
  dump::renumber(cache.current_plan(), 1);
  std::ostringstream text;
  print_plan(text, cache);
  CHECK(text.str() == "track (layer 0, sequence 0, head 0): 6 -> 6 entries\n"
                      "  6 entries stay as they are\n"
                      "track (layer 1, sequence 0, head 0): 6 -> 2 entries\n"
                      "  drop 0 2-3 5\n"
                      "  2 entries stay as they are\n");
}

TEST_CASE("both loop orders give the same bits: rows first for strided, tokens first for transposed") {
  dice d(72);
  for (int i = 0; i < 120; ++i) {
    kvmeld::shape const s{d.between(1, 2), 1, d.between(1, 2), 1, d.between(1, 40), d.between(1, 40), 70};
    std::uint32_t const n = d.between(2, 70);
    support::engine_memory<kvmeld::float16> rowwise(s), columnwise(s, "LSHCT");
    for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
      for (std::uint32_t head = 0; head < s.kv_heads; ++head) {
        auto const k = support::random_rows(d, n, s.key_dim, support::texture::walk);
        auto const v = support::random_rows(d, n, s.value_dim, support::texture::noise);
        rowwise.fill(kvmeld::make_track(s, layer, 0, head), 0, k, v);
        columnwise.fill(kvmeld::make_track(s, layer, 0, head), 0, k, v);
      }
    }
    kvmeld::kv const turned{
        kvmeld::transposed<kvmeld::float16>(columnwise.keys.data(), "LSHCT", s, s.key_dim),
        kvmeld::transposed<kvmeld::float16>(columnwise.values.data(), "LSHCT", s, s.value_dim)};
    kvmeld::cache_options options = support::with_plan(2 * s.capacity);
    options.extent = s;
    auto one = make_cache(rowwise, hand_made::policy(), options);
    kvmeld::merged_cache two{kvmeld::host_executor(1), hand_made::policy(), turned, options};
    one.open(0, n);
    two.open(0, n);
    one.plan({0}, kvmeld::budget::entries(s.capacity));
    two.plan({0}, kvmeld::budget::entries(s.capacity));
    for (std::uint32_t item = 0; item < s.layers * s.kv_heads; ++item) {
      hand_made::randomise(d, one.current_plan(), item, n, 0, std::vector<char>(n, 0), d.chance(0.5));
      dump(one.current_plan(), item, n).restore(two.current_plan(), item);
    }
    one.apply();
    two.apply();
    CHECK(everything(one) == everything(two));
  }
}
