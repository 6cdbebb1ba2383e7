// Leverage of keys before their rotation: against plain loops in double precision, and its identities.
#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "query_talk.hpp"
#include "reference/expected_attention.hpp"
#include "reference/row_scores.hpp"
#include "scores_of.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace leverage_cases {

using kvmeld::rope_pairing;
using kvmeld::rope_params;
using kvmeld::score::leverage;
using score_test::rope_of;
using score_test::scores_of;
using support::dice;

namespace {

template <class T> void check_scores(dice& d) {
  kvmeld::shape const s{
      1, 1, d.between(1, 2), 1, 2 * d.between(1, 3) * d.between(1, 8), 4, d.between(70, 200)};
  CAPTURE(s.key_dim);
  reference::pair_rotation const turn{d.chance(0.3) ? s.key_dim / 4 * 2 : s.key_dim, d.chance(0.5),
                                      d.pick({10.0, 10000.0, 500000.0}), d.chance(0.3) ? 4.0 : 1.0};
  if (turn.dim == 0) return;
  support::engine_memory<T> memory(s, d.chance(0.5) ? "LSHTC" : d.chance(0.5) ? "LSTHC" : "LSHCT");
  auto cache = support::make_cache(memory, kvmeld::preset::leverage::for_budget());
  std::uint32_t const n = d.between(1, s.capacity);
  cache.open(0, n);
  memory.fill_sequence(d, 0, 0, n, support::texture::walk);
  // Positions with gaps, as compressions leave them; in half of the cases a table tells what they mean.
  std::vector<kvmeld::position_t> map;
  for (std::uint32_t i = 0; i < 7; ++i) map.push_back(static_cast<kvmeld::position_t>(d.below(900)));
  leverage score{d.chance(0.5) ? 0.1f : 0.5f, rope_of(turn)};
  if (d.chance(0.3)) {
    score.rope.map = map.data();
    score.rope.mapped = 7;
  }
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    auto const ref = cache.ref();
    kvmeld::position_t at = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      ref.ledger.position[ref.ledger.at(t, i)] = at += static_cast<kvmeld::position_t>(d.between(1, 9));
      if (d.chance(0.3)) ref.ledger.degree[ref.ledger.at(t, i)] = static_cast<float>(d.between(1, 4));
    }
    reference::track_state track = support::read_track(ref, t);
    for (std::uint32_t i = 0; i < n; ++i) {
      kvmeld::position_t p = ref.ledger.position[ref.ledger.at(t, i)];
      if (score.rope.map != nullptr) p = p < 7 ? map[static_cast<std::size_t>(p)] : map[6] + (p - 6);
      track.keys[i] = turn.turned(track.keys[i], -static_cast<double>(p));
    }
    auto const wanted = reference::leverage(track, static_cast<double>(score.ridge));
    for (auto const* kernels : {static_cast<kvmeld::host_kernels const*>(nullptr), score_test::tuned()}) {
      auto const got = scores_of(score, ref, t, kernels);
      double worst = 0;
      for (std::uint32_t i = 0; i < n; ++i)
        worst = std::max(worst, std::abs(static_cast<double>(got[i]) - wanted[i]));
      CHECK(worst <= 2e-4);
    }
  });
}

}  // namespace

TEST_CASE("rows that turn together turn as each by itself") {
  dice d(2506);
  kvmeld::serial_team const team(nullptr, 0);
  for (int round = 0; round < 40; ++round) {
    std::uint32_t const dim = 2 * d.between(1, 40), count = d.between(1, 64);
    rope_params const rope = rope_of(score_test::random_turn(d, dim));
    std::vector<double> turns;
    for (std::uint32_t p = 0; p < rope.pairs(dim); ++p) turns.push_back(kvmeld::rope_turns(rope, p, dim));
    std::vector<float> together;
    std::vector<kvmeld::position_t> at{static_cast<kvmeld::position_t>(d.below(1 << 20))};
    for (std::uint32_t i = 0; i < count * dim; ++i)
      together.push_back(static_cast<float>(d.between(0, 8)) - 4.0f);
    int const step = d.chance(0.5) ? 1 : -1;  // mostly
    while (at.size() < count)
      at.push_back(at.back() + (d.chance(0.9) ? step : static_cast<int>(d.below(9)) - 4));
    std::vector<float> alone = together;
    kvmeld::rotate_rows(team, rope, turns.data(), together.data(), count, dim,
                        [&](std::uint32_t i) { return at[i]; });
    for (std::uint32_t i = 0; i < count; ++i) kvmeld::rotate_row(rope, at[i], alone.data() + i * dim, dim);
    float worst = 0;
    for (std::size_t i = 0; i < alone.size(); ++i) worst = std::max(worst, std::abs(together[i] - alone[i]));
    CHECK(worst <= 8 * 3e-7f);
  }
}

TEST_CASE("leverage before rotation is what plain loops over the keys, turned back, compute") {
  dice d(2401);
  for (int i = 0; i < 40; ++i) {
    check_scores<float>(d);
    check_scores<kvmeld::bfloat16>(d);
    check_scores<kvmeld::float16>(d);
  }
}

TEST_CASE("leverage before rotation does not change when all positions shift; as stored it does") {
  dice d(2402);
  kvmeld::shape const s{1, 1, 2, 1, 16, 4, 120};
  support::engine_memory<float> memory(s);
  reference::pair_rotation const turn{16, false, 100.0, 1.0};
  leverage const before_rotation{0.1f, rope_of(turn)}, as_stored{};
  auto policy = kvmeld::preset::leverage::with_rope(before_rotation.rope);
  auto cache = support::make_cache(memory, policy);
  cache.open(0, 120);
  memory.fill_sequence(d, 0, 0, 120, support::texture::walk);
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    auto const ref = cache.ref();
    reference::track_state const track = support::read_track(ref, t);
    auto const put = [&](std::uint32_t shift) {
      for (std::uint32_t i = 0; i < 120; ++i) {
        std::vector<float> key, value;
        for (double x : turn.turned(track.keys[i], i + shift)) key.push_back(static_cast<float>(x));
        for (double x : track.values[i]) value.push_back(static_cast<float>(x));
        memory.fill(t, i, {key}, {value});
        ref.ledger.position[ref.ledger.at(t, i)] = static_cast<kvmeld::position_t>(i + shift);
      }
    };
    put(0);
    auto const one = scores_of(before_rotation, ref, t), other = scores_of(as_stored, ref, t);
    put(1000);
    auto const again = scores_of(before_rotation, ref, t);
    auto const plain = reference::leverage(track, 0.1);  // the keys as they were before they were turned
    double most = 0;
    for (std::uint32_t i = 0; i < 120; ++i) {
      CHECK(again[i] == doctest::Approx(one[i]).epsilon(1e-3));
      CHECK(static_cast<double>(one[i]) == doctest::Approx(plain[i]).epsilon(1e-3));
      most = std::max(most, std::abs(static_cast<double>(other[i]) - plain[i]));
    }
    CHECK(most > 0.02);
    put(0);
  });
  // What stays is what the score ranks highest, and shifts of the context change nothing.
  cache.shift(0, 5, before_rotation.rope, 4);
  REQUIRE(cache.compress({0}, kvmeld::budget::entries(60)).ok());
  CHECK(cache.longest(0) == 60);
}

TEST_CASE("leverage without rope, or with a rope that turns nothing, has the bits that it had") {
  dice d(2403);
  kvmeld::shape const s{1, 1, 1, 1, 10, 4, 90};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::leverage::for_budget());
  cache.open(0, 90);
  memory.fill_sequence(d, 0, 0, 90, support::texture::noise);
  kvmeld::track const t = kvmeld::make_track(s, 0, 0, 0);
  rope_params none;
  none.base = 3.0;  // pairing is none
  CHECK(scores_of(leverage{0.1f, none}, cache.ref(), t) == scores_of(leverage{}, cache.ref(), t));
}

TEST_CASE("leverage: rotations that cannot be are refused, also in a blend and at run time") {
  rope_params rope;
  rope.pairing = rope_pairing::half_split;
  leverage score{0.1f, rope};
  CHECK(kvmeld::problem_of(score).empty());
  score.rope.positions = kvmeld::rope_positions::slot;
  CHECK(kvmeld::problem_of(score) ==
        "policy: score::leverage.rope.positions is rope_positions::slot; it must be rope_positions::stored, "
        "because keys that lie rotated do not turn when slots change");
  score.rope = rope;
  score.rope.rotary_dim = 12;
  kvmeld::shape const s{1, 1, 1, 1, 10, 4, 20};
  std::string const wide =
      "policy: rope.rotary_dim is 12; it must be 0, which means all, or an even number of at most 10, the "
      "key_dim";
  CHECK(score.problem_for(s) == wide);
  kvmeld::score::blended<leverage, kvmeld::score::drop_error> const blend(score, {});
  CHECK(blend.problem_for(s) == wide);
  CHECK(kvmeld::compose::any_score(score).problem_for(s) == wide);
  CHECK(kvmeld::compose::any_score(blend).problem_for(s) == wide);
  support::engine_memory<float> memory(s);
  CHECK_THROWS_AS(support::make_cache(memory, kvmeld::preset::leverage::with_rope(score.rope)),
                  kvmeld::invalid_argument);
}

}  // namespace leverage_cases
