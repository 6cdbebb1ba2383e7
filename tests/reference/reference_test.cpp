// The reference loops against calculations done by hand.
#include <doctest/doctest.h>

#include "cam.hpp"
#include "chelsea.hpp"
#include "kvmerger.hpp"
#include "plan_apply.hpp"
#include "samples.hpp"

using namespace reference;
using doctest::Approx;

namespace {
// No sinks, no recents; Llama-2's schedule.
chelsea_options all_middle(std::size_t budget, std::size_t chunk) {
  chelsea_options options;
  options.sinks = options.recents = 0;
  options.budget = budget;
  options.chunk = chunk;
  return options;
}
}  // namespace

TEST_CASE("attention: degree bias, softcap, causal alignment, grouped heads") {
  // A query of zeros gives every logit 0; degrees 1 and 3 then weigh 1/4 and 3/4, lse = ln 4.
  attention_result const biased = attend({{0, 0}}, {{1, 0}, {0, 1}}, {{8}, {4}}, {1, 3});
  CHECK(biased.probability[0][0] == Approx(0.25));
  CHECK(biased.output[0][0] == Approx(0.25 * 8 + 0.75 * 4));
  CHECK(biased.lse[0] == Approx(std::log(4.0)));

  // s = 0.5 * 4 = 2, capped 2 tanh(1) = 1.5232, then + ln 2 for the degree.
  attention_options capped;
  capped.scale = 0.5;
  capped.softcap = 2;
  CHECK(attend({{4}}, {{1}}, {{1}}, {2}, capped).lse[0] == Approx(1.5231883 + 0.6931472));

  // Two queries over three entries: the first sees 3 - 2 + 0 + 1 = 2 entries, the second all 3.
  attention_options causal;
  causal.causal = true;
  attention_result const seen = attend({{0}, {0}}, {{1}, {1}, {1}}, {{3}, {6}, {9}}, {1, 1, 1}, causal);
  CHECK(seen.output[0][0] == Approx(4.5));
  CHECK(seen.probability[0][2] == 0);
  CHECK(seen.output[1][0] == Approx(6));
  // Three queries over one entry: only the last sees it; an empty slot is seen by none.
  CHECK(attend({{0}, {0}, {0}}, {{1}}, {{7}}, {1}, causal).lse[1] == empty_lse);
  CHECK(attend({{0}}, {{1}, {1}}, {{7}, {9}}, {1, 0}).output[0][0] == Approx(7));

  // A sink of ln 2 beside two logits of 0 takes half; alone it is the log-sum-exp.
  attention_options sunk;
  sunk.has_sink = true;
  sunk.sink = std::log(2.0);
  CHECK(attend({{0}}, {{1}, {1}}, {{4}, {8}}, {1, 1}, sunk).output[0][0] == Approx(3));
  CHECK(attend({{0}}, {{1}, {1}}, {{4}, {8}}, {1, 1}, sunk).lse[0] == Approx(std::log(4.0)));
  CHECK(attend({{0}}, {{1}}, {{4}}, {0}, sunk).lse[0] == Approx(std::log(2.0)));
  // A window of 2 at position 6 holds 5 and 6; the first position is exempt.
  attention_options window;
  window.position = {0, 4, 5, 6};
  window.last_position = 6;
  window.window = 2;
  window.always = 1;
  CHECK(attend({{0}}, matrix(4, {1}), {{1}, {10}, {100}, {1000}}, {1, 1, 1, 1}, window).output[0][0] ==
        Approx(1101.0 / 3));
  // Quarter turns: pairs of neighbours, or of the two halves.
  attention_options turn;
  turn.rope = rotation::interleaved;
  turn.rotary = 4;
  turn.frequencies = {std::acos(0.0), 0.0};
  CHECK(rotated({1, 2, 3, 4}, 1, turn)[0] == Approx(-2));
  CHECK(rotated({1, 2, 3, 4}, 1, turn)[1] == Approx(1));
  CHECK(rotated({1, 2, 3, 4}, 5, turn)[3] == Approx(4));
  turn.rope = rotation::half_split;
  CHECK(rotated({1, 2, 3, 4}, 1, turn)[0] == Approx(-3));
  CHECK(rotated({1, 2, 3, 4}, 1, turn)[2] == Approx(1));

  // Four query heads, two tracks: heads 0, 1 read track 0; heads 2, 3 read track 1.
  auto const heads =
      attend_heads(std::vector<matrix>(4, {{0.0}}), {fresh_track({{1}}, {{10}}), fresh_track({{1}}, {{20}})});
  CHECK(heads[2].output[0][0] - heads[1].output[0][0] == Approx(20 - 10));

  // Two equal entries are one of degree 2, exactly (Chelsea: exact where members coincide).
  row const query{0.3, -1.2};
  attention_result const apart = attend({query}, {{1, 2}, {1, 2}, {0, 1}}, {{5}, {5}, {1}}, {1, 1, 1});
  attention_result const together = attend({query}, {{1, 2}, {0, 1}}, {{5}, {1}}, {2, 1});
  CHECK(apart.output[0][0] == Approx(together.output[0][0]));
  CHECK(apart.lse[0] == Approx(together.lse[0]));
}

TEST_CASE("scores: column sums, group mean, window, pooling") {
  // Queries of zeros, causal, 3 of 3: rows (1), (1/2, 1/2), (1/3, 1/3, 1/3); columns 11/6, 5/6, 1/3.
  attention_options causal;
  causal.causal = true;
  matrix const keys{{1}, {1}, {1}}, queries{{0}, {0}, {0}};
  std::vector<double> const degree{1, 1, 1}, lse{std::log(1.0), std::log(2.0), std::log(3.0)};
  auto const one = column_sums({queries}, keys, degree, {lse}, causal);
  CHECK(one[0] == Approx(11.0 / 6));
  CHECK(one[1] == Approx(5.0 / 6));
  CHECK(one[2] == Approx(1.0 / 3));
  CHECK(last_window_sums({queries}, keys, degree, {lse}, 2, causal)[0] == Approx(5.0 / 6));

  // A second head whose lse is larger by ln 2 counts half: the mean is 3/4 of the first.
  std::vector<double> half = lse;
  for (double& x : half) x += std::log(2.0);
  CHECK(column_sums({queries, queries}, keys, degree, {lse, half}, causal)[0] == Approx(0.75 * 11 / 6));

  // Kernel 3 over 3, 0, 6 (the 99 behind them is not pooled in).
  std::vector<double> const raw{3, 0, 6, 99};
  CHECK(pool(raw, 3, pooling::mean, 3) == std::vector<double>{1.5, 3, 3, 99});
  CHECK(pool(raw, 3, pooling::zero_padded_mean, 3) == std::vector<double>{1, 3, 2, 99});
  CHECK(pool(raw, 3, pooling::maximum, 3) == std::vector<double>{3, 6, 6, 99});
}

TEST_CASE("eviction: which entries stay") {
  CHECK(streaming_llm(10, 2, 5).kept == indices{0, 1, 7, 8, 9});
  CHECK(streaming_llm(3, 2, 5).kept == indices{0, 1, 2});

  // Budget 5: recents floor(5/2) = 2 (slots 6, 7), and 3 of the rest: 0.9, 0.7 and of the two 0.5 the lower.
  selection const heavy = h2o({0.1, 0.5, 0.9, 0.5, 0.7, 0.0, 0.0, 0.0}, 5);
  CHECK(heavy.kept == indices{1, 2, 4, 6, 7});
  CHECK(heavy.margin == no_gap);  // 0.5 against 0.5: the index decides
  CHECK(h2o({0.1, 0.5, 0.9, 0.4, 0.7, 0.0, 0.0, 0.0}, 5).margin == Approx(0.1));

  // Window 2, kernel 3, budget 4. Slots 0..4 hold 0 0 9 0 4: means 0, 3, 3, 13/3, 2, so 3 and (tie) 1.
  std::vector<double> const local{0, 0, 9, 0, 4, 50, 50};
  CHECK(snapkv(local, 2, pooling::mean, 4, 3).kept == indices{1, 3, 5, 6});
  CHECK(snapkv(local, 2, pooling::none, 4, 3).kept == indices{2, 4, 5, 6});
  CHECK(evict(track_of({0, 10, 20}), streaming_llm(3, 1, 2)).target == std::vector<int>{0, -1, 2});
}

TEST_CASE("KVMerger: a pair weighs 0.62 to 0.38 at any scale") {
  // One distance d, sigma = d: g = exp(-1/2) = 0.60653, weights 1/1.60653 = 0.62246 and 0.37754.
  for (double const scale : {0.01, 1.0, 300.0}) {
    track_state track = fresh_track({{scale, 0}, {2 * scale, 0}}, {{1}, {0}});
    track.score = {2, 1};
    outcome const merged = kvmerger(track, {});
    REQUIRE(merged.after.size() == 1);
    CHECK(merged.after.values[0][0] == Approx(0.6224593));
    CHECK(merged.after.keys[0][0] == Approx(scale * (0.6224593 + 2 * 0.3775407)));
    CHECK((merged.after.degree[0] == 2 && merged.after.score[0] == 3));
    CHECK(merged.target == std::vector<int>{0, 0});
    CHECK(merged.margin == Approx(0.25));  // cosine 1 against theta 0.75; the scores are 1 apart
  }
}

TEST_CASE("KVMerger: weights of a set of three under each sigma") {
  // Pivot 1, distances 0, 1, 2. mean_l2: 3/2; g = 1, exp(-1/4.5) = 0.800737, exp(-4/4.5) = 0.411112,
  // total 2.211849. eq7_000: 5/(3 sqrt 2) = 1.178511; 2 sigma^2 = 2.777778; g = 1, 0.697676, 0.236928.
  track_state track = fresh_track({{1, 0}, {2, 0}, {3, 0}}, {{1}, {0}, {0}});
  track.score = {5, 1, 1};
  kvmerger_options options;
  CHECK(sigma_of(track, {0, 1, 2}, 0, options) == Approx(1.5));
  auto const mean = gaussian_weights(track, {0, 1, 2}, 0, options);
  CHECK(mean[0] == Approx(1 / 2.211849));
  CHECK(mean[1] == Approx(0.800737 / 2.211849));
  CHECK(mean[2] == Approx(0.411112 / 2.211849));

  options.sigma = sigma_rule::eq7_000;
  CHECK(sigma_of(track, {0, 1, 2}, 0, options) == Approx(1.178511));
  CHECK(kvmerger(track, options).after.values[0][0] == Approx(1 / (1 + 0.697676 + 0.236928)));

  // fixed(5), the published runs: exp(-1/50), exp(-4/50).
  options.sigma = sigma_rule::fixed;
  CHECK(kvmerger(track, options).after.values[0][0] == Approx(1 / (1 + 0.980199 + 0.923116)));

  // Identical keys: sigma = 0, uniform; the pivot is the lower of equal scores, or the newest.
  track_state same = fresh_track({{1, 0}, {1, 0}, {1, 0}}, {{3}, {6}, {0}});
  CHECK(kvmerger(same, {}).after.values[0][0] == Approx(3));
  CHECK(kvmerger(same, {}).after.position[0] == 0);
  options.pivot = pivot_rule::newest;
  CHECK(kvmerger(same, options).after.position[0] == 2);
}

TEST_CASE("KVMerger: sets, anchors, gaps, protected and bad entries") {
  // 0, 30, 60 degrees, theta = cos 45. From 60: 30 joins (0.866); 0 is 60 away from the fixed
  // anchor (0.5, a new set), 30 away from the chain's.
  track_state const fan = track_of({0, 30, 60});
  kvmerger_options options;
  options.theta = std::sqrt(0.5);
  set_result const fixed = sets_for_theta(fan, options);
  CHECK(fixed.sets == merging_sets{{0}, {1, 2}});
  CHECK(fixed.margin == Approx(0.866025 - 0.707107));
  options.anchor = anchor_rule::chain;
  CHECK(sets_for_theta(fan, options).sets == merging_sets{{0, 1, 2}});

  // Equal keys; slot 4 recent, slot 2 the heavy hitter: K_m = 0, 1, 3, one set, or two with a gap.
  track_state flat = track_of({0, 0, 0, 0, 0});
  flat.score = {1, 2, 9, 3, 99};
  kvmerger_options protect;
  protect.recents = protect.heavies = 1;
  CHECK(sets_for_theta(flat, protect).sets == merging_sets{{0, 1, 3}});
  CHECK(kvmerger(flat, protect).target == std::vector<int>{3, 3, 2, 3, 4});
  CHECK(kvmerger(flat, protect).after.position == std::vector<long>{2, 3, 4});
  protect.break_at_gap = true;
  CHECK(sets_for_theta(flat, protect).sets == merging_sets{{0, 1}, {3}});
  flat.bad[2] = 1;  // slot 2 is still the heavy hitter, and so no entry of K_m
  CHECK(sets_for_theta(flat, protect).sets == merging_sets{{0, 1}, {3}});
  protect.break_at_gap = false;
  CHECK(sets_for_theta(flat, protect).sets == merging_sets{{0, 1, 3}});
  // A bad entry of K_m is alone, and ends sets on both sides.
  flat.score = {1, 2, 0, 3, 99};
  CHECK(sets_for_theta(flat, protect).sets == merging_sets{{0, 1}, {2}});
  CHECK(sets_for_theta(flat, {}).sets == merging_sets{{0, 1}, {2}, {3, 4}});
  CHECK(kvmerger(flat, {}).target == std::vector<int>{1, 1, 2, 4, 4});
  kvmerger_options apart;
  apart.theta = 1;
  CHECK(kvmerger_to_budget(flat, apart, 3).target == std::vector<int>{1, 1, 2, 4, 4});
  CHECK_FALSE(kvmerger_to_budget(flat, apart, 2).reached);

  // The threshold is strict: cosine 0 does not exceed 0; nor does that of a zero row.
  options = {};
  options.theta = 0;
  CHECK(sets_for_theta(fresh_track({{1, 0}, {0, 1}, {0, 0}}, {{0}, {0}, {0}}), options).sets.size() == 3);
}

TEST_CASE("KVMerger: removing boundaries down to a budget") {
  // 0 | 50 | 60 | 80: neighbouring anchors are 50, 10 and 20 degrees apart.
  track_state const track = track_of({0, 50, 60, 80});
  kvmerger_options options;
  options.theta = 0.99;
  set_result const apart = sets_for_theta(track, options);
  CHECK(apart.sets.size() == 4);
  CHECK(merge_adjacent(track.keys, apart.sets, 1).sets == merging_sets{{0}, {1, 2}, {3}});
  CHECK(merge_adjacent(track.keys, apart.sets, 2).sets == merging_sets{{0}, {1, 2, 3}});
  CHECK_FALSE(merge_adjacent(track.keys, apart.sets, 4).reached);
  CHECK(kvmerger_to_budget(track, options, 2).target == std::vector<int>{0, 1, 1, 1});
  // Equal similarity: the older boundary goes.
  CHECK(merge_adjacent({{1}, {1}, {1}}, {{0}, {1}, {2}}, 1).sets == merging_sets{{0, 1}, {2}});
  CHECK(merge_adjacent({{1}, {1}, {1}}, {{0}, {1}, {2}}, 1).margin == no_gap);
  CHECK(merge_adjacent({{1}, {2}, {1}}, {{0}, {1}, {2}}, 1).margin == 0);  // rounding may decide
  // A set's newest entry is its anchor: {0, 40} is 50 degrees from 90, which is 60 from 150.
  track_state const wide = track_of({0, 40, 90, 150});
  CHECK(merge_adjacent(wide.keys, {{0, 1}, {2}, {3}}, 1).sets == merging_sets{{0, 1, 2}, {3}});
}

TEST_CASE("Chelsea: one round and one more, by hand") {
  // One chunk, A = slots 0, 2, 4, B = 1, 3. Angles 0 10 12 50 49: edges 0->1 (10 degrees), 2->1 (2),
  // 4->3 (1). r = 0.45: floor(0.45 * 5) = 2 edges, 4->3 and 2->1. Then 3 entries: 0, {1,2}, {3,4}.
  track_state const track = track_of({0, 10, 12, 50, 49});
  chelsea_options options = all_middle(2, 256);
  options.max_rounds = 1;
  chelsea_outcome const one = chelsea(track, options);
  CHECK(one.target == std::vector<int>{0, 1, 1, 3, 3});
  CHECK(one.after.position == std::vector<long>{0, 1, 3});
  CHECK(one.after.degree == std::vector<double>{1, 2, 2});
  CHECK(one.after.keys[1][0] == Approx((at_angle(10)[0] + at_angle(12)[0]) / 2));
  CHECK(one.after.values[2][0] == Approx(3.5));
  CHECK_FALSE(one.reached);
  // The cut lay between 2 degrees and 10; slot 4 was 1 degree from 3 and 39 from 1.
  CHECK(one.margin == Approx(std::cos(2 * std::acos(-1.0) / 180) - std::cos(10 * std::acos(-1.0) / 180)));

  // Round 2: A = 0 and {3,4}, B = {1,2} at 11 degrees: 0 is nearer. Degrees 1 and 2: weights 1/3, 2/3;
  // with `average` the newcomer weighs 1/2 and the others 1/4 each.
  options.max_rounds = 9;
  chelsea_outcome const two = chelsea(track, options);
  CHECK(two.reached);
  CHECK(two.removed == indices{2, 1});
  CHECK(two.target == std::vector<int>{1, 1, 1, 3, 3});
  CHECK(two.after.values[0][0] == Approx((0 + 1 + 2) / 3.0));
  CHECK(two.after.keys[0][1] == Approx((at_angle(0)[1] + at_angle(10)[1] + at_angle(12)[1]) / 3));
  options.weighting = star_weighting::average;
  CHECK(chelsea(track, options).after.values[0][0] == Approx(0.5 * 0 + 0.25 * 1 + 0.25 * 2));
}

TEST_CASE("Chelsea: counts and the schedule") {
  CHECK(floor_count(0.45, 20) == 9);  // 0.45 * 20 is 9.000000000000000 or a little less
  CHECK(edges_wanted(0.45, 20) == 9);
  CHECK(edges_wanted(0.0, 20) == 1);  // always at least one edge

  // 1000 -> 200. Llama-2: 1000 550 330 215 200. Llama-3: 1000 650 488 415 353 301 256 218 200.
  track_state const track = scattered(1000, 4);
  chelsea_options options = all_middle(200, 256);
  CHECK(chelsea(track, options).removed == indices{450, 220, 115, 15});
  options.r_init = 0.35;
  options.alpha = 0.1;
  options.m = 2;
  chelsea_outcome const llama3 = chelsea(track, options);
  CHECK(llama3.removed == indices{350, 162, 73, 62, 52, 45, 38, 18});
  CHECK(llama3.next_step == 8);
  double values = 0;  // sum of degree times value: that of the tokens, 0 + 1 + ... + 999
  for (std::size_t i = 0; i < 200; ++i) values += llama3.after.degree[i] * llama3.after.values[i][0];
  CHECK(values == Approx(999 * 1000 / 2));

  // Qwen: 0.2, 0.1, then the floor 0.05: 0.8 * 0.9 * 0.95^k <= 0.2 from k = 25, 27 rounds for a long
  // prompt. At 1000 entries the floors of the counts cost one round more.
  options.r_init = 0.2;
  options.floor = 0.05;
  CHECK(ratio_at(options, 1) == Approx(0.1));
  CHECK(ratio_at(options, 7) == 0.05);
  std::size_t length = 100000, rounds = 0;
  for (; length > 20000; ++rounds) length -= edges_wanted(ratio_at(options, rounds), length);
  CHECK(rounds == 27);
  CHECK(chelsea(track, options).removed.size() == 28);
}

TEST_CASE("Chelsea: chunks, ties, sinks, bad entries, no way to the budget") {
  // Chunks of 2: slot 2 may not take slot 1, 2 degrees away; it takes 3. Edges 10, 38, tail 4 alone.
  track_state const track = track_of({0, 10, 12, 50, 49});
  CHECK(chelsea(track, all_middle(4, 2)).target == std::vector<int>{1, 1, 2, 3, 4});
  CHECK(chelsea(track, all_middle(3, 2)).target == std::vector<int>{1, 1, 3, 3, 4});

  // Equal keys: the lower A takes the lower B; the index decides, so that the margin stays huge.
  chelsea_outcome const tie = chelsea(track_of({0, 0, 0, 0}), all_middle(3, 256));
  CHECK(tie.target == std::vector<int>{1, 1, 2, 3});
  CHECK(tie.margin == no_gap);

  // Slot 0 a sink, slot 5 recent; slot 2 bad: the middle is 1 to 4, A = 1, 3, B = 2, 4, of which 2 is bad:
  // edges 1->4 and 3->4, one of them admitted. Round 2: the middle is 2, 3, 4, A = 2, 4, of which 2 is bad, B
  // = 3.
  track_state guarded = track_of({0, 0, 0, 0, 0, 0});
  guarded.bad[2] = 1;
  chelsea_options options = all_middle(4, 256);
  options.sinks = options.recents = 1;
  CHECK(chelsea(guarded, options).target == std::vector<int>{0, 3, 2, 3, 3, 5});
  CHECK(chelsea(guarded, options).removed == indices{1, 1});
  // x NaN y x y x: the first x finds the x in slot 3, not the y beside the NaN.
  track_state pairs = track_of({0, 0, 90, 0, 90, 0});
  pairs.bad[1] = 1;
  CHECK(chelsea(pairs, all_middle(5, 256)).target == std::vector<int>{3, 1, 2, 3, 4, 5});
  // x NaN x x x x, half admitted: three of six places, though only five are numbers.
  track_state half = track_of({0, 0, 0, 0, 0, 0});
  half.bad[1] = 1;
  chelsea_options share = all_middle(1, 256);
  share.r_init = 0.5;
  share.max_rounds = 1;
  CHECK(chelsea(half, share).target == std::vector<int>{3, 1, 3, 3, 3, 5});
  // 3 is out of reach (sink, bad, one centroid, recent), 2 is refused: sinks + recents fill it.
  options.budget = 3;
  CHECK_FALSE(chelsea(guarded, options).reached);
  CHECK(chelsea(guarded, options).after.size() == 4);
  options.budget = 2;
  CHECK(chelsea(guarded, options).after.size() == 6);

  // Rounding to quarters: (cos 10 + cos 0)/2 = 0.9924 -> 1, (sin 10 + 0)/2 = 0.0868 -> 0.
  auto const quarters = [](double x) { return std::round(4 * x) / 4; };
  CHECK(chelsea(track, all_middle(4, 2), quarters).after.keys[0] == row{1, 0});
  // 0.375 + 1e-8 rounds up, and in float may not; 0.375 itself is exact in float.
  std::size_t near_rounding = 0;
  blend({{0.375}}, {0}, {1}, quarters, near_rounding);
  CHECK(near_rounding == 0);
  blend({{0.37500001}}, {0}, {1}, quarters, near_rounding);
  CHECK(near_rounding == 1);
}

TEST_CASE("CaM: in the lossless case the paper returns O/(1-A), the centroid O") {
  // All logits 0, values 8 1 2 3: O = 14/4 = 3.5, A = 1/4. Evict 0 into 2 and 3: values 1, 6, 7,
  // mean 14/3 = 3.5/(1 - 1/4). Corrected: values 6/1.5, 7/1.5 of degree 1.5: (1 + 6 + 7)/4 = 3.5.
  track_state const track = fresh_track({{1}, {1}, {1}, {1}}, {{8}, {1}, {2}, {3}});
  outcome const paper = cam_merge(track, {0}, {1}, {2, 3}, cam_variant::paper);
  CHECK(paper.after.values == matrix{{1}, {6}, {7}});
  CHECK(attend({{0}}, paper.after).output[0][0] == Approx(3.5 / (1 - 0.25)));
  outcome const corrected = cam_merge(track, {0}, {1}, {2, 3}, cam_variant::mass_corrected);
  CHECK(corrected.after.degree == std::vector<double>{1, 1.5, 1.5});
  CHECK(corrected.after.values[1][0] == Approx(4));
  CHECK(attend({{0}}, corrected.after).output[0][0] == Approx(3.5));
  CHECK(attend({{0}}, corrected.after).lse[0] == Approx(std::log(4.0)));

  // Uneven attention 0.2 (evicted), 0.4, 0.1, 0.3, entry 2 of degree 2: the targets' mean is 0.2.
  track_state uneven = track;
  std::vector<double> const attention{0.2, 0.4, 0.1, 0.3};
  uneven.degree = {1, 1, 2, 1};
  for (std::size_t i = 0; i < 4; ++i) uneven.keys[i] = {std::log(attention[i] / uneven.degree[i])};
  double const o = 0.2 * 8 + 0.4 * 1 + 0.1 * 2 + 0.3 * 3;
  CHECK(attend({{1}}, uneven).output[0][0] == Approx(o));
  auto const evicted = [&](cam_variant how) { return cam_merge(uneven, {0}, {1}, {2, 3}, how).after; };
  CHECK(attend({{1}}, evicted(cam_variant::paper)).output[0][0] == Approx(o / 0.8));
  CHECK(attend({{1}}, evicted(cam_variant::mass_corrected)).output[0][0] == Approx(o));
  // The true centroid needs mean(A/degree) = (0.05 + 0.35)/2 = 0.2 = A_0/1 instead, and keeps 5 tokens.
  uneven.keys[2] = {std::log(0.05)};
  uneven.keys[3] = {std::log(0.35)};
  outcome const conserved =
      cam_merge(uneven, {0}, {1}, {2, 3}, cam_variant::mass_corrected, mass_rule::conserved);
  CHECK(conserved.after.degree == std::vector<double>{1, 2.5, 1.5});
  CHECK(attend({{1}}, conserved.after).output[0][0] == Approx(attend({{1}}, uneven).output[0][0]));
}

TEST_CASE("CaM: rates, masks, several evictions") {
  CHECK(merge_rate({1, 0, 3, 5}, 0, {2, 3}) == Approx(0.25));  // 1 / mean(3, 5)
  CHECK(merge_rate({9, 0, 3, 5}, 0, {2, 3}) == 1);
  CHECK((clamped_ratio(0, 0) == 0 && clamped_ratio(1, 0) == 1));
  CHECK(merge_rate_reference_max({1, 0, 3, 5}, 0, {2, 3}) == Approx(0.2));
  CHECK(threshold_mask(0.5) == 0);

  // Two evictions, masks 1 and 0.5, onto one target: 3 + 8 + 0.5 = 11.5; corrected / 2.5.
  track_state const track = fresh_track({{1}, {1}, {1}}, {{8}, {1}, {3}});
  CHECK(cam_merge(track, {0, 1}, {1, 0.5}, {2}, cam_variant::paper).after.values == matrix{{11.5}});
  outcome const both = cam_merge(track, {0, 1}, {1, 0.5}, {2}, cam_variant::mass_corrected);
  CHECK(both.after.values[0][0] == Approx(4.6));
  CHECK(both.after.degree[0] == Approx(2.5));
  CHECK(both.target == std::vector<int>{-1, -1, 2});
  CHECK(cam_merge(track, {0}, {0}, {2}, cam_variant::mass_corrected).after.values ==
        matrix{{1}, {3}});  // evicts
}

TEST_CASE("plans: merge, share, spread, drop") {
  track_state const track =
      fresh_track({{3, 4}, {0, 2}, {1, 0}, {6, 8}, {1, 1}}, {{10}, {20}, {30}, {40}, {50}});
  linear_plan plan = keep_all(5);
  plan.fates = {fate::merge, fate::keep, fate::spread, fate::drop, fate::keep};
  plan.target[0] = 1;
  plan.key_weight[0] = plan.value_weight[0] = 0.25;
  plan.key_weight[1] = plan.value_weight[1] = 0.75;
  plan.target[2] = 4;
  plan.span[2] = 1;
  plan.value_weight[4] = 1 / 1.5;  // V_4 = (50 + 0.5 * 30) / 1.5, degree 1 + 0.5
  plan.value_weight[2] = plan.degree_weight[2] = 0.5;
  applied_plan const applied = plan_apply(track, plan);
  CHECK(applied.new_slot == std::vector<int>{-1, 0, -1, -1, 1});
  CHECK(applied.after.keys == matrix{{0.75, 2.5}, {1, 1}});
  CHECK(applied.after.values[0][0] == Approx(17.5));
  CHECK(applied.after.values[1][0] == Approx(65 / 1.5));
  CHECK(applied.after.degree == std::vector<double>{2, 1.5});
  CHECK(applied.members.empty());

  // Entry 3 shares 0's direction: a member of norm 10; slot 1 merges into 0 and is no member.
  plan = keep_all(5);
  plan.fates[3] = fate::share;
  plan.fates[1] = fate::merge;
  plan.target[3] = plan.target[1] = 0;
  plan.key_weight = {0.1, 0, 1, 0.05, 1};  // the unit key twice, each with 1/2
  applied_plan const shared = plan_apply(track, plan);
  REQUIRE(shared.members.size() == 1);
  CHECK(shared.members[0].norm == 10);
  CHECK((shared.members[0].position == 3 && shared.members[0].owner == 0));
  CHECK(shared.after.keys[0][0] == Approx(0.6));
  CHECK(shared.after.degree[0] == 3);
}
