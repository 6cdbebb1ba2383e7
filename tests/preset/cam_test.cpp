// CaM against the double-precision reference, at once and step by step; its theorems as identities of the
// output; its draws.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/cam.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

using doctest::Approx;
using support::dice;

namespace {

namespace cam = kvmeld::preset::cam;
using kvmeld::identify::mask_mode;
using variant = kvmeld::merge::additive_variant;
constexpr std::uint32_t all = kvmeld::identify::local_span::whole_window;

// What the reference makes of one track. `margin` is the distance of the nearest decision to falling
// otherwise.
struct expectation {
  reference::outcome result;
  double margin = reference::no_gap;
  double growth = 1;  // largest sum of weights of a target
};

template <class Policy>
expectation expect(Policy const& p, kvmeld::ledger_ref const& l, kvmeld::track t,
                   reference::track_state const& was, reference::selection const& kept, std::size_t sinks,
                   std::size_t recents) {
  expectation e;
  std::size_t const n = was.size();
  e.margin = kept.margin;
  reference::indices evicted, ends;
  for (std::size_t i = 0; i < n; ++i) {
    if (!std::binary_search(kept.kept.begin(), kept.kept.end(), i)) evicted.push_back(i);
    if (i < sinks || i + recents >= n) ends.push_back(i);
  }
  reference::indices const targets = reference::cam_targets(was, n - recents, p.identify.targets);
  std::vector<double> mask;
  for (std::size_t const i : evicted) {
    double const rate = p.identify.reference_max ? reference::merge_rate_reference_max(was.score, i, ends)
                                                 : reference::merge_rate(was.score, i, targets);
    double m = rate;
    if (p.identify.mode == mask_mode::threshold) {
      m = reference::threshold_mask(rate);
      e.margin = std::min(e.margin, std::fabs(rate - 0.5));
    } else if (p.identify.mode == mask_mode::bernoulli) {
      double const drawn = static_cast<double>(
          kvmeld::uniform01({p.identify.seed, l.first_layer + t.layer, l.id[t.sequence],
                             l.first_kv_head + t.kv_head, static_cast<std::uint32_t>(was.position[i])}));
      m = drawn < rate ? 1 : 0;
      if (rate > 0 && rate < 1) e.margin = std::min(e.margin, std::fabs(rate - drawn));
    }
    mask.push_back(targets.empty() ? 0.0 : m);
    if (!was.bad[i] && !targets.empty()) e.growth += mask.back() / static_cast<double>(targets.size());
  }
  e.result = reference::cam_merge(was, evicted, mask, targets,
                                  p.merge.variant == variant::paper ? reference::cam_variant::paper
                                                                    : reference::cam_variant::mass_corrected);
  return e;
}

// What differs; empty if nothing. Keys and scores never change; values are the exact ones, rounded to
// storage, but for what float sums are off.
template <class T>
std::string unlike(expectation const& e, reference::track_state const& was,
                   reference::track_state const& got) {
  reference::track_state const& after = e.result.after;
  if (got.size() != after.size()) return "length";
  if (got.position != after.position) return "positions";
  if (got.score != after.score) return "scores";
  double const slack = 3e-6 * e.growth * support::largest_of(was.values, was.bad);
  for (std::size_t s = 0; s < got.size(); ++s) {
    if (!(std::fabs(got.degree[s] - after.degree[s]) <= 1e-5 * after.degree[s])) return "degrees";
    if (after.bad[s]) continue;
    if (got.keys[s] != after.keys[s]) return "keys";
    for (std::size_t c = 0; c < got.values[s].size(); ++c) {
      double const exact = after.values[s][c], stored = got.values[s][c];
      double const step = support::spacing<T>(std::max(std::fabs(exact), std::fabs(stored)));
      if (!(std::fabs(stored - exact) <= 0.5 * step + slack)) return "values";
    }
  }
  return "";
}

template <class Policy> void some_options(dice& d, Policy& p) {
  constexpr mask_mode modes[] = {mask_mode::bernoulli, mask_mode::expected, mask_mode::threshold};
  p.identify.mode = d.pick(modes);
  p.identify.targets = d.chance(0.5) ? all : d.between(1, 20);
  p.identify.seed = d.next();
  p.identify.reference_max = d.chance(0.3);
  p.merge.variant = d.chance(0.5) ? variant::paper : variant::mass_corrected;
}

// Scores, degrees and rows with NaN as long generations leave them.
template <class Ref> void age(dice& d, Ref const& ref, kvmeld::track t) {
  std::uint32_t const n = ref.length(t);
  std::vector<float> scores = support::random_scores(d, n);
  for (float& x : scores) x = d.chance(0.1) ? 0.0f : x;
  if (d.chance(0.1)) scores.assign(n, 0.0f);  // 0/0
  support::set_scores(ref.ledger, t, scores);
  if (d.chance(0.5)) {
    for (std::uint32_t i = 0; i < n; ++i)
      ref.ledger.degree[ref.ledger.at(t, i)] = static_cast<float>(1 + 2 * d.uniform());
  }
  for (std::uint32_t bad = d.chance(0.3) ? d.between(1, 5) : 0; bad > 0; --bad) {
    auto const spoil = [&](auto const& layout) {
      support::write_row(layout, t, d.below(n), {kvmeld::bits_float(0x7fc00000u)});
    };
    d.chance(0.5) ? spoil(ref.keys) : spoil(ref.values);
  }
}

// Random tracks at once, to ragged budgets; choose(track, budget) is the base policy's reference.
template <class T, class Policy, class Choose>
void compare_at_once(dice& d, Policy policy, Choose choose, support::tally& count) {
  constexpr std::uint32_t dims[] = {16, 33, 64};
  std::uint32_t const most = d.pick({20u, 80u, 300u});
  kvmeld::shape const s{d.between(1, 2), d.between(1, 3), d.between(1, 3),  1,
                        d.pick(dims),    d.pick(dims),    most + d.below(5)};
  some_options(d, policy);
  support::engine_memory<T> memory(s, d.chance(0.5) ? "LSHTC" : "HTLSC");
  kvmeld::cache_options options = d.chance(0.5) ? support::with_plan() : kvmeld::cache_options{};
  options.first_layer = d.below(3);
  options.first_kv_head = d.below(3);
  auto cache = make_cache(memory, policy, options);
  std::vector<reference::track_state> before(s.tracks());
  std::vector<std::uint32_t> slots, budgets(s.tracks());
  for (std::uint32_t q = 0; q < s.sequences; ++q) {
    slots.push_back(q);
    std::uint32_t const n = d.between(most / 2, most);
    cache.open(q, n, 0, kvmeld::sequence_id{d.below(1000)});
    memory.fill_sequence(d, q, 0, n, support::texture::noise);
    support::for_tracks(s, q, [&](kvmeld::track t) {
      age(d, cache.ref(), t);
      before[t.index] = support::read_track(cache.ref(), t);
      budgets[t.index] = d.between(1, n + 1);
    });
  }
  auto const budget = kvmeld::budget::per_track(budgets.data());
  if (options.whole_plan) {
    cache.plan(slots, budget);
    cache.apply();
  } else {
    cache.compress(slots, budget);
  }
  for (std::uint32_t q = 0; q < s.sequences; ++q) {
    support::for_tracks(s, q, [&](kvmeld::track t) {
      reference::track_state const& was = before[t.index];
      kvmeld::pins const pins =
          policy.select.pinned(static_cast<std::uint32_t>(was.size()), budgets[t.index], 0);
      expectation const e =
          expect(policy, cache.ledger(), t, was, choose(was, budgets[t.index]), pins.sinks, pins.recents);
      if (e.margin < support::decision_margin) {
        ++count.skipped;
        return;
      }
      ++count.compared;
      CHECK(unlike<T>(e, was, support::read_track(cache.ref(), t)) == "");
    });
  }
}

auto const choose_streaming = [](reference::track_state const& was, std::uint32_t budget) {
  return reference::streaming_llm(was.size(), reference::floor_count(0.5, budget), budget);
};
auto const choose_h2o = [](reference::track_state const& was, std::uint32_t budget) {
  return reference::h2o(was.score, budget);
};

// Tokens one by one; every `interval` steps the track goes back to its budget, and every time the reference,
// given the track as it was, has to agree.
template <class T, class Policy, class Choose>
void compare_generation(dice& d, Policy policy, Choose choose, std::uint32_t interval,
                        support::tally& count) {
  some_options(d, policy);
  std::uint32_t const budget = d.between(6, 20);
  kvmeld::shape const s{1, 2, 2, 1, 8, 8, budget + interval};
  support::engine_memory<T> memory(s);
  auto cache = make_cache(memory, policy);
  kvmeld::trigger const when{budget, interval};
  cache.open(0);
  cache.open(1, 0, 0, kvmeld::sequence_id{9});
  std::vector<std::vector<double>> scores(s.tracks());  // the reference's own sums
  std::vector<float> rows(std::size_t{2} * s.kv_heads * s.capacity);
  std::uint32_t const both[] = {0, 1}, ones[] = {1, 1};
  for (std::uint32_t step = 0; step < 120; ++step) {
    cache.append({0, 1}, {1, 1});
    for (std::uint32_t q : both) memory.fill_sequence(d, q, cache.longest(q) - 1, 1, support::texture::noise);
    cache.commit({0, 1}, {1, 1});
    for (float& x : rows) x = static_cast<float>(d.below(1024)) / 4096.0f;  // exact sums
    cache.observe_rows({0, {both, 2}, {ones, 2}},
                       kvmeld::rows_by_head<float const>(rows.data(), 1, s.kv_heads, s.capacity));
    std::vector<reference::track_state> before(s.tracks());
    bool const due = cache.due(0, when);
    for (std::uint32_t q : both) {
      support::for_tracks(s, q, [&](kvmeld::track t) {
        before[t.index] = support::read_track(cache.ref(), t);
        std::vector<double>& own = scores[t.index];
        own.resize(before[t.index].size(), 0.0);
        for (std::size_t i = 0; i < own.size(); ++i)
          own[i] += static_cast<double>(rows[(q * s.kv_heads + t.kv_head) * s.capacity + i]);
        CHECK(before[t.index].score == own);
      });
    }
    if (!due) continue;
    cache.compress({0, 1}, kvmeld::budget::entries(budget));
    for (std::uint32_t q : both) {
      support::for_tracks(s, q, [&](kvmeld::track t) {
        reference::track_state const& was = before[t.index];
        kvmeld::pins const pins = policy.select.pinned(static_cast<std::uint32_t>(was.size()), budget, 0);
        expectation const e =
            expect(policy, cache.ledger(), t, was, choose(was, budget), pins.sinks, pins.recents);
        reference::track_state const got = support::read_track(cache.ref(), t);
        scores[t.index] = got.score;
        if (e.margin < support::decision_margin) {
          ++count.skipped;
          return;
        }
        ++count.compared;
        CHECK(unlike<T>(e, was, got) == "");
      });
    }
  }
}

reference::track_state one_track(kvmeld::shape const& s, support::rows const& k, support::rows const& v,
                                 std::vector<float> const& scores, std::vector<float> const& degrees,
                                 cam::type const& policy, std::uint32_t budget) {
  support::engine_memory<float> memory(s);
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  memory.fill(t, 0, k, v);
  auto cache = make_cache(memory, policy);
  cache.open(0, static_cast<std::uint32_t>(k.size()));
  for (std::size_t i = 0; i < degrees.size(); ++i) cache.ledger().degree[i] = degrees[i];
  support::set_scores(cache.ledger(), t, scores);
  cache.compress({0}, kvmeld::budget::entries(budget));
  return support::read_track(cache.ref(), t);
}

}  // namespace

TEST_CASE("CaM by hand: four entries become three") {
  // Scores 1, 9, 3, 5; slot 0 evicted (no sinks, budget 3), p = 1 / mean(9, 3, 5) = 3/17. Values 34, 1, 2, 3.
  kvmeld::shape const s{1, 1, 1, 1, 1, 1, 4};
  cam::type p = cam::over_streaming_llm(kvmeld::quantity::entries(0));
  auto const run = [&] {
    return one_track(s, {{1}, {2}, {3}, {4}}, {{34}, {1}, {2}, {3}}, {1, 9, 3, 5}, {}, p, 3);
  };
  // expected, corrected: r = 3/17/3 = 1/17; values (V_k + 34/17) / (18/17) = (V_k + 2) 17/18; degrees 18/17.
  reference::track_state got = run();
  for (std::size_t k = 0; k < 3; ++k) {
    CHECK(got.values[k][0] == Approx((static_cast<double>(k + 1) + 2) * 17 / 18));
    CHECK(got.degree[k] == Approx(18.0 / 17));
  }
  CHECK(got.position == std::vector<long>{1, 2, 3});
  CHECK(got.score == std::vector<double>{9, 3, 5});  // no attention moves
  CHECK(got.keys == reference::matrix{{2}, {3}, {4}});
  // The first two local tokens: p = 1 / mean(9, 3) = 1/6, r = 1/12, 34/12 added.
  p.identify.targets = 2;
  got = run();
  CHECK(got.values[1][0] == Approx((2 + 34.0 / 12) / (1 + 1.0 / 12)));
  CHECK(got.degree[2] == 1);
  CHECK(got.values[2][0] == 3);
  // As printed the masks are 0 or 1. The threshold says 0 here: evicted.
  p.identify.mode = mask_mode::threshold;
  CHECK(run().values == reference::matrix{{1}, {2}, {3}});
  // 3 sinks and recents, 5 the most of them: p = 1/5 by the maximum over the last entry alone.
  p = cam::as_printed(cam::over_streaming_llm(kvmeld::quantity::entries(0)), 0, true);
  p.identify.mode = mask_mode::expected;
  got = run();
  CHECK(got.values[0][0] == Approx(1 + 34.0 / 9 / 3));  // the maximum of the three recents is 9
  CHECK(got.degree == std::vector<double>{1, 1, 1});
}

TEST_CASE("CaM's mask as given: what the array says for the entry's track and slot, whatever the scores") {
  // Two heads of five entries, of which slots 0 and 1 go. Masks of head 0: none, half; of head 1: all (3
  // counts as 1), none (below 0). As printed, V_k + sum of M_i V_i / 3 for the three that stay.
  kvmeld::shape const s{1, 2, 2, 1, 1, 1, 6};
  float const nan = kvmeld::bits_float(0x7fc00000u);
  std::vector<float> masks(std::size_t{4} * 6, 0.9f);
  auto const track = [&](std::uint32_t head) { return kvmeld::make_track(s, 0, 1, head); };
  auto const mask = [&](std::uint32_t head, std::uint32_t slot) -> float& {
    return masks[std::size_t{track(head).index} * s.capacity + slot];
  };
  mask(0, 0) = nan;
  mask(0, 1) = 0.5f;
  mask(1, 0) = 3.0f;
  mask(1, 1) = -1.0f;
  cam::type p = cam::as_printed(cam::over_streaming_llm(kvmeld::quantity::entries(0)));
  p.identify.mode = mask_mode::given;
  CHECK(p.identify.problem() ==
        "policy: identify::local_span.given is null; it must be an array of masks, because mode is given");
  p.identify.given = masks.data();
  support::engine_memory<float> memory(s);
  auto cache = make_cache(memory, p);
  cache.open(1, 5);
  for (std::uint32_t head : {0u, 1u}) {
    memory.fill(track(head), 0, support::rows(5, {1}), {{12}, {24}, {1}, {2}, {3}});
    support::set_scores(cache.ledger(), track(head), {0, 9, 1, 1, 1});  // p would be 0 and 1
  }
  cache.compress({1}, kvmeld::budget::entries(3));
  CHECK(support::read_track(cache.ref(), track(0)).values == reference::matrix{{5}, {6}, {7}});
  CHECK(support::read_track(cache.ref(), track(1)).values == reference::matrix{{5}, {6}, {7}});
}

TEST_CASE("CaM with rows of NaN: they drop and never receive; the longest run of the window does") {
  // Window of six, slots 2 to 7, of which 4 is bad: runs 2 3 and 5 6 7. Slot 0 is evicted, slot 1 too but
  // bad.
  kvmeld::shape const s{1, 1, 1, 1, 1, 1, 8};
  float const nan = kvmeld::bits_float(0x7fc00000u);
  cam::type p = cam::as_printed(cam::over_streaming_llm(kvmeld::quantity::entries(0)));
  support::rows v;
  for (int i = 0; i < 8; ++i) v.push_back({static_cast<float>(i + 10)});
  auto const run = [&](std::vector<std::uint32_t> const& bad, std::vector<float> const& scores) {
    support::rows k(8, {1.0f});
    for (std::uint32_t b : bad) k[b] = {nan};
    return one_track(s, k, v, scores, {}, p, 6).values;
  };
  using reference::matrix;
  double const third = 10.0 / 3;
  matrix const got = run({1, 4}, std::vector<float>(8, 1.0f));
  CHECK(got[0][0] == 12);
  CHECK(got[1][0] == 13);
  for (std::size_t k = 3; k < 6; ++k) CHECK(got[k][0] == Approx(12 + static_cast<double>(k) + third));
  // The earlier of equal runs: 2 3 against 5 6, with 4 and 7 bad.
  CHECK(run({1, 4, 7}, std::vector<float>(8, 1.0f))[1][0] == Approx(13 + 5));
  CHECK(run({1, 4, 7}, std::vector<float>(8, 1.0f))[3][0] == 15);
  // Nothing to receive: evicted.
  CHECK(run({2, 3, 4, 5, 6, 7}, std::vector<float>(8, 1.0f))[0][0] == 12);
  // 0/0 is 0, x/0 is 1; NaN and infinity among scores count as 0.
  CHECK(run({1}, {0, 0, 0, 0, 0, 0, 0, 0})[0][0] == 12);
  CHECK(run({1}, {1e-30f, 0, 0, 0, 0, 0, 0, 0})[0][0] == Approx(12 + 10.0 / 6));
  CHECK(run({1}, {nan, 0, 1, 1, 1, 1, 1, 1})[0][0] == 12);
  CHECK(run({1}, {1, 0, nan, nan, kvmeld::bits_float(0x7f800000u), nan, nan, nan})[0][0] ==
        Approx(12 + 10.0 / 6));
}

TEST_CASE("CaM leaves frozen tokens alone, evicted or not") {
  // Ten entries, seven frozen, budget 8: one of the last three goes, two receive.
  kvmeld::shape const s{1, 1, 1, 1, 2, 1, 10};
  support::engine_memory<float> memory(s);
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  memory.fill(t, 0, support::rows(10, {1, 2}), {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}});
  auto cache = make_cache(memory, cam::as_printed(cam::over_streaming_llm(kvmeld::quantity::entries(2))),
                          support::with_plan());
  cache.open(0, 10, 7);
  support::set_scores(cache.ledger(), t, std::vector<float>(10, 1.0f));
  cache.plan({0}, kvmeld::budget::entries(9));
  kvmeld::plan_ref const& plan = cache.current_plan();
  CHECK(plan.fates[7] == kvmeld::fate::spread);
  CHECK(plan.target[7] == 8);
  CHECK(plan.span[7] == 2);
  CHECK(plan.value_weight[7] == 0.5f);
  cache.apply();
  CHECK(support::read_track(cache.ref(), t).values ==
        reference::matrix{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {8 + 3.5}, {9 + 3.5}});
}

TEST_CASE("CaM at once is the reference's") {
  dice d(41);
  support::tally count;
  for (int i = 0; i < 60; ++i) {
    compare_at_once<float>(d, cam::over_streaming_llm(), choose_streaming, count);
    compare_at_once<float>(d, cam::over_h2o(), choose_h2o, count);
    compare_at_once<kvmeld::bfloat16>(d, cam::over_streaming_llm(), choose_streaming, count);
    compare_at_once<kvmeld::bfloat16>(d, cam::over_h2o(), choose_h2o, count);
    compare_at_once<kvmeld::float16>(d, cam::over_h2o(), choose_h2o, count);
  }
  MESSAGE("compared ", count.compared, " tracks, skipped ", count.skipped);
  CHECK(count.compared > 1000);
  CHECK(count.share() < 0.05);
}

TEST_CASE("CaM while generating is the reference's, every step or every few") {
  dice d(42);
  support::tally count;
  for (std::uint32_t interval : {1u, 2u, 7u, 1u, 3u}) {
    compare_generation<float>(d, cam::over_streaming_llm(), choose_streaming, interval, count);
    compare_generation<float>(d, cam::over_h2o(), choose_h2o, interval, count);
    compare_generation<kvmeld::bfloat16>(d, cam::over_streaming_llm(), choose_streaming, interval, count);
    compare_generation<kvmeld::bfloat16>(d, cam::over_h2o(), choose_h2o, interval, count);
  }
  MESSAGE("compared ", count.compared, " tracks, skipped ", count.skipped);
  CHECK(count.compared > 3000);
  CHECK(count.share() < 0.05);
}

TEST_CASE("theorem 3.2: without loss the corrected output is O, the printed one O / (1 - A)") {
  // Random attention of one query, with degrees. The local tokens' mean is moved to A_i exactly where mask
  // is 1.
  dice d(43);
  for (int round = 0; round < 60; ++round) {
    std::uint32_t const n = d.between(4, 30), m = d.between(1, n - 2), i = n - m - 1;
    std::vector<double> mass(n), degree(n, 1.0);
    double total = 0, local = 0;
    for (std::uint32_t j = 0; j < n; ++j) {
      mass[j] = 0.2 + d.uniform();
      if (d.chance(0.5)) degree[j] = d.between(1, 4);
    }
    for (std::uint32_t j = i + 1; j < n; ++j) local += mass[j];
    mass[i] = local / m;
    for (double x : mass) total += x;
    support::rows k, v;
    std::vector<float> scores, degrees;
    for (std::uint32_t j = 0; j < n; ++j) {
      k.push_back({static_cast<float>(std::log(mass[j] / degree[j]))});
      v.push_back({static_cast<float>(d.normal()), static_cast<float>(d.normal())});
      degrees.push_back(static_cast<float>(degree[j]));
      scores.push_back(static_cast<float>(mass[j]));
    }
    kvmeld::shape const s{1, 1, 1, 1, 1, 2, n};
    reference::matrix const query{{1}};
    reference::matrix keys, values;
    for (std::uint32_t j = 0; j < n; ++j) {
      keys.emplace_back(k[j].begin(), k[j].end());
      values.emplace_back(v[j].begin(), v[j].end());
    }
    reference::row const o = reference::attend(query, keys, values, degree).output[0];
    cam::type p = cam::over_streaming_llm(kvmeld::quantity::entries(i));
    auto const after = [&] {
      return reference::attend(query, one_track(s, k, v, scores, degrees, p, n - 1)).output[0];
    };
    constexpr mask_mode modes[] = {mask_mode::bernoulli, mask_mode::expected, mask_mode::threshold};
    p.identify.mode = d.pick(modes);
    scores[i] *= 1.0001f;  // p = 1 in spite of float sums
    double const a = mass[i] / total;
    reference::row const corrected = after();
    p = cam::as_printed(p);
    reference::row const printed = after();
    for (std::size_t c = 0; c < 2; ++c) {
      CHECK(corrected[c] == Approx(o[c]).epsilon(1e-4).scale(1));
      CHECK(printed[c] == Approx(o[c] / (1 - a)).epsilon(1e-4).scale(1));
    }
  }
}

TEST_CASE("expected masks lose nothing for the query that the scores come from, whatever the rates up to 1") {
  dice d(44);
  for (int round = 0; round < 60; ++round) {
    std::uint32_t const n = d.between(6, 30), m = d.between(1, n / 2), sinks = d.between(0, n - m - 1);
    std::vector<double> degree(n, 1.0);
    support::rows k, v;
    std::vector<float> scores, degrees;
    reference::matrix keys, values;
    for (std::uint32_t j = 0; j < n; ++j) {
      double const mass = j < n - m ? 0.01 + 0.9 * d.uniform() : 1 + d.uniform();
      degree[j] = d.between(1, 3);
      k.push_back({static_cast<float>(std::log(mass / degree[j]))});
      v.push_back({static_cast<float>(d.normal())});
      scores.push_back(static_cast<float>(mass));
      degrees.push_back(static_cast<float>(degree[j]));
      keys.emplace_back(k[j].begin(), k[j].end());
      values.emplace_back(v[j].begin(), v[j].end());
    }
    kvmeld::shape const s{1, 1, 1, 1, 1, 1, n};
    double const o = reference::attend({{1}}, keys, values, degree).output[0][0];
    cam::type const p = cam::over_streaming_llm(kvmeld::quantity::entries(sinks));
    auto const after = one_track(s, k, v, scores, degrees, p, sinks + m);
    CHECK(after.size() == sinks + m);
    CHECK(reference::attend({{1}}, after).output[0][0] == Approx(o).epsilon(1e-4).scale(1));
    CHECK(reference::attend({{1}}, after).lse[0] ==
          Approx(reference::attend({{1}}, keys, values, degree).lse[0]).epsilon(1e-4));
  }
}

TEST_CASE("draws belong to layer, head, sequence and position, not to slots, waves or threads") {
  kvmeld::shape const lone{4, 1, 4, 1, 8, 8, 200};
  kvmeld::shape const crowd{4, 3, 4, 1, 8, 8, 200};
  cam::type const p = cam::as_printed(cam::over_streaming_llm(), 11);
  auto const run = [&](kvmeld::shape const& s, std::uint32_t slot, std::uint32_t threads,
                       std::uint32_t wave) {
    dice rows(7);
    support::engine_memory<float> memory(s);
    memory.fill_sequence(rows, slot, 0, 180, support::texture::noise);
    kvmeld::cache_options options{};
    options.wave_tracks = wave;
    auto cache = make_cache(memory, p, options, threads);
    std::vector<std::uint32_t> order{slot};
    for (std::uint32_t q = 0; q < s.sequences; ++q) {
      cache.open(q, 180, 0, kvmeld::sequence_id{q == slot ? 77 : 5 + q});
      if (q != slot) order.insert(order.begin(), q);
      dice scores(8);
      support::for_tracks(s, q, [&](kvmeld::track t) {
        support::set_scores(cache.ledger(), t, support::random_scores(scores, 180));
      });
    }
    cache.compress(order, kvmeld::budget::entries(40));
    std::vector<reference::matrix> out;
    support::for_tracks(s, slot,
                        [&](kvmeld::track t) { out.push_back(support::read_track(cache.ref(), t).values); });
    return out;
  };
  auto const alone = run(lone, 0, 1, 0);
  CHECK(run(crowd, 2, 1, 1) == alone);
  CHECK(run(crowd, 1, 3, 5) == alone);
  CHECK(run(crowd, 0, 2, 48) == alone);

  // The second half of the heads and layers on another rank, under their global numbers.
  auto const masks = [&](kvmeld::shape const& s, std::uint32_t layer, std::uint32_t head,
                         std::uint64_t seed) {
    support::engine_memory<float> memory(s);
    kvmeld::cache_options options = support::with_plan();
    options.first_layer = layer;
    options.first_kv_head = head;
    cam::type q = p;
    q.identify.seed = seed;
    auto cache = make_cache(memory, q, options);
    cache.open(0, 200, 0, kvmeld::sequence_id{3});
    std::vector<float> scores(200, 1.0f);
    for (std::uint32_t i = 0; i < 180; ++i) scores[i] = 0.3f;
    support::for_tracks(s, 0, [&](kvmeld::track t) { support::set_scores(cache.ledger(), t, scores); });
    cache.plan({0}, kvmeld::budget::entries(40));
    std::vector<std::vector<char>> out;
    for (std::uint32_t item = 0; item < s.tracks(); ++item) {
      out.emplace_back();
      for (std::uint32_t i = 20; i < 180; ++i)
        out.back().push_back(cache.current_plan().fates[cache.current_plan().at(item, i)] ==
                             kvmeld::fate::spread);
    }
    return out;
  };
  kvmeld::shape const whole{4, 1, 4, 1, 2, 2, 200}, part{2, 1, 2, 1, 2, 2, 200};
  auto const here = masks(whole, 0, 0, 11), there = masks(part, 2, 2, 11), other = masks(whole, 0, 0, 12);
  CHECK(there[0] == here[2 * 4 + 2]);
  CHECK(there[3] == here[3 * 4 + 3]);
  // 16 tracks of 160 draws with p = 0.3: mean 768, deviation 23.2. Two tracks agree in 0.58 of their draws.
  std::size_t merged = 0, agree = 0, same_seed = 0;
  for (std::size_t a = 0; a < here.size(); ++a) {
    for (std::size_t i = 0; i < 160; ++i) {
      merged += here[a][i] ? 1 : 0;
      agree += here[a][i] == here[(a + 1) % here.size()][i] ? 1 : 0;
      same_seed += here[a][i] == other[a][i] ? 1 : 0;
    }
  }
  CHECK(std::fabs(static_cast<double>(merged) - 768) < 5 * 23.2);
  CHECK(std::fabs(static_cast<double>(agree) - 0.58 * 2560) < 5 * 25);
  CHECK(std::fabs(static_cast<double>(same_seed) - 0.58 * 2560) < 5 * 25);
}

TEST_CASE("CaM configured wrongly") {
  cam::type p = cam::over_streaming_llm();
  p.identify.targets = 0;
  CHECK(kvmeld::configuration_problem(p) ==
        "policy: identify::local_span.targets is 0; it must be at least 1, or whole_window");
  support::engine_memory<float> memory({1, 1, 1, 1, 2, 2, 4});
  CHECK_THROWS_WITH_AS(make_cache(memory, p), ("merged_cache: " + kvmeld::configuration_problem(p)).c_str(),
                       kvmeld::invalid_argument);
  CHECK(kvmeld::configuration_problem(cam::over_h2o()).empty());
  CHECK(kvmeld::name_of_policy(cam::over_h2o()) == "global x top x local_span x additive");
}
