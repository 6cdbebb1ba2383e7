// Budgets shared out over heads by cost curves: against an exhaustive search, and by their properties.
#include <doctest/doctest.h>

#include <kvmeld/calibrate/allot.hpp>
#include <kvmeld/calibrate/calibration.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "cache/refusal.hpp"
#include "support/random_cache.hpp"

namespace {

using cache_test::refusal_of;
using kvmeld::calibrate::allot;
using kvmeld::calibrate::cost_curve;
using support::dice;

// Convex and falling, with corners at tenths.
cost_curve convex(dice& d) {
  std::vector<double> fall;
  for (int i = 0; i < 9; ++i) fall.push_back(d.uniform() * d.uniform() * d.uniform());
  std::sort(fall.rbegin(), fall.rend());
  cost_curve c;
  double cost = std::accumulate(fall.begin(), fall.end(), 0.0);
  for (int i = 1; i <= 10; ++i) {
    c.share.push_back(i / 10.0);
    c.cost.push_back(i == 10 ? 0.0 : cost);
    if (i < 10) cost -= fall[static_cast<std::size_t>(i - 1)];
  }
  return c;
}

double cost_at(cost_curve const& c, double share) {
  for (std::size_t i = 1; i < c.share.size(); ++i) {
    if (share <= c.share[i] + 1e-12) {
      double const t = (share - c.share[i - 1]) / (c.share[i] - c.share[i - 1]);
      return c.cost[i - 1] + t * (c.cost[i] - c.cost[i - 1]);
    }
  }
  return 0;
}

// The least sum of costs over all ways to give tenths: one head after the other, all totals.
double min_cost(std::vector<cost_curve> const& heads, int tenths) {
  std::vector<double> best(static_cast<std::size_t>(tenths) + 1, 1e9);
  best[0] = 0;
  for (cost_curve const& c : heads) {
    std::vector<double> next(best.size(), 1e9);
    for (std::size_t had = 0; had < best.size(); ++had) {
      for (std::size_t more = 1; more <= 10 && had + more < best.size(); ++more) {
        next[had + more] = std::min(next[had + more], best[had] + c.cost[more - 1]);
      }
    }
    best = next;
  }
  return best.back();
}

double sum(std::vector<double> const& x) { return std::accumulate(x.begin(), x.end(), 0.0); }

}  // namespace

TEST_CASE("convex curves are allotted at the least cost that any allotment has") {
  dice d(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<cost_curve> heads(d.between(1, 9));
    for (auto& c : heads) c = convex(d);
    auto const n = static_cast<int>(heads.size());
    int const tenths = n + static_cast<int>(d.below(static_cast<std::uint32_t>(9 * n + 1)));
    double const ratio = tenths / 10.0 / n;
    auto const share = allot(heads, std::clamp(ratio, 0.1, 1.0), 0.1);
    CHECK(sum(share) == doctest::Approx(tenths / 10.0).epsilon(1e-9));
    double cost = 0;
    for (std::size_t h = 0; h < heads.size(); ++h) {
      CHECK(share[h] >= 0.1 - 1e-12);
      CHECK(share[h] <= 1.0 + 1e-9);
      cost += cost_at(heads[h], share[h]);
    }
    CHECK(cost == doctest::Approx(min_cost(heads, tenths)).epsilon(1e-6));
  }
}

TEST_CASE("of any curves, noisy ones too, an allotment keeps its total and its floor") {
  dice d(6);
  for (int round = 0; round < 300; ++round) {
    std::vector<cost_curve> heads(d.between(1, 20));
    for (auto& c : heads) {
      double at = 0;
      std::uint32_t const points = d.between(1, 6);
      for (std::uint32_t i = 0; i < points; ++i) {
        at += (1 - at) * (0.05 + 0.6 * d.uniform());
        c.share.push_back(at);
        c.cost.push_back(d.chance(0.2) ? 0.0 : d.normal());  // may rise, may be below 0
      }
      c.share.push_back(1.0);
      c.cost.push_back(d.chance(0.5) ? 0.0 : 0.1);
    }
    double const floor = 0.01 + 0.2 * d.uniform();
    double const ratio = floor + (1 - floor) * d.uniform();
    auto const share = allot(heads, ratio, floor);
    CHECK(sum(share) == doctest::Approx(ratio * static_cast<double>(heads.size())).epsilon(1e-9));
    for (double x : share) {
      CHECK(x >= floor - 1e-12);
      CHECK(x <= 1.0 + 1e-9);
    }
  }
}

TEST_CASE("a head that carries everything stays whole, and heads that cost nothing share what is left") {
  std::vector<cost_curve> heads(16, cost_curve{{0.05, 0.5, 1.0}, {0.0, 0.0, 0.0}});
  heads[10].cost = {1.6, 0.5, 0.0};
  auto const share = allot(heads, 0.2, 0.05);
  CHECK(share[10] == doctest::Approx(1.0));
  for (std::size_t h = 0; h < 16; ++h) {
    if (h != 10) CHECK(share[h] == doctest::Approx(2.2 / 15));
  }
  heads[3].cost = {0.1, 0.0, 0.0};
  auto const two = allot(heads, 0.2, 0.05);
  CHECK(two[3] == doctest::Approx(0.5));
  CHECK(two[10] == doctest::Approx(1.0));
  CHECK(two[0] == doctest::Approx(1.7 / 14));
}

TEST_CASE("entries are whole numbers whose sum is that of the shares") {
  dice d(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<double> share(d.between(1, 40));
    for (double& x : share) x = 0.01 + 0.99 * d.uniform();
    std::uint32_t const tokens = d.between(100, 5000);
    auto const entries = kvmeld::calibrate::entries_of(share, tokens);
    std::uint64_t total = 0;
    for (std::size_t h = 0; h < share.size(); ++h) {
      CHECK(std::abs(share[h] * tokens - entries[h]) < 1.0);
      total += entries[h];
    }
    CHECK(total == static_cast<std::uint64_t>(sum(share) * tokens + 1e-6));
  }
  CHECK(kvmeld::calibrate::entries_of({0.0001, 1.0}, 100) == std::vector<std::uint32_t>{1, 100});
}

TEST_CASE("a table has the entries where the cache's tracks are") {
  kvmeld::shape const s{2, 3, 2, 1, 8, 8, 32};
  auto const table = kvmeld::calibrate::budget_table(s, 1, {5, 6, 7, 8});
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    for (std::uint32_t sequence = 0; sequence < 3; ++sequence) {
      for (std::uint32_t head = 0; head < 2; ++head) {
        kvmeld::track const t = kvmeld::make_track(s, layer, sequence, head);
        CHECK(table[t.index] == (sequence == 1 ? 5 + 2 * layer + head : 0));
        if (sequence == 1) {
          CHECK(kvmeld::budget::per_track(table.data()).resolve(t, 100) == 5 + 2 * layer + head);
        }
      }
    }
  }
}

TEST_CASE("every head is measured alone at every share below 1") {
  std::vector<std::vector<double>> asked;
  std::vector<std::size_t> told;
  auto const curves = kvmeld::calibrate::measure_heads(
      3, {0.1, 0.5, 1.0},
      [&](std::vector<double> const& shares) {
        asked.push_back(shares);
        return sum(shares);
      },
      [&](std::size_t done, std::size_t all) {
        CHECK(all == 6);
        told.push_back(done);
      });
  CHECK(asked == std::vector<std::vector<double>>{
                     {0.1, 1, 1}, {0.5, 1, 1}, {1, 0.1, 1}, {1, 0.5, 1}, {1, 1, 0.1}, {1, 1, 0.5}});
  CHECK(told == std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6});
  for (cost_curve const& c : curves) {
    CHECK(c.share == std::vector<double>{0.1, 0.5, 1.0});
    CHECK(c.cost[0] == doctest::Approx(2.1));
    CHECK(c.cost[1] == doctest::Approx(2.5));
    CHECK(c.cost[2] == 0.0);
  }
}

TEST_CASE("what cannot be allotted is refused by name") {
  std::vector<cost_curve> const good{{{0.5, 1.0}, {1.0, 0.0}}};
  CHECK(refusal_of([&] { allot({}, 0.5); }) ==
        "allot: curves: number of cost curves is 0; it must be at least 1, one per head");
  CHECK(refusal_of([&] {
          allot({{{1.0}, {0.0}}}, 0.5);
        }) == "allot: curves: number of shares of head 0 is 1; it must be at least 2");
  CHECK(refusal_of([&] {
          allot({good[0], {{0.5, 0.5, 1.0}, {1, 1, 0}}}, 0.5);
        }) == "allot: curves: share 1 of head 1 is 0.5; it must be above 0.5 and at most 1");
  CHECK(refusal_of([&] {
          allot({{{0.5, 1.0}, {std::nan(""), 0.0}}}, 0.5);
        }) == "allot: curves: cost 0 of head 0 is nan; it must be a finite number");
  CHECK(refusal_of([&] {
          allot({{{0.5, 0.9}, {1.0, 0.0}}}, 0.5);
        }) == "allot: curves: last share of head 0 is 0.9; it must be 1");
  CHECK(refusal_of([&] { allot(good, 0.5, 0.0); }) == "allot: floor is 0; it must be above 0 and at most 1");
  CHECK(refusal_of([&] { allot(good, 0.04); }) == "allot: ratio is 0.04; it must be 0.05, the floor, to 1");
  CHECK(refusal_of([&] { allot(good, 1.5); }) == "allot: ratio is 1.5; it must be 0.05, the floor, to 1");
}

TEST_CASE("a calibration is refused by a cache of another shape, and where it contradicts itself") {
  using namespace kvmeld::calibrate;
  kvmeld::shape const s{1, 5, 2, 4, 8, 8, 100};
  calibration c;
  c.model = "toy";
  c.of = model_shape::of(s);
  CHECK(calibration_problem(c, s).empty());
  c.unmatched = {0.5, 0.5};
  c.thresholds = {{0.5, {{0.7, 0.8}}}};
  c.methods = {{"chelsea", {{{0.5, 1.0}, {1.0, 0.0}}, {{0.5, 1.0}, {1.0, 0.0}}}}};
  CHECK(calibration_problem(c, s).empty());
  CHECK(c.find("chelsea") == &c.methods[0]);
  CHECK(c.find("h2o") == nullptr);

  kvmeld::shape other = s;
  other.key_dim = 16;
  CHECK(calibration_problem(c, other) ==
        "calibration: shape of toy is 1 layers of 2 KV heads, 4 query heads each, 8 and 8 channels; it must "
        "be 1 layers of 2 KV heads, 4 query heads each, 16 and 8 channels, as the cache has");
  calibration bad = c;
  bad.unmatched.push_back(1);
  CHECK(calibration_problem(bad, s) ==
        "calibration: number of shares of unmatched entries is 3; it must be 2, one per head");
  bad = c;
  bad.thresholds[0].theta.push_back({});
  CHECK(calibration_problem(bad, s) ==
        "calibration: number of layers of the thresholds for the ratio 0.5 is 2; it must be 1");
  bad = c;
  bad.methods[0].curves.pop_back();
  CHECK(calibration_problem(bad, s) ==
        "calibration: number of cost curves for chelsea is 1; it must be 2, one per head");
  bad = c;
  bad.methods[0].curves[1].share[1] = 0.9;
  CHECK(calibration_problem(bad, s) ==
        "calibration: chelsea: curves: last share of head 1 is 0.9; it must be 1");
}
