// The EMS reference against calculations done by hand, and against what must hold for any input.
#include <set>

#include <doctest/doctest.h>

#include "ems_decode.hpp"
#include "eviction.hpp"
#include "samples.hpp"

using namespace reference;
using doctest::Approx;

namespace {
// No pooling, the window is the last slot, everything that may merge does.
ems_options plain(std::size_t budget, double gamma, double tau = 0.5) {
  ems_options options;
  options.budget = budget;
  options.window = options.kernel = 1;
  options.gamma = gamma;
  options.tau = tau;
  return options;
}

// Local scores as given, global ones equal to them (the alignment is then 1).
ems_state with_scores(ems_state state, std::vector<double> const& scores) {
  for (std::size_t i = 0; i < state.slots.size(); ++i)
    state.slots[i].score.global = state.slots[i].score.past = scores[i];
  return state;
}

// Key rows of the given lengths along one line, one value for all.
ems_state in_line(std::vector<double> const& lengths) {
  matrix keys, values;
  for (double const length : lengths) {
    keys.push_back({0.6 * length, 0.8 * length, 0, 0});
    values.push_back({3, -1});
  }
  return ems_fresh(keys, values);
}

// Rows that are alike but not the same, and attention from a few queries.
ems_state scattered_state(std::size_t n) {
  track_state const track = scattered(n, 8);
  matrix keys = track.keys, values;
  for (std::size_t i = 0; i < n; ++i) {
    for (double& x : keys[i]) x += 0.8;
    values.push_back({1 + keys[i][0] * keys[i][1], 1 + keys[i][2], 1 - 0.3 * keys[i][3]});
  }
  return ems_fresh(keys, values);
}

matrix some_queries(std::size_t count) {
  matrix queries = scattered(count + 7, 8).keys;
  queries.erase(queries.begin(), queries.begin() + 7);
  return queries;
}

void check_close(matrix const& a, matrix const& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t c = 0; c < a[i].size(); ++c) CHECK(a[i][c] == Approx(b[i][c]).epsilon(1e-12));
}

std::vector<long> positions_of(ems_state const& state) {
  std::vector<long> result;
  for (ems_slot const& slot : state.slots) result.push_back(slot.position);
  return result;
}
}  // namespace

TEST_CASE("EMS: the local window halves and rotates") {
  ems_state state = in_line({1, 1});
  ems_observe_row(state, {0.25, 0.75}, 2);  // the current window: one row
  CHECK((state.slots[0].score.past == 0 && state.slots[0].score.current == 0.25));
  ems_observe_row(state, {0.5, 0.5}, 2);  // full: it becomes the past
  CHECK((state.slots[0].score.past == 0.75 && state.slots[0].score.current == 0));
  ems_observe_row(state, {1, 0}, 2);  // 2 L - 1 = 3 rows count
  CHECK((state.slots[0].score.local() == 1.75 && state.slots[1].score.local() == 1.25));
  ems_observe_row(state, {0, 1}, 2);  // L = 2 rows again
  CHECK((state.slots[0].score.local() == 1 && state.slots[0].score.global == 1.75));

  // A block: exactly the last two of its three rows, whatever the window held before.
  ems_observe_row(state, {1, 0}, 2);
  ems_observe(state, {{1, 0}, {0.5, 0.5}, {0.25, 0.75}}, 2);
  CHECK((state.slots[0].score.past == 0.75 && state.slots[0].score.current == 0));
  CHECK((state.slots[0].score.global == 4.5 && state.rows_in_window == 0));
  ems_observe(state, {{1, 0}}, 2);  // a block of less than a window is that many rows of decoding
  CHECK((state.slots[0].score.local() == 1.75 && state.rows_in_window == 1));
}

TEST_CASE("EMS: the Global-Local score") {
  // Global 8 2 2, local 1 2 0: alignment 3/12; scores max(2, 1), max(0.5, 2), max(0.5, 0).
  ems_state state = in_line({1, 1, 1});
  state.slots[0].score = {8, 1, 0};
  state.slots[1].score = {2, 0, 2};
  state.slots[2].score = {2, 0, 0};
  CHECK(ems_alignment(state) == 0.25);
  CHECK(ems_global_local(state.slots[0].score, 0.25) == 2);
  CHECK(ems_global_local(state.slots[1].score, 0.25) == 2);
  CHECK(ems_global_local(state.slots[2].score, 0.25) == 0.5);
  CHECK(ems_alignment(in_line({1, 1})) == 0);  // nothing observed

  // Members do not count for the alignment.
  state.members.push_back({1, 9, 0, {100, 100, 0}});
  CHECK(ems_alignment(state) == 0.25);

  // Every row of attention sums to 1, so that L of N rows give L/N.
  ems_state prompt = scattered_state(20);
  attention_options causal;
  causal.causal = true;
  ems_observe(prompt, attend_shared(some_queries(20), prompt, causal).probability, 5);
  CHECK(ems_alignment(prompt) == Approx(5.0 / 20));

  // Pooled over the slots before the window (kernel 3, window 2): 3 0 6 | 99 99.
  ems_state const five = with_scores(in_line({1, 1, 1, 1, 1}), {3, 0, 6, 99, 99});
  ems_options options;
  options.window = 2;
  options.kernel = 3;
  std::vector<double> pooled;
  for (ems_ranked const& r : ems_slot_scores(five, options)) pooled.push_back(r.score);
  CHECK(pooled == std::vector<double>{1.5, 3, 3, 99, 99});
}

TEST_CASE("EMS: tiers") {
  // Budget 4, window 1: three centres; gamma 1.5 keeps two more; slot 7 is the window. 6 ties with 1.
  ems_state state = with_scores(in_line(std::vector<double>(8, 1.0)), {9, 4, 1, 8, 2, 7, 4, 0});
  double margin = no_gap;
  ems_tiers const tiers = ems_partition(state, plain(4, 1.5), margin);
  CHECK(tiers.pinned == indices{7});
  CHECK(tiers.centres == indices{0, 3, 5});
  CHECK(tiers.to_be_merged == indices{1, 6});
  CHECK(margin == 2);  // 4 against 2; at the cut below the centres 7 against 4

  // One protected slot is one centre less; sinks and bad slots are pinned.
  ems_options options = plain(4, 1.5);
  options.n_protect = 1;
  CHECK(ems_partition(state, options, margin).protect == indices{0});
  CHECK(ems_partition(state, options, margin).centres == indices{3, 5});
  options.n_protect = 0;
  options.sinks = 1;
  state.slots[2].bad = true;
  CHECK(ems_partition(state, options, margin).pinned == indices{0, 2, 7});
  CHECK(ems_partition(state, options, margin).centres == indices{3});
  options.budget = 2;
  CHECK_FALSE(ems_compress(state, options).reached);

  // Members compete with slots, unpooled: 4 (a member) comes after 4 (slot 6), before 2 (slot 4).
  state.slots[2].bad = false;
  state.members = {{1, 20, 0, {4, 4, 0}}, {1, 21, 3, {0, 0, 0}}};
  CHECK(ems_partition(state, plain(4, 1.5), margin).to_be_merged == indices{1, 6});
  CHECK(ems_partition(state, plain(4, 1.75), margin).members == indices{0});
  CHECK(ems_partition(state, plain(4, 1.75), margin).to_be_merged == indices{1, 6});
  CHECK(ems_partition(state, plain(4, 4), margin).members == indices{0, 1});
}

TEST_CASE("EMS: matching") {
  // Keys at 0, 40 and 60 degrees, values at 0, 10 and 50: slot 1 has R = cos 40 cos 10 with 0 and
  // cos 20 cos 40 with 2, which is less.
  auto const state_of = [](std::vector<double> const& keys, std::vector<double> const& values) {
    matrix k, v;
    for (double const angle : keys) k.push_back(at_angle(angle));
    for (double const angle : values) v.push_back(at_angle(angle));
    return ems_fresh(k, v);
  };
  auto const degrees = [](double a) { return std::cos(a * std::acos(-1.0) / 180); };
  ems_state const state = state_of({0, 40, 60}, {0, 10, 50});
  double margin = no_gap;
  CHECK(ems_match(state, 1, {0, 2}, plain(3, 2), margin) == 0);
  CHECK(margin == Approx(degrees(40) * degrees(10) - degrees(20) * degrees(40)));
  CHECK(ems_match(state, 1, {0, 2}, plain(3, 2, 0.76), margin) == -1);  // 0.754 is less
  CHECK(ems_match(state, 1, {2}, plain(3, 2), margin) == 2);
  CHECK(ems_match(state, 1, {}, plain(3, 2), margin) == -1);
  CHECK(ems_match(state_of({0, 0}, {0, 0}), 1, {0}, plain(3, 2, 1.0), margin) == 0);  // R >= tau

  // Two cosines of -1: no merge, unless the product is taken literally. A zero row has cosine 0.
  ems_options literal = plain(3, 2);
  literal.literal_product = true;
  CHECK(ems_match(state_of({0, 180}, {0, 180}), 1, {0}, plain(3, 2), margin) == -1);
  CHECK(ems_match(state_of({0, 180}, {0, 180}), 1, {0}, literal, margin) == 0);
  CHECK(ems_match(ems_fresh({{1}, {0}}, {{1}, {1}}), 1, {0}, plain(3, 2, 0), margin) == -1);

  // Equal rows: the lower centre, and the index decides. Nearly equal ones: a small margin.
  margin = no_gap;
  CHECK(ems_match(state_of({5, 5, 5}, {0, 0, 0}), 1, {0, 2}, plain(3, 2), margin) == 0);
  CHECK(margin == Approx(0.5));
  ems_match(state_of({5, 7, 9}, {0, 0, 0}), 1, {0, 2}, plain(3, 2), margin);
  CHECK(margin < 1e-12);
}

TEST_CASE("EMS: a merge by hand, shared and collapsed") {
  // Centre 0: key (3, 4), local 3. Slot 1: key (0, 2), local 1. Directions (.6, .8), (0, 1), weights 3/4,
  // 1/4.
  ems_state state = ems_fresh({{3, 4}, {0, 2}, {1, 0}}, {{8, 0}, {4, 4}, {0, 1}});
  state = with_scores(state, {3, 1, 0});
  ems_outcome const shared = ems_compress(state, plain(2, 2));
  CHECK(shared.slot_target == std::vector<int>{0, 0, 2});
  REQUIRE(shared.after.slots.size() == 2);
  ems_slot const& owner = shared.after.slots[0];
  CHECK(owner.key[0] == Approx(0.45));
  CHECK(owner.key[1] == Approx(0.85));
  CHECK((owner.value[0] == Approx(7) && owner.value[1] == Approx(1)));
  CHECK((owner.own_norm == 5 && owner.merge_weight == 4 && owner.degree == 2 && owner.score.past == 3));
  REQUIRE(shared.after.members.size() == 1);
  CHECK((shared.after.members[0].norm == 2 && shared.after.members[0].position == 1));
  CHECK((shared.after.members[0].owner == 0 && shared.after.members[0].score.past == 1));
  CHECK(shared.after.slots[1].key == row{1, 0});

  // Section 4.2: (||k_i|| khat, v) and (||k_j|| khat, v) are used: logits 5 * 0.85, 2 * 0.85 and 0.
  attention_result const seen = attend_shared({{0, 1}}, shared.after);
  double const sum = std::exp(4.25) + std::exp(1.7) + 1;
  CHECK(seen.lse[0] == Approx(std::log(sum)));
  CHECK(seen.probability[0][2] == Approx(std::exp(1.7) / sum));  // slots first, then members
  CHECK(seen.output[0][0] == Approx(7 * (std::exp(4.25) + std::exp(1.7)) / sum));

  // Collapsed: length 3/4 * 5 + 1/4 * 2 = 4.25.
  ems_options options = plain(2, 2);
  options.collapsed = true;
  ems_outcome const single = ems_compress(state, options);
  CHECK(single.after.slots[0].key[0] == Approx(0.45 * 4.25));
  CHECK((single.after.slots[0].own_norm == 0 && single.after.slots[0].degree == 2));
  CHECK((single.after.slots[0].score.global == 4 && single.after.slots[0].merge_weight == 4));
  CHECK(single.after.members.empty());
  CHECK(attend_shared({{0, 1}}, single.after, {}, {}, true).lse[0] ==
        Approx(std::log(2 * std::exp(0.85 * 4.25) + 1)));

  // No local scores: equal weights.
  ems_outcome const equal = ems_compress(with_scores(state, {0, 0, 0}), plain(2, 2));
  CHECK(equal.after.slots[0].key[1] == Approx(0.9));
  CHECK(equal.after.slots[0].merge_weight == 0);
}

TEST_CASE("EMS: what becomes of members") {
  // Slot 1 owns members at positions 10 and 11, slot 2 one at 12; slot 0 is the centre, 3 the window.
  ems_state state = with_scores(in_line({1, 2, 3, 4}), {9, 5, 1, 0});
  state.slots[1].key = {0.6, 0.8, 0, 0};
  state.slots[1].own_norm = 2;
  state.slots[1].degree = 3;
  state.slots[1].merge_weight = 7;
  state.slots[2].degree = 2;
  state.slots[2].own_norm = 3;
  state.members = {{6, 10, 1, {4, 4, 0}}, {7, 11, 1, {0.5, 0.5, 0}}, {8, 12, 2, {3, 3, 0}}};
  // Budget 2, gamma 2.5: of slots 1 (5), 2 (1) and the members (4, 0.5, 3) three stay: 1, 10 and 12.
  ems_outcome const result = ems_compress(state, plain(2, 2.5));
  CHECK(result.slot_target == std::vector<int>{0, 0, -1, 3});
  CHECK(result.member_owner == std::vector<int>{0, -1, -1});  // moved, outranked, gone with its owner
  CHECK(result.members_outranked == 1);
  ems_slot const& owner = result.after.slots[0];
  CHECK((owner.degree == 3 && owner.own_norm == 1 && owner.merge_weight == 16));  // 9 + the 7 carried along
  REQUIRE(result.after.members.size() == 2);
  CHECK((result.after.members[0].position == 10 && result.after.members[0].norm == 6));
  CHECK((result.after.members[1].position == 1 && result.after.members[1].norm == 2));
  CHECK((result.after.members[0].owner == 0 && result.after.members[1].owner == 0));

  // A member that is outranked in a slot that is not touched otherwise: only the degree changes.
  ems_state kept = with_scores(in_line({1, 2, 3}), {9, 5, 0});
  kept.slots[0].degree = 2;
  kept.members = {{6, 10, 0, {1, 1, 0}}};
  ems_outcome const lone = ems_compress(kept, plain(2, 1));
  CHECK(lone.after.slots[0].degree == 1);
  CHECK(lone.after.slots[0].key == kept.slots[0].key);
  CHECK(lone.after.members.empty());

  // At or under the budget nothing happens.
  CHECK(ems_compress(kept, plain(3, 1)).after.members.size() == 1);
}

TEST_CASE("EMS: rotary embedding") {
  double const quarter = std::acos(-1.0) / 2;
  rotary_options rotary;
  rotary.place = [&](long position) { return quarter * static_cast<double>(position); };
  rotary.base = 1;  // every pair turns by the same angle
  rotary.pairs = rotary_pairs::half_split;
  row const half = rotate({1, 2, 3, 4}, 1, rotary);
  rotary.pairs = rotary_pairs::interleaved;
  row const interleaved = rotate({1, 2, 3, 4}, 1, rotary);
  check_close({half, interleaved}, {{-3, -4, 1, 2}, {-2, 1, -4, 3}});
  // The second of two pairs turns by base^(-1/2): 1/10 of the angle for 100.
  rotary.base = 100;
  rotary.place = [](long position) { return static_cast<double>(position); };
  CHECK(rotate({0, 0, 1, 0}, 5, rotary)[2] == Approx(std::cos(0.5)));

  // Tokens of one line and one value share losslessly also when each is rotated at its own position.
  for (rotary_pairs const pairs : {rotary_pairs::half_split, rotary_pairs::interleaved}) {
    rotary.pairs = pairs;
    ems_state const state = with_scores(in_line({1, 2, 0.5, 3, 1.5}), {5, 4, 3, 2, 1});
    ems_outcome const merged = ems_compress(state, plain(2, 3));
    REQUIRE(merged.after.members.size() == 3);
    matrix const queries{{0.3, -0.2, 0.5, 0.7}, {-1, 0.4, 0.2, 0.1}};
    attention_result const before = attend_shared(queries, state, {}, rotary);
    attention_result const after = attend_shared(queries, merged.after, {}, rotary);
    check_close(after.output, before.output);
    check_close({after.lse}, {before.lse});
    CHECK(after.lse[0] != Approx(attend_shared(queries, merged.after).lse[0]));  // unrotated it is not
  }
}

TEST_CASE("EMS: alike tokens share losslessly, with softcap and several queries") {
  ems_state state = in_line({1, 2, 0.5, 3, 1.5, 4, 0.1});
  state.slots[3].value = {0, 9};  // but not this one: its value is far from the others'
  state.slots[3].key = {0, 0, 0, 5};
  state = with_scores(state, {5, 4, 3, 9, 1, 2, 6});
  attention_options capped;
  capped.scale = 0.5;
  capped.softcap = 3;
  matrix const queries{{0.3, -0.2, 0.5, 0.7}, {-1, 2, 0.2, 0.1}};
  ems_outcome const merged = ems_compress(state, plain(3, 3));
  CHECK(merged.slot_target == std::vector<int>{0, 0, 0, 3, 0, 0, 6});
  CHECK(merged.after.slots[0].degree == 5);
  attention_result const before = attend_shared(queries, state, capped);
  attention_result const after = attend_shared(queries, merged.after, capped);
  check_close(after.output, before.output);
  check_close({after.lse}, {before.lse});

  // The collapsed form is exact where also the lengths are the same.
  ems_options options = plain(2, 3);
  options.collapsed = true;
  ems_state const same = with_scores(in_line({2, 2, 2, 2}), {4, 3, 2, 1});
  ems_outcome const single = ems_compress(same, options);
  CHECK(single.after.slots[0].degree == 3);
  check_close(attend_shared(queries, single.after, capped, {}, true).output,
              attend_shared(queries, same, capped, {}, true).output);
  check_close({attend_shared(queries, single.after, capped, {}, true).lse},
              {attend_shared(queries, same, capped, {}, true).lse});
}

TEST_CASE("EMS: the causal edge cuts slots, members are seen by all") {
  ems_outcome const merged = ems_compress(with_scores(in_line({1, 2, 3}), {3, 2, 1}), plain(2, 2));
  attention_options causal;
  causal.causal = true;
  attention_result const seen = attend_shared({{0, 0, 0, 0}, {0, 0, 0, 0}}, merged.after, causal);
  check_close(seen.probability, {{0.5, 0, 0.5}, {1.0 / 3, 1.0 / 3, 1.0 / 3}});
}

TEST_CASE("EMS: gamma 1 and tau above 1 are eviction") {
  for (std::size_t const n : {12u, 30u, 61u}) {
    ems_state state = scattered_state(n);
    attention_options causal;
    causal.causal = true;
    ems_options options;
    options.budget = 9;
    options.window = 4;
    ems_observe(state, attend_shared(some_queries(n), state, causal).probability, options.window);
    std::vector<double> scores;
    for (ems_ranked const& r : ems_slot_scores(state, options)) scores.push_back(r.score);
    indices const kept = recents_and_best(scores, options.window, options.budget).kept;
    for (auto const& [gamma, tau] : {std::pair{1.0, 0.0}, std::pair{4.0, 1.01}}) {
      options.gamma = gamma;
      options.tau = tau;
      ems_outcome const evicted = ems_compress(state, options);
      CHECK(evicted.after.members.empty());
      REQUIRE(evicted.after.slots.size() == kept.size());
      for (std::size_t i = 0; i < kept.size(); ++i) {
        CHECK(evicted.after.slots[i].position == static_cast<long>(kept[i]));
        CHECK(evicted.after.slots[i].key == state.slots[kept[i]].key);
        CHECK((evicted.after.slots[i].degree == 1 && evicted.after.slots[i].own_norm == 0));
      }
    }
    options.gamma = 4;  // and otherwise it is not
    options.tau = 0;
    CHECK_FALSE(ems_compress(state, options).after.members.empty());
  }
}

TEST_CASE("EMS: what is merged one after the other is what is merged at once") {
  ems_state state = scattered_state(6);
  std::vector<double> const scores{0.5, 0.2, 0.9, 0.4, 0.7, 0.1};
  state = with_scores(state, scores);
  std::size_t none = 0;
  auto const merge = [&](ems_state const& from, indices const& set, bool collapsed) {
    return ems_merge(from, set.front(), set, collapsed, store_exactly, none);
  };
  ems_slot const at_once = merge(state, {0, 1, 2, 3}, false);
  for (indices const& order : {indices{1, 2, 3}, indices{3, 1, 2}, indices{2, 3, 1}}) {
    ems_state step = state;
    for (std::size_t const i : order) step.slots[0] = merge(step, {0, i}, false);
    check_close({step.slots[0].key, step.slots[0].value}, {at_once.key, at_once.value});
    CHECK(step.slots[0].own_norm == at_once.own_norm);
    CHECK(step.slots[0].merge_weight == Approx(at_once.merge_weight));
  }
  // A slot that others merged into and that then merges itself brings their weights along.
  ems_state chain = state;
  chain.slots[1] = merge(chain, {1, 2, 3}, false);
  chain.slots[0] = merge(chain, {0, 1}, false);
  check_close({chain.slots[0].key, chain.slots[0].value}, {at_once.key, at_once.value});
}

TEST_CASE("EMS: decoding") {
  std::size_t const prompt = 24, steps = 40;
  ems_state const all = scattered_state(prompt + steps);
  matrix const queries = some_queries(2 * (prompt + steps));
  matrix keys, values;
  std::vector<ems_token> tokens;
  for (std::size_t i = 0; i < prompt; ++i) {
    keys.push_back(all.slots[i].key);
    values.push_back(all.slots[i].value);
  }
  for (std::size_t i = prompt; i < prompt + steps; ++i)
    tokens.push_back({all.slots[i].key, all.slots[i].value, {queries[2 * i], queries[2 * i + 1]}});
  ems_options options;
  options.budget = 10;
  options.window = 4;
  options.gamma = 3;
  options.tau = 0.8;
  attention_options causal;
  causal.causal = true;
  ems_state start = ems_fresh(keys, values);
  matrix const rows(queries.begin(), queries.begin() + prompt);
  ems_observe(start, attend_shared(rows, start, causal).probability, options.window);
  start = ems_compress(start, options).after;

  for (std::size_t const interval : {1u, 3u}) {
    ems_decoded const result = ems_decode(start, tokens, options, interval);
    CHECK(result.compressions == steps / interval);
    ems_state const& after = result.after;
    CHECK(after.slots.size() == options.budget + steps % interval);
    CHECK(after.members.size() <= 20);  // (gamma - 1) budget
    CHECK_FALSE(after.members.empty());
    std::vector<double> owned(after.slots.size(), 1.0);
    std::set<long> distinct;
    for (ems_member const& m : after.members) {
      owned[m.owner] += 1;
      distinct.insert(m.position);
    }
    for (std::size_t i = 0; i < after.slots.size(); ++i) {
      CHECK(after.slots[i].degree == owned[i]);
      CHECK((owned[i] == 1 || after.slots[i].own_norm > 0));
      distinct.insert(after.slots[i].position);
    }
    CHECK(distinct.size() == after.slots.size() + after.members.size());  // a token is in one place
    std::vector<long> const last = positions_of(after);
    CHECK(last.back() == static_cast<long>(prompt + steps - 1));
    CHECK(std::is_sorted(last.begin(), last.end()));
    CHECK(after.rows_in_window == steps % options.window);
    CHECK(result.score_margin > 0);
    CHECK(result.similarity_margin > 0);
  }

  // A budget for all of it: plain attention. Collapsed: no members, and no token is counted twice.
  options.budget = 100;
  ems_decoded const full = ems_decode(ems_fresh(keys, values), tokens, options);
  CHECK(full.after.slots.size() == prompt + steps);
  matrix last_queries{queries[2 * (prompt + steps) - 2], queries[2 * (prompt + steps) - 1]};
  check_close(full.outputs.back(), attend_shared(last_queries, all).output);
  double seen = 0;
  for (ems_slot const& slot : full.after.slots) seen += slot.score.global;
  CHECK(seen == Approx(static_cast<double>(steps)));  // each row, the mean of two heads, sums to 1
  options.budget = 10;
  options.collapsed = true;
  options.tau = 0;
  options.gamma = 100;
  ems_decoded const collapsed = ems_decode(ems_fresh(keys, values), tokens, options);
  CHECK(collapsed.after.members.empty());
  double degrees = 0;
  for (ems_slot const& slot : collapsed.after.slots) degrees += slot.degree;
  CHECK(degrees <= static_cast<double>(prompt + steps));
  CHECK(degrees > static_cast<double>(options.budget));
}
