// Chelsea against the double-precision reference: whole compressions, single rounds, and the schedule's
// memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <kvmeld/compose/any_cache.hpp>

#include "reference/chelsea.hpp"
#include "reference/samples.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace chelsea_cases {

using doctest::Approx;
using support::dice;

namespace {

namespace chelsea = kvmeld::preset::chelsea;

using averaging =
    kvmeld::policy<kvmeld::score::none, kvmeld::select::sinks_and_recents,
                   kvmeld::identify::chunked_bipartite<kvmeld::admit::top_share>, kvmeld::merge::average>;

averaging averaged(chelsea::type const& p) { return {{}, p.select, p.identify, {}}; }

constexpr support::texture textures[] = {support::texture::noise, support::texture::walk,
                                         support::texture::clusters};

// A preset with fewer sinks and recents, sometimes other chunks, and the reference's words for it.
struct choice {
  chelsea::type policy;
  reference::chelsea_options options;
};

choice choose(dice& d, std::uint32_t max_ends) {
  choice c{chelsea::llama2(), {}};
  switch (d.below(5)) {
  case 0: c.policy = chelsea::llama3(); break;
  case 1: c.policy = chelsea::qwen(); break;
  case 2: c.policy = chelsea::needle(); break;
  case 3: c.policy = chelsea::with_schedule({0.9, 0.2, 4, 0.05}); break;  // more than half: every edge
  default: break;
  }
  std::uint32_t const sinks = d.between(0, max_ends), recents = d.between(0, max_ends);
  c.policy.select = {kvmeld::quantity::entries(sinks), kvmeld::quantity::entries(recents)};
  constexpr std::uint32_t chunks[] = {256, 256, 2, 3, 7, 16, 64, 129};
  c.policy.identify.chunk = d.pick(chunks);
  kvmeld::round_schedule const& s = c.policy.identify.admission.schedule;
  c.options.sinks = sinks;
  c.options.recents = recents;
  c.options.chunk = c.policy.identify.chunk;
  c.options.r_init = s.initial;
  c.options.alpha = s.alpha;
  c.options.m = s.last;
  c.options.floor = s.floor;
  return c;
}

// Cosines decide with less doubt than other numbers: 16 partial sums of at most 8 products each.
constexpr double cosine_margin = 1e-6;

kvmeld::shape random_shape(dice& d, std::uint32_t max_entries) {
  constexpr std::uint32_t dims[] = {16, 40, 64, 128};
  return {d.between(1, 2), d.between(1, 2), d.between(1, 2),         1,
          d.pick(dims),    d.pick(dims),    max_entries + d.below(9)};
}

// One compression of every track to ragged budgets, all rounds at once.
template <class T, class Policy>
void compare_whole(dice& d, choice const& c, Policy const& policy, reference::star_weighting how,
                   std::uint32_t most, support::tally& count) {
  kvmeld::shape const s = random_shape(d, most);
  support::engine_memory<T> memory(s);
  auto cache = make_cache(memory, policy);
  std::vector<reference::track_state> before(s.tracks());
  std::vector<std::uint32_t> slots, budgets(s.tracks());
  for (std::uint32_t q = 0; q < s.sequences; ++q) {
    slots.push_back(q);
    std::uint32_t const n = d.between(most / 2, most);
    cache.open(q, n);
    memory.fill_sequence(d, q, 0, n, d.pick(textures));
    std::uint32_t const ends = static_cast<std::uint32_t>(c.options.sinks + c.options.recents);
    support::for_tracks(s, q, [&](kvmeld::track t) {
      budgets[t.index] = d.between(ends + 1, n + 1);
      // So few that every round has an edge for each pair of what has to go.
      std::uint32_t const few = c.policy.identify.pairs(budgets[t.index] + 1 - ends);
      for (std::uint32_t bad = few > 0 && d.chance(0.5) ? d.below(few) : 0; bad > 0; --bad) {
        support::write_row(d.chance(0.5) ? cache.ref().keys : cache.ref().values, t, d.below(n),
                           {kvmeld::bits_float(0x7f800000u)});
      }
      before[t.index] = support::read_track(cache.ref(), t);
    });
  }
  cache.compress(slots, kvmeld::budget::per_track(budgets.data()));
  for (std::uint32_t q = 0; q < s.sequences; ++q) {
    std::size_t max_rounds = 0;
    support::for_tracks(s, q, [&](kvmeld::track t) {
      reference::chelsea_options o = c.options;
      o.budget = budgets[t.index];
      o.weighting = how;
      reference::chelsea_outcome const expected =
          reference::chelsea(before[t.index], o, support::store_as<T>());
      max_rounds = std::max(max_rounds, expected.removed.size());
      CHECK(expected.reached);
      CHECK(
          expected.removed.size() <=
          c.policy.identify.max_rounds(static_cast<std::uint32_t>(before[t.index].size()), budgets[t.index]));
      reference::track_state const got = support::read_track(cache.ref(), t);
      CHECK(got.size() == expected.after.size());  // counts do not depend on cosines
      if (expected.margin < cosine_margin || (expected.near_rounding != 0 && expected.removed.size() > 1)) {
        ++count.skipped;
        return;
      }
      ++count.compared;
      CHECK(support::difference<T>(expected, before[t.index], got) == "");
      bool const unreached = (cache.ledger().warnings[t.index] & kvmeld::warning::budget_unreached) != 0;
      CHECK(unreached == !expected.reached);
    });
    CHECK(cache.rounds(q) == max_rounds);
  }
}

// Round by round through plan and apply: each starts from what the cache holds, so that 16-bit rounding of
// one round does not decide the next one's comparison. Positions of the schedule go on from round to round.
template <class T> void compare_rounds(dice& d, std::uint32_t most, support::tally& count) {
  choice const c = choose(d, 6);
  kvmeld::shape const s = random_shape(d, most);
  support::engine_memory<T> memory(s);
  auto cache = make_cache(memory, c.policy, support::with_plan());
  std::uint32_t const q = s.sequences - 1, n = d.between(most / 2, most);
  cache.open(q, n);
  memory.fill_sequence(d, q, 0, n, d.pick(textures));
  std::uint32_t const budget = d.between(13, n);
  while (cache.longest(q) > budget) {
    std::vector<reference::track_state> before(s.tracks());
    support::for_tracks(s, q,
                        [&](kvmeld::track t) { before[t.index] = support::read_track(cache.ref(), t); });
    reference::chelsea_options o = c.options;
    o.budget = budget;
    o.max_rounds = 1;
    o.first_step = cache.rounds(q);
    cache.plan({q}, kvmeld::budget::entries(budget));
    cache.apply();
    REQUIRE(cache.rounds(q) == o.first_step + 1);
    support::for_tracks(s, q, [&](kvmeld::track t) {
      reference::outcome const expected = reference::chelsea(before[t.index], o, support::store_as<T>());
      if (expected.margin < cosine_margin) {
        ++count.skipped;
        return;
      }
      ++count.compared;
      CHECK(support::difference<T>(expected, before[t.index], support::read_track(cache.ref(), t)) == "");
    });
  }
}

}  // namespace

TEST_CASE("the step of the schedule is set: each step has its share of the middle") {
  // r_i = 0.45 - 0.05 min(3, i) of 20 entries in one chunk: floor(9), floor(8), floor(7), floor(6) edges,
  // then 6 for ever.
  kvmeld::shape const s{1, 2, 1, 1, 2, 1, 20};
  dice d(3);
  support::engine_memory<float> memory(s);
  memory.fill_sequence(d, 1, 0, 20, support::texture::noise);
  auto const zero = kvmeld::quantity::entries(0);
  auto cache =
      make_cache(memory, chelsea::with_schedule({0.45, 0.05, 3, 0.05}, zero, zero), support::with_plan());
  auto const held = kvmeld::make_any_cache(support::twin_of(cache));
  kvmeld::any_cache& any = *held;
  any.open(1, 20);
  cache.open(1, 20);
  std::uint32_t const removed[] = {9, 8, 7, 6, 6};
  for (std::uint32_t i = 0; i < 5; ++i) {
    CAPTURE(i);
    cache.set_rounds(1, i);
    any.set_rounds(1, i);
    CHECK(cache.rounds(1) == i);
    CHECK(any.rounds(1) == i);
    cache.plan({1}, kvmeld::budget::entries(5));
    CHECK(cache.current_plan().new_length[0] == 20 - removed[i]);
  }
  cache.apply();
  CHECK(cache.rounds(1) == 5);
  CHECK(cache.length(0, 1, 0) == 14);
  CHECK_THROWS_WITH(cache.set_rounds(2, 0), "set_rounds: sequence is 2; it must be 0 to 1");
  CHECK_THROWS_WITH(cache.set_rounds(0, 1), "set_rounds: sequence is 0; it must be open (call open first)");
  CHECK_THROWS_WITH(cache.set_rounds(1, 1u << 31),
                    "set_rounds: n is 2147483648; it must be at most 2147483647");
  CHECK(cache.rounds(1) == 5);
}

TEST_CASE("Chelsea by hand: nine edges of twenty, five of eleven, and the clipped round") {
  // 20 entries at angles 0 1, 20 22, 40 43, ...: pair k lies 20 k degrees and 20 k + k + 1 degrees, so that
  // each A (even slot) is nearest to the B behind it, k + 1 degrees away (A 9, at 180, is 10 from its B at
  // 190; the B before it, at 160 + 9 = 169, is 11 away). floor(0.45 * 20) = 9 edges: all but the last pair's.
  kvmeld::shape const s{1, 1, 1, 1, 2, 1, 20};
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  support::engine_memory<float> memory(s);
  support::rows keys, values;
  for (int k = 0; k < 10; ++k) {
    for (int angle : {20 * k, 20 * k + k + 1}) {
      reference::row const r = reference::at_angle(angle);
      keys.push_back({static_cast<float>(r[0]), static_cast<float>(r[1])});
      values.push_back({static_cast<float>(values.size())});
    }
  }
  memory.fill(t, 0, keys, values);
  auto const zero = kvmeld::quantity::entries(0);
  auto cache =
      make_cache(memory, chelsea::with_schedule({0.45, 0.05, 3, 0.05}, zero, zero), support::with_plan());
  cache.open(0, 20);
  cache.plan({0}, kvmeld::budget::entries(5));
  std::vector<int> target;
  for (std::uint32_t i = 0; i < 20; ++i) target.push_back(static_cast<int>(cache.current_plan().target[i]));
  CHECK(target == std::vector<int>{1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15, 17, 17, 18, 19});
  CHECK(cache.current_plan().new_length[0] == 11);
  CHECK(cache.current_plan().key_weight[0] == 0.5f);
  cache.apply();
  reference::track_state const first = support::read_track(cache.ref(), t);
  CHECK(first.position == std::vector<long>{1, 3, 5, 7, 9, 11, 13, 15, 17, 18, 19});
  CHECK(first.degree == std::vector<double>{2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1});
  CHECK(first.values[3][0] == Approx((6 + 7) / 2.0));
  // Round 1: r = 0.45 - 0.05 = 0.4, floor(0.4 * 11) = 4 edges, 7 left. Round 2: r = 0.35, floor(2.45) = 2
  // edges: 5.
  cache.plan({0}, kvmeld::budget::entries(5));
  CHECK(cache.current_plan().new_length[0] == 7);
  cache.apply();
  // Clipped: to 6 only one of the two edges is drawn.
  cache.plan({0}, kvmeld::budget::entries(6));
  CHECK(cache.current_plan().new_length[0] == 6);
  cache.plan({0}, kvmeld::budget::entries(5));
  CHECK(cache.current_plan().new_length[0] == 5);
  cache.apply();
  CHECK(cache.rounds(0) == 3);
  reference::track_state const last = support::read_track(cache.ref(), t);
  double tokens = 0, mass = 0;  // the centroids of 0 .. 19 keep their sum
  for (std::size_t i = 0; i < last.size(); ++i) {
    tokens += last.degree[i];
    mass += last.degree[i] * last.values[i][0];
  }
  CHECK(tokens == 20);
  CHECK(mass == Approx(190));
}

TEST_CASE("Chelsea's rounds: four for Llama-2 to a fifth, eight for Llama-3, the counts go on") {
  // 1000 -> 200 without sinks and recents. Llama-2: 450, 220, 115, 15. Llama-3: 350, 162, 73, 62, 52, 45,
  // 38, 18.
  kvmeld::shape const s{1, 1, 1, 1, 8, 4, 1000};
  auto const zero = kvmeld::quantity::entries(0);
  dice d(3);
  support::engine_memory<float> memory(s);
  memory.fill_sequence(d, 0, 0, 1000, support::texture::walk);
  auto const lengths = [&](kvmeld::round_schedule schedule) {
    support::engine_memory<float> copy = memory;
    auto cache = make_cache(copy, chelsea::with_schedule(schedule, zero, zero), support::with_plan());
    cache.open(0, 1000);
    std::vector<int> out;
    while (cache.longest(0) > 200) {
      cache.plan({0}, kvmeld::budget::entries(200));
      cache.apply();
      out.push_back(static_cast<int>(cache.longest(0)));
    }
    return out;
  };
  CHECK(lengths(chelsea::llama2().identify.admission.schedule) == std::vector<int>{550, 330, 215, 200});
  CHECK(lengths(chelsea::llama3().identify.admission.schedule) ==
        std::vector<int>{650, 488, 415, 353, 301, 256, 218, 200});
  CHECK(lengths(chelsea::qwen().identify.admission.schedule).size() == 28);
  CHECK(lengths(chelsea::needle().identify.admission.schedule).front() == 750);
}

TEST_CASE("Chelsea in float is the reference, all rounds at once") {
  dice d(4);
  support::tally count;
  for (int i = 0; i < 120; ++i) {
    std::uint32_t const most = i < 4 ? 1024 : d.pick({24u, 60u, 150u, 300u});
    choice const c = choose(d, most / 8);
    if (i % 4 == 3) {
      compare_whole<float>(d, c, averaged(c.policy), reference::star_weighting::average, most, count);
    } else {
      compare_whole<float>(d, c, c.policy, reference::star_weighting::degree, most, count);
    }
  }
  MESSAGE("compared ", count.compared, " tracks, skipped ", count.skipped);
  CHECK(count.compared > 150);
  CHECK(count.share() < 0.1);
}

TEST_CASE("Chelsea in 16 bits is the reference where no rounded key decides a later round") {
  dice d(5);
  support::tally count;
  for (int i = 0; i < 150; ++i) {
    std::uint32_t const most = d.pick({16u, 40u, 90u});
    choice const c = choose(d, most / 8);
    compare_whole<kvmeld::float16>(d, c, c.policy, reference::star_weighting::degree, most, count);
    compare_whole<kvmeld::bfloat16>(d, c, c.policy, reference::star_weighting::degree, most, count);
  }
  MESSAGE("compared ", count.compared, " tracks, skipped ", count.skipped);
  CHECK(count.compared > 200);
  CHECK(count.share() < 0.6);
}

TEST_CASE("Chelsea's rounds one by one are the reference's in every storage type") {
  dice d(6);
  support::tally count;
  for (int i = 0; i < 30; ++i) {
    compare_rounds<float>(d, d.pick({30u, 100u, 300u}), count);
    compare_rounds<kvmeld::float16>(d, d.pick({30u, 100u, 300u}), count);
    compare_rounds<kvmeld::bfloat16>(d, d.pick({30u, 100u, 300u}), count);
  }
  MESSAGE("compared ", count.compared, " rounds, skipped ", count.skipped);
  CHECK(count.compared > 200);
  CHECK(count.share() < 0.05);
}

TEST_CASE("Chelsea while generating: appended tokens, persisted steps, a schedule started again") {
  dice d(7);
  choice c{chelsea::llama2(), {}};
  c.policy.select = {kvmeld::quantity::entries(4), kvmeld::quantity::entries(6)};
  c.options.sinks = 4;
  c.options.recents = 6;
  c.options.floor = 0.05;
  kvmeld::shape const s{1, 1, 1, 1, 32, 16, 128};
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  support::engine_memory<float> memory(s);
  auto cache = make_cache(memory, c.policy);
  cache.open(0, 100);
  memory.fill_sequence(d, 0, 0, 100, support::texture::walk);
  std::size_t step = 0;
  std::uint32_t seen = 100;
  for (int times = 0; times < 6; ++times) {
    reference::track_state const before = support::read_track(cache.ref(), t);
    reference::chelsea_options o = c.options;
    o.budget = 50;
    o.first_step = step;
    reference::chelsea_outcome const expected = reference::chelsea(before, o, support::store_as<float>());
    cache.compress({0}, kvmeld::budget::entries(50));
    REQUIRE(expected.margin > cosine_margin);
    CHECK(support::difference<float>(expected, before, support::read_track(cache.ref(), t)) == "");
    CHECK(cache.rounds(0) == expected.next_step);
    step = expected.next_step;
    if (times == 3) {
      cache.set_rounds(0, 0);
      step = 0;
    }
    if (times == 4) {  // the next share is that of two rounds later
      step += 2;
      cache.set_rounds(0, static_cast<std::uint32_t>(step));
      CHECK(cache.rounds(0) == step);
    }
    cache.append({0}, {20});  // two of them rejected drafts
    memory.fill_sequence(d, 0, 50, 20, support::texture::walk);
    cache.commit({0}, {18});
    seen += 18;
    CHECK(cache.ref().position(t, 67) == static_cast<int>(seen) - 1);
  }
}

}  // namespace chelsea_cases
