// The D2O reference against calculations done by hand, and against what must hold for any input.
#include <doctest/doctest.h>

#include "attention.hpp"
#include "d2o.hpp"
#include "eviction.hpp"
#include "samples.hpp"

using namespace reference;
using doctest::Approx;

namespace {
double const e = std::exp(1.0);

double cos_of(double degrees) { return std::cos(degrees * std::acos(-1.0) / 180); }

// Slots 0 (0 degrees) and 1 (90) are heavy, 4 and 5 recent; 2 and 3 are evicted, `a` from 0 and `b` from 1.
track_state two_evicted(double a, double b) {
  track_state track = track_of({0, 90, a, 90 - b, 200, 210});
  track.score = {9, 8, 2, 1, 0, 0};
  return track;
}

d2o_options down_to(std::size_t budget) {
  d2o_options options;
  options.budget = budget;
  return options;
}
}  // namespace

TEST_CASE("D2O: the first compression by hand") {
  // Best similarities cos 10 and cos 30, tau_0 their mean 0.9254: slot 2 merges, slot 3 is dropped.
  track_state const track = two_evicted(10, 30);
  d2o_outcome const result = d2o(track, down_to(4));
  CHECK(result.memory.tau == Approx((cos_of(10) + cos_of(30)) / 2));
  CHECK(result.target == std::vector<int>{0, 1, 0, -1, 4, 5});
  double const g = std::exp(cos_of(10)), w = g / (e + g);
  CHECK(result.after.keys[0][0] == Approx(e / (e + g) + w * cos_of(10)));
  CHECK(result.after.keys[0][1] == Approx(w * at_angle(10)[1]));
  CHECK(result.after.values[0][0] == Approx(2 * w));
  CHECK((result.after.degree[0] == 2 && result.after.degree[1] == 1));
  CHECK((result.after.score[0] == 11 && result.after.position[0] == 0));
  CHECK(result.after.keys[1] == track.keys[1]);
  CHECK(result.score_margin == 6);  // 8 against 2
  CHECK(result.similarity_margin == Approx((cos_of(10) - cos_of(30)) / 2));

  d2o_options printed = down_to(4);
  printed.add_degrees = printed.add_scores = false;
  d2o_outcome const plain = d2o(track, printed);
  CHECK((plain.after.degree[0] == 1 && plain.after.score[0] == 9));
  CHECK(plain.after.keys == result.after.keys);
}

TEST_CASE("D2O: two newcomers share one sum") {
  // Both are nearest to slot 0, at cos 20, which is more than tau.
  track_state track = track_of({0, 180, 20, -20, 200, 210});
  track.score = {9, 8, 2, 1, 0, 0};
  d2o_memory low;
  low.started = true;  // tau = 0.7 cos 20 + 0.3 * 0
  d2o_outcome const result = d2o(track, down_to(4), low);
  CHECK(result.memory.tau == Approx(0.7 * cos_of(20)));
  CHECK(result.target == std::vector<int>{0, 1, 0, 0, 4, 5});
  double const g = std::exp(cos_of(20)), total = e + 2 * g;
  CHECK(result.after.values[0][0] == Approx((0 * e + 2 * g + 3 * g) / total));
  CHECK(result.after.keys[0][0] == Approx((e + 2 * g * cos_of(20)) / total));
  CHECK(result.after.keys[0][1] == Approx(0));
  CHECK(result.after.degree[0] == 3);
}

TEST_CASE("D2O: the threshold follows") {
  track_state const track = two_evicted(10, 30);
  d2o_memory memory;
  memory.started = true;
  memory.tau = 0.5;
  // 0.7 * 0.985 + 0.15 = 0.839: now cos 30 = 0.866 is enough as well.
  d2o_outcome const maximum = d2o(track, down_to(4), memory);
  CHECK(maximum.memory.tau == Approx(0.7 * cos_of(10) + 0.3 * 0.5));
  CHECK(maximum.target == std::vector<int>{0, 1, 0, 1, 4, 5});
  d2o_options options = down_to(4);
  options.latest = d2o_latest::mean;
  CHECK(d2o(track, options, memory).memory.tau == Approx(0.35 * (cos_of(10) + cos_of(30)) + 0.15));
  options.beta = 0;
  CHECK(d2o(track, options, memory).memory.tau == 0.5);
  // At the budget nothing happens, to the threshold neither.
  CHECK(d2o(track, down_to(6), memory).memory.tau == 0.5);
  CHECK(d2o(track, down_to(6), memory).after.size() == 6);

  // A single first token is its own threshold, whatever it is like.
  track_state one = track_of({0, 120, 200, 210});
  one.score = {9, 8, 0, 0};
  d2o_options three = down_to(3);
  three.recent_share = 0.67;
  d2o_outcome const first = d2o(one, three);
  CHECK(first.target == std::vector<int>{0, 0, 2, 3});
  CHECK(first.memory.tau == Approx(-0.5));
  CHECK(first.similarity_margin == no_gap);
}

TEST_CASE("D2O: targets, ties, bad and zero rows") {
  // Slot 2 lies 8 degrees from slot 4, which is recent, and 28 from slot 0.
  track_state track = track_of({0, 90, 28, 80, 36, 300});
  track.score = {9, 8, 2, 1, 0, 0};
  CHECK(d2o(track, down_to(4)).target == std::vector<int>{0, 1, -1, 1, 4, 5});
  d2o_options all = down_to(4);
  all.targets = d2o_targets::conserved;
  CHECK(d2o(track, all).target == std::vector<int>{0, 1, 4, -1, 4, 5});

  // Equal targets: the lower slot, and no close decision about it.
  track_state flat = track_of({5, 5, 5, 5, 5, 5});
  flat.score = {9, 8, 2, 1, 0, 0};
  d2o_memory memory;
  memory.started = true;
  d2o_outcome const tie = d2o(flat, down_to(4), memory);
  CHECK(tie.target == std::vector<int>{0, 1, 0, 0, 4, 5});
  CHECK(tie.similarity_margin == Approx(0.3));

  // A bad row stays, and is no target; a zero row has similarity 0 with all.
  flat.bad[0] = 1;
  CHECK(d2o(flat, down_to(4), memory).target == std::vector<int>{0, 1, 1, 1, 4, 5});
  track_state zero = track_of({5, 5, 5, 5, 5, 5});
  zero.score = {9, 8, 2, 1, 0, 0};
  zero.keys[2] = {0, 0};
  CHECK(d2o(zero, down_to(4)).target == std::vector<int>{0, 1, -1, 0, 4, 5});
  // No target at all: the budget goes to the recent ones, tau is not started.
  d2o_options recents = down_to(2);
  recents.recent_share = 1;
  CHECK(d2o(flat, recents).target == std::vector<int>{0, -1, -1, -1, 4, 5});
  CHECK_FALSE(d2o(flat, recents).reached);
  CHECK_FALSE(d2o(flat, recents).memory.started);
}

TEST_CASE("D2O: a threshold above all is H2O, equal rows merge losslessly") {
  track_state track = scattered(40, 6);
  for (std::size_t i = 0; i < 40; ++i) track.score[i] = static_cast<double>((i * 17) % 41);
  d2o_memory high;
  high.started = true;
  high.tau = 1.01;
  d2o_options options = down_to(11);
  options.beta = 0;
  d2o_outcome const evicted = d2o(track, options, high);
  outcome const plain = evict(track, h2o(track.score, 11));
  CHECK(evicted.target == plain.target);
  CHECK(evicted.after.keys == plain.after.keys);
  CHECK(evicted.after.values == plain.after.values);
  // On the average some merge and some do not.
  d2o_outcome const first = d2o(track, options);
  double degrees = 0;
  for (double const d : first.after.degree) degrees += d;
  CHECK((degrees > 11 && degrees < 40));
  CHECK(first.after.position == plain.after.position);

  track_state same = fresh_track(matrix(9, {0.3, 0.4, -1}), matrix(9, {2, 5}));
  same.score = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  d2o_memory low;
  low.started = true;
  d2o_outcome const merged = d2o(same, down_to(4), low);
  CHECK(merged.after.degree == std::vector<double>{6, 1, 1, 1});  // heavy: slots 5 and 6
  matrix const queries{{1, 2, 3}, {-1, 0.5, 2}};
  attention_result const before = attend(queries, same), after = attend(queries, merged.after);
  for (std::size_t q = 0; q < 2; ++q) {
    CHECK(after.lse[q] == Approx(before.lse[q]).epsilon(1e-12));
    CHECK(after.output[q][0] == Approx(before.output[q][0]).epsilon(1e-12));
    CHECK(after.output[q][1] == Approx(before.output[q][1]).epsilon(1e-12));
  }
}
