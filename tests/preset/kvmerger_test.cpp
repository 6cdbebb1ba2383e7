// KVMerger against the double-precision reference: sets, pivots, weights, and the way to an exact budget.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "reference/kvmerger.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace kvmerger_cases {

using doctest::Approx;
using support::dice;

namespace {

constexpr support::texture textures[] = {support::texture::noise, support::texture::walk,
                                         support::texture::walk, support::texture::clusters};
using pivot = kvmeld::identify::pivot_rule;
using anchor = kvmeld::identify::anchor_rule;
using sigma = kvmeld::merge::bandwidth;

// The same choices in the library's words and in the reference's.
template <class Policy> reference::kvmerger_options choose(dice& d, Policy& policy) {
  reference::kvmerger_options o;
  if (d.chance(0.5)) {
    policy.identify.anchor = anchor::chain;
    o.anchor = reference::anchor_rule::chain;
  }
  if (d.chance(0.3)) {
    policy.identify.pivot = pivot::newest;
    o.pivot = reference::pivot_rule::newest;
  }
  policy.identify.break_at_gap = o.break_at_gap = d.chance(0.3);
  switch (d.below(3)) {
  case 0:
    policy.merge.sigma = sigma::eq7_000;
    o.sigma = reference::sigma_rule::eq7_000;
    break;
  case 1:
    policy.merge.sigma = sigma::fixed;
    policy.merge.fixed_sigma = static_cast<float>(o.fixed_sigma = d.chance(0.5) ? 5.0 : 1.5);
    o.sigma = reference::sigma_rule::fixed;
    break;
  default: policy.merge.sigma = sigma::mean_l2;
  }
  return o;
}

// Cosines decide with less doubt than other numbers: 16 partial sums of at most 8 products each.
constexpr double cosine_margin = 1e-6;

// The library's bisection, with the reference's cosines; every cosine it looked at counts for the margin.
reference::kvmerger_options bisect(reference::track_state const& track, reference::kvmerger_options o,
                                   std::size_t budget, std::uint32_t steps, double& margin) {
  double low = -1.0625, high = 1.0625;
  for (std::uint32_t i = 0; i < steps; ++i) {
    o.theta = 0.5 * (low + high);
    reference::set_result const found = reference::sets_for_theta(track, o);
    margin = std::min(margin, found.margin);
    std::size_t members = 0;
    for (auto const& set : found.sets) members += set.size();
    std::size_t const others = track.size() - members;
    std::size_t const wanted = budget > others ? budget - others : 1;
    (found.sets.size() >= wanted ? high : low) = o.theta;
  }
  o.theta = high;
  return o;
}

kvmeld::shape random_shape(dice& d, std::uint32_t max_entries) {
  constexpr std::uint32_t dims[] = {16, 24, 64, 128};
  return {d.between(1, 2), d.between(1, 3), d.between(1, 2),         d.between(1, 4),
          d.pick(dims),    d.pick(dims),    max_entries + d.below(9)};
}

template <class Ref> reference::track_state with_scores(dice& d, Ref const& ref, kvmeld::track t) {
  support::set_scores(ref.ledger, t, support::random_scores(d, ref.length(t)));
  return support::read_track(ref, t);
}

template <class T> void compare_threshold(dice& d, support::tally& count) {
  std::uint32_t const most = d.pick({40u, 200u, 1024u});
  kvmeld::shape const s = random_shape(d, most);
  support::engine_memory<T> memory(s, d.chance(0.5) ? "LSHTC" : "SLTHC");
  auto policy = d.chance(0.5) ? kvmeld::preset::kvmerger::paper_50() : kvmeld::preset::kvmerger::paper_35();
  double const recent = policy.select.recents.value(), heavy = policy.select.heavy.value();
  reference::kvmerger_options o = choose(d, policy);
  policy.merge.degrees = true;
  constexpr float thetas[] = {0.75f, 0.5f, 0.9f, 0.1f, -0.25f};
  policy.identify.admission.theta = d.pick(thetas);
  o.theta = static_cast<double>(policy.identify.admission.theta);
  auto cache = make_cache(memory, policy);
  std::vector<reference::track_state> before(s.tracks());
  std::vector<std::uint32_t> slots;
  for (std::uint32_t q = 0; q < s.sequences; ++q) {
    slots.push_back(q);
    std::uint32_t const n = d.between(most / 2, most);
    cache.open(q, n);
    memory.fill_sequence(d, q, 0, n, d.pick(textures));
    std::vector<std::uint32_t> bad;
    if (d.chance(0.4)) bad.assign(d.between(1, 1 + n / 8), 0);
    for (std::uint32_t& b : bad) b = d.below(n);
    support::for_tracks(s, q, [&](kvmeld::track t) {
      for (std::uint32_t b : bad) {
        support::write_row(cache.ref().keys, t, b, {kvmeld::bits_float(0x7fc00000u)});
      }
      before[t.index] = with_scores(d, cache.ref(), t);
    });
  }
  cache.compress(slots, kvmeld::budget::entries(most / 3), kvmeld::shortfall::keep);
  for (std::uint32_t q = 0; q < s.sequences; ++q) {
    support::for_tracks(s, q, [&](kvmeld::track t) {
      reference::track_state const& was = before[t.index];
      o.recents = reference::floor_count(recent, was.size());
      o.heavies = reference::floor_count(heavy, was.size());
      reference::outcome const expected = reference::kvmerger(was, o, support::store_as<T>());
      if (expected.margin < cosine_margin) {
        ++count.skipped;
        return;
      }
      ++count.compared;
      CHECK(support::difference<T>(expected, was, support::read_track(cache.ref(), t)) == "");
    });
  }
}

template <class T> void compare_budget(dice& d, std::uint32_t bisections, support::tally& count) {
  std::uint32_t const most = d.pick({30u, 120u, 500u});
  kvmeld::shape const s = random_shape(d, most);
  support::engine_memory<T> memory(s);
  auto policy = kvmeld::preset::kvmerger::for_budget();
  reference::kvmerger_options o = choose(d, policy);
  policy.identify.admission.bisections = bisections;
  auto cache = make_cache(memory, policy);
  std::vector<reference::track_state> before(s.tracks());
  std::vector<std::uint32_t> slots, budgets(s.tracks());
  bool poisoned = false;
  for (std::uint32_t q = 0; q < s.sequences; ++q) {
    slots.push_back(q);
    std::uint32_t const n = d.between(most / 2, most);
    cache.open(q, n);
    memory.fill_sequence(d, q, 0, n, d.pick(textures));
    support::for_tracks(s, q, [&](kvmeld::track t) {
      for (std::uint32_t bad = d.chance(0.3) ? d.between(1, 4) : 0; bad > 0; --bad) {
        support::write_row(d.chance(0.5) ? cache.ref().keys : cache.ref().values, t, d.below(n),
                           {kvmeld::bits_float(0x7fc00000u)});
        poisoned = true;
      }
      before[t.index] = with_scores(d, cache.ref(), t);
      budgets[t.index] = d.between(most / 6, n + 2);  // ragged, some above the length
    });
  }
  cache.compress(slots, kvmeld::budget::per_track(budgets.data()), kvmeld::shortfall::keep);
  for (std::uint32_t q = 0; q < s.sequences; ++q) {
    support::for_tracks(s, q, [&](kvmeld::track t) {
      reference::track_state const& was = before[t.index];
      std::uint32_t const budget = budgets[t.index];
      o.recents = reference::floor_count(1.0 / 3, budget);
      o.heavies = reference::floor_count(0.25, budget);
      double margin = reference::no_gap;
      reference::outcome expected;
      if (was.size() <= budget) {
        expected = reference::apply_sets(was, {}, o);
      } else {
        o = bisect(was, o, budget, bisections, margin);
        expected = reference::kvmerger_to_budget(was, o, budget, support::store_as<T>());
      }
      reference::track_state const got = support::read_track(cache.ref(), t);
      if (!o.break_at_gap && !poisoned) CHECK(got.size() == std::min<std::size_t>(budget, was.size()));
      if (std::min(margin, expected.margin) < cosine_margin) {
        ++count.skipped;
        return;
      }
      ++count.compared;
      CHECK(support::difference<T>(expected, was, got) == "");
      bool const unreached = (cache.ledger().warnings[t.index] & kvmeld::warning::budget_unreached) != 0;
      CHECK(unreached == !expected.reached);
    });
  }
}

}  // namespace

TEST_CASE("KVMerger by hand: a pair, a protected entry between, the paper's variants") {
  // Five keys (1,0), (2,0), (3,0), (3,0), (9,9); values 10, 20, 30, 40, 50; scores 5, 1, 9, 2, 7. Budget 4.
  // Recents floor(4/3) = 1: slot 4. Heavy floor(4/4) = 1: of slots 0 to 3 the score 9, slot 2. K_m = 0, 1, 3,
  // of which 4 - 2 = 2 may stay. All cosines are 1: at any theta below 1 one set, so that the threshold found
  // lies above 1, three sets, and one boundary goes: of the equal ones the older, {0, 1}. Pivot 0 (5 against
  // 1). One distance d = 1, sigma = d: g = 1, exp(-1/2) = 0.60653; weights 1/1.60653 = 0.62246 and 0.37754.
  kvmeld::shape const s{1, 1, 1, 1, 2, 1, 8};
  support::engine_memory<float> memory(s);
  memory.fill(kvmeld::make_track(s, 0, 0, 0), 0, {{1, 0}, {2, 0}, {3, 0}, {3, 0}, {9, 9}},
              {{10}, {20}, {30}, {40}, {50}});
  auto const run = [&](auto const& policy, std::uint32_t budget) {
    support::engine_memory<float> copy = memory;
    auto cache = make_cache(copy, policy);
    cache.open(0, 5);
    support::set_scores(cache.ledger(), kvmeld::make_track(s, 0, 0, 0), {5, 1, 9, 2, 7});
    cache.compress({0}, kvmeld::budget::entries(budget), kvmeld::shortfall::keep);
    return support::read_track(cache.ref(), kvmeld::make_track(s, 0, 0, 0));
  };
  reference::track_state const merged = run(kvmeld::preset::kvmerger::for_budget(), 4);
  CHECK(merged.position == std::vector<long>{0, 2, 3, 4});
  CHECK(merged.degree == std::vector<double>{2, 1, 1, 1});
  CHECK(merged.score == std::vector<double>{6, 9, 2, 7});
  CHECK(merged.keys[0][0] == Approx(0.62246 * 1 + 0.37754 * 2));
  CHECK(merged.values[0][0] == Approx(0.62246 * 10 + 0.37754 * 20));
  CHECK(merged.values[2][0] == 40);

  // Budget 3: recents 1, heavy 0, so that slot 2 is in K_m too: 0, 1, 2, 3, of which 2 stay. Two boundaries,
  // the older ones: {0, 1, 2}, {3}. Pivot 2 (score 9), distances 2, 1, 0: sigma = 3/2; g = exp(-4/4.5) =
  // 0.41111, exp(-1/4.5) = 0.80074, 1; total 2.21185.
  reference::track_state const three = run(kvmeld::preset::kvmerger::for_budget(), 3);
  CHECK(three.position == std::vector<long>{2, 3, 4});
  CHECK(three.degree == std::vector<double>{3, 1, 1});
  CHECK(three.values[0][0] == Approx((0.41111 * 10 + 0.80074 * 20 + 1 * 30) / 2.21185));

  // As printed for 50%: recents floor(0.17 * 5) = 0, heavy floor(0.12 * 5) = 0, theta 0.75. From the newest:
  // slot 3 is cos 45 degrees = 0.707 from 4, a set of its own; 3, 2, 1, 0 share a direction. Sigma 5, pivot
  // 2, distances 2 1 0 0: g = exp(-4/50) = 0.92312, exp(-1/50) = 0.98020, 1, 1; total 3.90332. No degrees.
  reference::track_state const paper = run(kvmeld::preset::kvmerger::paper_50(), 3);
  CHECK(paper.position == std::vector<long>{2, 4});
  CHECK(paper.degree == std::vector<double>{1, 1});
  CHECK(paper.score == std::vector<double>{17, 7});
  CHECK(paper.values[0][0] == Approx((0.92312 * 10 + 0.98020 * 20 + 30 + 40) / 3.90332));

  // The second version's factor #S = 4 on the values, not on the keys.
  auto scaled = kvmeld::preset::kvmerger::paper_50();
  scaled.merge.scale_values_by_set_size = true;
  CHECK(run(scaled, 3).values[0][0] == Approx(4 * paper.values[0][0]));
  CHECK(run(scaled, 3).keys[0][0] == Approx(paper.keys[0][0]));
}

TEST_CASE("KVMerger at a given threshold is the reference's") {
  dice d(1);
  support::tally count;
  for (int i = 0; i < 60; ++i) compare_threshold<float>(d, count);
  for (int i = 0; i < 30; ++i) compare_threshold<kvmeld::float16>(d, count);
  for (int i = 0; i < 30; ++i) compare_threshold<kvmeld::bfloat16>(d, count);
  MESSAGE("compared ", count.compared, " tracks, skipped ", count.skipped);
  CHECK(count.compared > 400);
  CHECK(count.share() < 0.05);
}

TEST_CASE("KVMerger with an exact budget is the reference at the threshold that bisection finds") {
  dice d(2);
  support::tally coarse, fine;
  for (int i = 0; i < 60; ++i) {
    compare_budget<float>(d, d.between(1, 8), coarse);
    compare_budget<kvmeld::float16>(d, d.between(1, 8), coarse);
    compare_budget<float>(d, 16, fine);
  }
  for (int i = 0; i < 40; ++i) compare_budget<kvmeld::bfloat16>(d, 16, fine);
  MESSAGE("compared ", coarse.compared, " tracks, skipped ", coarse.skipped);
  MESSAGE("compared ", fine.compared, " tracks, skipped ", fine.skipped);
  // Sixteen steps end 3.2e-5 around a cosine, so that the last thetas come close to it.
  CHECK(coarse.compared > 400);
  CHECK(coarse.share() < 0.05);
  CHECK(fine.compared > 300);
  CHECK(fine.share() < 0.25);
}

}  // namespace kvmerger_cases
