// Merge functions alone: the weights of hand-made sets, by hand and against double-precision loops.
#include <doctest/doctest.h>

#include <kvmeld/compose/any_merge.hpp>
#include <kvmeld/testing/check_policy.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/kvmerger.hpp"
#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

using doctest::Approx;
using support::dice;

namespace {

// An identifier of the tests' own: entries `size` at a time become one, in the set's place `pivot`.
struct every_few {
  std::uint32_t size, pivot;

  template <class Round> void admit(Round& round) const {
    std::uint32_t const n = round.state().length;
    round.for_each(n, [&](kvmeld::slot_t i) {
      std::uint32_t const first = i / size * size, target = first + pivot < n ? first + pivot : first;
      if (i != target) round.merge_slot(i, target);
    });
  }
};

struct weights {
  std::vector<double> key, value, degree;
  std::vector<kvmeld::fate> fates;
};

// A score whose one channel is the attention that an entry got, or its logarithm; the largest of a set stays.
template <kvmeld::score_kind Kind> struct peak_score : kvmeld::score::max_attention {
  static constexpr kvmeld::score_facts facts{Kind};
};

template <class Merge, class Score = kvmeld::score::global>
weights weigh(Merge merge, every_few sets, support::rows const& keys, std::vector<float> const& scores,
              std::vector<float> const& degrees, Score score = {}) {
  std::uint32_t const n = static_cast<std::uint32_t>(keys.size());
  support::engine_memory<float> memory({1, 1, 1, 1, static_cast<std::uint32_t>(keys[0].size()), 1, n});
  memory.fill({0, 0, 0, 0}, 0, keys, support::rows(n, {1}));
  kvmeld::select::top const nobody{kvmeld::quantity::entries(0), kvmeld::quantity::entries(0),
                                   kvmeld::quantity::entries(0)};
  auto cache = make_cache(memory, kvmeld::policy{score, nobody, sets, merge}, support::with_plan());
  cache.open(0, n);
  support::set_scores(cache.ledger(), {0, 0, 0, 0}, scores);
  for (std::uint32_t i = 0; i < n; ++i) cache.ledger().degree[i] = degrees[i];
  cache.plan({0}, kvmeld::budget::entries(1), kvmeld::shortfall::keep);
  kvmeld::plan_ref const& p = cache.current_plan();
  return {{p.key_weight, p.key_weight + n},
          {p.value_weight, p.value_weight + n},
          {p.degree_weight, p.degree_weight + n},
          {p.fates, p.fates + n}};
}

void check_equal(std::vector<double> const& got, std::vector<double> const& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(2e-5));
}

}  // namespace

TEST_CASE("weights by hand: a set of three and an entry alone") {
  // Keys at 1, 2, 3 on a line and one far away; scores 1, 2, 5; degrees 1, 2, 5.
  support::rows const keys{{1, 0}, {2, 0}, {3, 0}, {9, 9}};
  std::vector<float> const scores{1, 2, 5, 7}, degrees{1, 2, 5, 4};
  every_few const sets{3, 0};
  auto const average = weigh(kvmeld::merge::average{}, sets, keys, scores, degrees);
  check_equal(average.key, {1.0 / 3, 1.0 / 3, 1.0 / 3, 1});
  check_equal(average.degree, {1, 1, 1, 1});
  check_equal(weigh(kvmeld::merge::degree_weighted{}, sets, keys, scores, degrees).value,
              {0.125, 0.25, 0.625, 1});
  check_equal(weigh(kvmeld::merge::score_weighted{}, sets, keys, scores, degrees).value,
              {0.125, 0.25, 0.625, 1});
  check_equal(weigh(kvmeld::merge::score_weighted{}, sets, keys, {0, 0, 0, 0}, degrees).key,
              {1.0 / 3, 1.0 / 3, 1.0 / 3, 1});

  // Scores that do not add up count once for each token behind an entry: 1 * 4, 2 * 1, 5 * 2 of 16.
  peak_score<kvmeld::score_kind::peaks> const peaks;
  check_equal(weigh(kvmeld::merge::score_weighted{}, sets, keys, {4, 1, 2, 7}, degrees, peaks).value,
              {0.25, 0.125, 0.625, 1});
  // An entry that got no attention hardly counts; where none did, tokens do.
  check_equal(weigh(kvmeld::merge::score_weighted{}, sets, keys, {4, 0, 2, 7}, degrees, peaks).key,
              {4.0 / 14, 2e-6 / 14, 10.0 / 14, 1});
  check_equal(weigh(kvmeld::merge::score_weighted{}, sets, keys, {0, 0, 0, 0}, degrees, peaks).key,
              {0.125, 0.25, 0.625, 1});
  peak_score<kvmeld::score_kind::log_peaks> const logs;
  auto const log = [](double x) { return static_cast<float>(std::log(x)); };
  check_equal(
      weigh(kvmeld::merge::score_weighted{}, sets, keys, {log(4), log(1), log(2), 7}, degrees, logs).value,
      {0.25, 0.125, 0.625, 1});
  check_equal(weigh(kvmeld::merge::score_weighted{}, sets, keys, {-3e4f, -3e4f, -3e4f, 0}, degrees, logs).key,
              {1.0 / 3, 1.0 / 3, 1.0 / 3, 1});  // all weights are 0
  check_equal(weigh(kvmeld::merge::score_weighted{}, sets, keys, {3e4f, 3e4f, 0, 0}, degrees, logs).key,
              {1.0 / 3, 2.0 / 3, 0, 1});

  // Gaussian, pivot 0, distances 0, 1, 2. mean_l2: sigma 3/2; g = 1, exp(-1/4.5), exp(-4/4.5).
  double const a = std::exp(-1 / 4.5), b = std::exp(-4 / 4.5), total = 1 + a + b;
  kvmeld::merge::gaussian gaussian;
  check_equal(weigh(gaussian, sets, keys, scores, degrees).key, {1 / total, a / total, b / total, 1});
  // eq7_000: sigma = 5 / (3 sqrt 2) = 1.17851, g = 1, 0.69768, 0.23693.
  gaussian.sigma = kvmeld::merge::bandwidth::eq7_000;
  check_equal(weigh(gaussian, sets, keys, scores, degrees).key,
              {1 / 1.934604, 0.697676 / 1.934604, 0.236928 / 1.934604, 1});
  // fixed 5: exp(-1/50) = 0.98020, exp(-4/50) = 0.92312. As printed: no degrees; times 3 on the values.
  gaussian.sigma = kvmeld::merge::bandwidth::fixed;
  gaussian.degrees = false;
  gaussian.scale_values_by_set_size = true;
  auto const printed = weigh(gaussian, sets, keys, scores, degrees);
  double const sum = 1 + std::exp(-0.02) + std::exp(-0.08);
  check_equal(printed.key, {1 / sum, std::exp(-0.02) / sum, std::exp(-0.08) / sum, 1});
  check_equal(printed.value, {3 / sum, 3 * std::exp(-0.02) / sum, 3 * std::exp(-0.08) / sum, 1});
  check_equal(printed.degree, {1, 0, 0, 1});

  // A pair weighs 0.62 to 0.38 at any distance; equal keys weigh the same.
  for (float scale : {1e-3f, 1.0f, 1e4f}) {
    auto const pair = weigh(kvmeld::merge::gaussian{}, {2, 1}, {{scale}, {3 * scale}}, {0, 0}, {1, 1});
    check_equal(pair.key, {0.3775407, 0.6224593});
  }
  check_equal(weigh(kvmeld::merge::gaussian{}, {3, 1}, {{2}, {2}, {2}}, {0, 0, 0}, {1, 1, 1}).key,
              {1.0 / 3, 1.0 / 3, 1.0 / 3});

  // drop: whoever would merge goes, the pivot stays as it is.
  auto const dropped = weigh(kvmeld::merge::drop{}, {3, 1}, keys, scores, degrees);
  using kvmeld::fate;
  CHECK(dropped.fates == std::vector<fate>{fate::drop, fate::keep, fate::drop, fate::keep});
  check_equal(dropped.key, {1, 1, 1, 1});
}

// A merge function of one's own, of everything that a set_view shows.
struct by_view : kvmeld::merge::defaults {
  static constexpr kvmeld::merge_facts facts{&kvmeld::merge_facts::needs_score};
  float scale = 1;
  explicit by_view(float s) : scale(s) {}
  float weight(kvmeld::set_view const& set, std::uint32_t i) const {
    bool const own = set.where().index == 0 && set.slot(i) < 100 && (set.is_pivot(i) == (set.slot(i) == 4));
    if (!own || set.size() != 3) return std::nanf("");
    return scale * (set.degree(i) + 10.0f * set.score(i) + 100.0f * static_cast<float>(set.position(i)));
  }
};

// Weighs by what keys hold, which a view reads from any layout.
struct by_key_norm : kvmeld::merge::defaults {
  float weight(kvmeld::set_view const& set, std::uint32_t i) const { return set.key_norm(i); }
};
struct by_last_channel : kvmeld::merge::defaults {
  float weight(kvmeld::set_view const& set, std::uint32_t i) const { return set.key(i, set.key_dim() - 1); }
};

// As a user would write it: the longest key stays as it is, and the others go into it with no weight. The
// whole team reads the rows; each lane keeps one.
struct longest_key {
  static constexpr char const* name = "longest_key";
  static constexpr kvmeld::merge_facts facts{&kvmeld::merge_facts::cooperative};
  constexpr bool carries_degree() const { return true; }
  // Depends on the team, as buffers of lanes may.
  template <class Team> struct rows_of {
    float* row;
    float* norms;
  };
  std::size_t scratch_bytes(kvmeld::shape const& s, int) const {
    return kvmeld::scratch_size(s.key_dim * sizeof(float)) + kvmeld::scratch_size(64 * sizeof(float));
  }
  template <class Team> rows_of<Team> prepare(Team const& team, std::uint32_t d) const {
    float* const row = team.template scratch<float>(d);
    return {row, team.template scratch<float>(64)};
  }
  template <class Team, class Keys>
  void weigh(Team const& team, kvmeld::wave_ref const& wave, Keys const& keys, kvmeld::tile const& t,
             kvmeld::slot_t, kvmeld::member_list const& m, rows_of<Team> const& b) const {
    std::uint32_t const d = keys.channels(), n = kvmeld::min_of(m.count, 64u);
    for (std::uint32_t i = 0; i < n; ++i) {
      keys.load_tile(team, t.where, m.slots[i], 1, 0, d, b.row, d);
      team.sync();
      if (team.lane() == 0) b.norms[i] = kvmeld::row_norm(b.row, d);
      team.sync();
    }
    std::uint32_t longest = 0;
    for (std::uint32_t i = 1; i < n; ++i) longest = b.norms[i] > b.norms[longest] ? i : longest;
    if (team.lane() == 0)
      kvmeld::write_weights(wave, t, m, [&](std::uint32_t i) { return i == longest ? 1.0f : 0.0f; });
    team.sync();
  }
};
using own_choice = kvmeld::compose::any_merge_of<kvmeld::merge::drop, kvmeld::merge::degree_weighted,
                                                 kvmeld::merge::gaussian, longest_key, by_key_norm,
                                                 kvmeld::merge::collapsed>;

TEST_CASE("a merge function reads the keys of a set and their norms") {
  // Wide enough for more than one piece; the norms are 5, 13 and 10.
  support::rows keys(3, std::vector<float>(37, 0.0f));
  keys[0][0] = 3, keys[0][36] = 4;
  keys[1][20] = 12, keys[1][36] = 5;
  keys[2][15] = 8, keys[2][36] = 6;
  std::vector<float> const scores(3, 0), degrees(3, 1);
  check_equal(weigh(by_key_norm{}, {3, 1}, keys, scores, degrees).key, {5.0 / 28, 13.0 / 28, 10.0 / 28});
  check_equal(weigh(by_last_channel{}, {3, 1}, keys, scores, degrees).value, {4.0 / 15, 5.0 / 15, 6.0 / 15});
  // Squares that overflow: norms are finite, and no row is without one.
  for (auto& row : keys) {
    for (float& x : row) x *= 0x1p100f;
  }
  check_equal(weigh(by_key_norm{}, {3, 1}, keys, scores, degrees).key, {5.0 / 28, 13.0 / 28, 10.0 / 28});
  // The norm is that of the library, up to how the compiler rounds it here and there.
  dice d(3);
  auto const random = support::random_rows(d, 2, 45, support::texture::noise);
  float const a = kvmeld::row_norm(random[0].data(), 45), b = kvmeld::row_norm(random[1].data(), 45);
  CHECK(weigh(by_key_norm{}, {2, 0}, random, {0, 0}, {1, 1}).key[0] == Approx(a / (a + b)).epsilon(1e-6));
}

TEST_CASE("a view reads keys of any layout") {
  kvmeld::shape const s{1, 2, 2, 1, 20, 4, 40};
  dice d(8);
  for (auto texture : {support::texture::noise, support::texture::clusters}) {
    std::vector<kvmeld::float16> keys(s.slots() * s.key_dim), along(keys.size());
    std::vector<float> values(s.slots() * s.value_dim), other(values.size());
    kvmeld::strided<kvmeld::float16> const rows(keys.data(), "LSHTC", s, s.key_dim);
    kvmeld::transposed<kvmeld::float16> const columns(along.data(), "LSHCT", s, s.key_dim);
    support::for_tracks(s, 1, [&](kvmeld::track t) {
      auto const k = support::random_rows(d, 30, s.key_dim, texture);
      for (std::uint32_t i = 0; i < 30; ++i) {
        support::put_row(rows, t, i, k[i]);
        support::put_row(columns, t, i, k[i]);
      }
    });
    kvmeld::policy const p{
        kvmeld::score::none{},
        kvmeld::select::sinks_and_recents{kvmeld::quantity::entries(1), kvmeld::quantity::entries(2)},
        every_few{3, 1}, by_key_norm{}};
    kvmeld::cache_options const options{s};
    auto const view = [&](float* v) { return kvmeld::strided<float>(v, "LSHTC", s, s.value_dim); };
    kvmeld::merged_cache by_row{kvmeld::host_executor(1), p, kvmeld::kv{rows, view(values.data())}, options};
    kvmeld::merged_cache by_column{kvmeld::host_executor(1), p, kvmeld::kv{columns, view(other.data())},
                                   options};
    by_row.open(1, 30);
    by_column.open(1, 30);
    by_row.compress({1}, kvmeld::budget::entries(20));
    by_column.compress({1}, kvmeld::budget::entries(20));
    CHECK(by_row.longest(1) == 10);
    support::for_tracks(s, 1, [&](kvmeld::track t) {
      for (std::uint32_t i = 0; i < by_row.ref().length(t); ++i)
        CHECK(support::get_row(rows, t, i) == support::get_row(columns, t, i));
    });
  }
}

TEST_CASE("a merge function chosen at run time may be any cooperative one") {
  dice d(5);
  auto const keys = support::random_rows(d, 13, 9, support::texture::noise);
  std::vector<float> const scores = support::random_scores(d, 13), degrees(13, 2.0f);
  every_few const sets{4, 2};
  auto const same = [&](auto const& merge) {
    auto const alone = weigh(merge, sets, keys, scores, degrees);
    auto const chosen = weigh(own_choice(merge), sets, keys, scores, degrees);
    CHECK(chosen.key == alone.key);
    CHECK(chosen.value == alone.value);
    CHECK(chosen.degree == alone.degree);
    CHECK(chosen.fates == alone.fates);
  };
  same(longest_key{});
  same(kvmeld::merge::gaussian{});
  same(kvmeld::merge::collapsed{});
  same(kvmeld::merge::degree_weighted{});
  same(by_key_norm{});
  same(kvmeld::merge::drop{});
  for (auto const& merge : {own_choice(longest_key{}), own_choice(by_key_norm{})}) {
    CHECK(kvmeld::testing::policy_problem(kvmeld::policy{
              kvmeld::score::none{},
              kvmeld::select::sinks_and_recents{kvmeld::quantity::entries(2), kvmeld::quantity::entries(4)},
              kvmeld::identify::chunked_bipartite<kvmeld::admit::exact_budget>{12, {}}, merge}) == "");
  }
}

TEST_CASE("a merge function that gives one weight per member sees degrees, scores and positions") {
  support::rows const keys{{1}, {2}, {3}, {4}, {5}, {6}};
  std::vector<float> const scores{9, 9, 9, 1, 2, 3}, degrees{1, 1, 1, 2, 4, 6};
  // Slots 3, 4, 5 around pivot 4: 2 + 10 + 300, 4 + 20 + 400, 6 + 30 + 500, of 1272. The other set's pivot
  // is 1.
  auto const seen = weigh(by_view{1}, {3, 1}, keys, scores, degrees);
  check_equal({seen.key.begin() + 3, seen.key.end()}, {312.0 / 1272, 424.0 / 1272, 536.0 / 1272});
  CHECK(seen.value == seen.key);
  check_equal(seen.degree, {1, 1, 1, 1, 1, 1});
  // NaN, a sum of 0 and a sum below 0 weigh all alike.
  check_equal({seen.key.begin(), seen.key.begin() + 3}, {1.0 / 3, 1.0 / 3, 1.0 / 3});
  for (float scale : {0.0f, -1.0f}) {
    auto const equal = weigh(by_view{scale}, {3, 1}, keys, scores, degrees);
    check_equal({equal.key.begin() + 3, equal.key.end()}, {1.0 / 3, 1.0 / 3, 1.0 / 3});
  }
}

TEST_CASE("gaussian weights are the reference's, in sets of every size") {
  dice d(61);
  for (int i = 0; i < 300; ++i) {
    std::uint32_t const n = d.between(2, 70), dim = d.between(1, 60), size = d.between(2, n);
    std::uint32_t const pivot = d.below(size);
    float const scale = static_cast<float>(std::pow(10.0, 6 * d.uniform() - 3));
    support::rows keys = support::random_rows(d, n, dim, support::texture::clusters);
    for (auto& row : keys) {
      for (float& x : row) x *= scale;
    }
    if (d.chance(0.2)) keys[d.below(n)] = keys[0];
    reference::matrix wide;
    for (auto const& row : keys) wide.emplace_back(row.begin(), row.end());
    reference::track_state const track = reference::fresh_track(wide, wide);
    kvmeld::merge::gaussian g;
    reference::kvmerger_options o;
    if (i % 3 == 1) g.sigma = kvmeld::merge::bandwidth::eq7_000, o.sigma = reference::sigma_rule::eq7_000;
    if (i % 3 == 2) {
      g.sigma = kvmeld::merge::bandwidth::fixed;
      g.fixed_sigma = scale;
      o.sigma = reference::sigma_rule::fixed;
      o.fixed_sigma = static_cast<double>(scale);
    }
    auto const got = weigh(g, {size, pivot}, keys, std::vector<float>(n, 0.0f), std::vector<float>(n, 1.0f));
    for (std::uint32_t first = 0; first < n; first += size) {
      reference::indices set;
      for (std::uint32_t j = first; j < std::min(n, first + size); ++j) set.push_back(j);
      if (set.size() < 2) continue;
      auto const expected =
          reference::gaussian_weights(track, set, first + pivot < n ? first + pivot : first, o);
      for (std::size_t j = 0; j < set.size(); ++j)
        CHECK(std::fabs(got.key[set[j]] - expected[j]) < 1e-5 + 1e-4 * expected[j]);
    }
  }
}

TEST_CASE("gaussian weights stay finite where squares overflow or vanish") {
  for (auto const sigma : {kvmeld::merge::bandwidth::mean_l2, kvmeld::merge::bandwidth::eq7_000,
                           kvmeld::merge::bandwidth::fixed}) {
    for (float const x : {1e-30f, 1e-22f, 1e-20f, 1e-13f, 1e-10f, 1e10f, 1e18f, 3e19f, 1e30f}) {
      CAPTURE(x);
      kvmeld::merge::gaussian g;
      g.sigma = sigma;
      auto const w = weigh(g, {3, 1}, {{x}, {2 * x}, {-x}}, {0, 0, 0}, {1, 1, 1});
      double sum = 0;
      for (double k : w.key) {
        CHECK((kvmeld::is_finite(static_cast<float>(k)) && k >= 0));
        sum += k;
      }
      CHECK(sum == Approx(1));
    }
  }
}

TEST_CASE("score weights stay finite where scores are not") {
  float const nan = kvmeld::bits_float(0x7fc00000u), infinity = kvmeld::bits_float(0x7f800000u);
  for (float const bad : {nan, infinity}) {
    check_equal(weigh(kvmeld::merge::score_weighted{}, {2, 0}, {{1}, {2}}, {bad, 3}, {1, 1}).key, {0.5, 0.5});
  }
}

TEST_CASE("a merged entry goes on with the sum of its scores: in the next round, and before the fallback") {
  // Equal keys in one chunk, scores 1 2 9, values 10 20 30. Round 1: floor(0.34 * 3) = 1 edge, 0 to 1 with
  // 1/3 and 2/3. Round 2: 1, which now scores 3, to 2 with 3/12 and 9/12: (10 + 2 * 20 + 9 * 30) / 12
  // = 26.667.
  using kvmeld::quantity;
  kvmeld::track const t{0, 0, 0, 0};
  kvmeld::select::sinks_and_recents const none{quantity::entries(0), quantity::entries(0)};
  kvmeld::policy const rounds{
      kvmeld::score::global{}, none,
      kvmeld::identify::chunked_bipartite<kvmeld::admit::top_share>{8, {{0.34, 0, 0, 0}}},
      kvmeld::merge::score_weighted{}};
  support::engine_memory<float> memory({1, 1, 1, 1, 2, 1, 4});
  memory.fill(t, 0, {{1, 0}, {1, 0}, {1, 0}}, {{10}, {20}, {30}});
  auto cache = make_cache(memory, rounds);
  cache.open(0, 3);
  support::set_scores(cache.ledger(), t, {1, 2, 9});
  cache.compress({0}, kvmeld::budget::entries(1));
  CHECK(cache.rounds(0) == 2);
  CHECK(memory.values[0] == Approx(320.0 / 12));

  // {0, 1} is a set of score 1 + 1 in slot 0, then 1.5, then 9. One of the three has to go: the 1.5.
  kvmeld::policy const scan{kvmeld::score::global{}, none,
                            kvmeld::identify::consecutive_threshold<kvmeld::admit::threshold>{},
                            kvmeld::merge::average{}};
  for (bool whole : {true, false}) {
    support::engine_memory<float> fresh({1, 1, 1, 1, 2, 1, 4});
    fresh.fill(t, 0, {{1, 0}, {1, 0}, {0, 1}, {-1, 0}}, {{10}, {20}, {30}, {40}});
    auto evicting = make_cache(fresh, scan, support::with_plan());
    evicting.open(0, 4);
    support::set_scores(evicting.ledger(), t, {1, 1, 1.5f, 9});
    auto const two = kvmeld::budget::entries(2);
    if (whole) {
      evicting.compress({0}, two, kvmeld::shortfall::evict_lowest);
    } else {
      evicting.plan({0}, two, kvmeld::shortfall::evict_lowest);
      evicting.apply();
    }
    CHECK(evicting.warnings(0) == kvmeld::warning::evicted_fallback);
    CHECK(support::read_track(evicting.ref(), t).position == std::vector<long>{0, 3});
    CHECK((fresh.values[0] == 15 && fresh.values[1] == 40));
  }
}

TEST_CASE("gaussian refuses a sigma that is none, and two corrections at once") {
  kvmeld::merge::gaussian g;
  CHECK(g.problem().empty());
  g.scale_values_by_set_size = true;
  CHECK(g.problem() == "policy: merge::gaussian.scale_values_by_set_size is true; it must be false with "
                       "merge::gaussian.degrees, because both correct for the size of a set");
  g.degrees = false;
  CHECK(g.problem().empty());
  g.sigma = kvmeld::merge::bandwidth::fixed;
  g.fixed_sigma = 0;
  CHECK(g.problem() == "policy: merge::gaussian.fixed_sigma is 0; it must be a finite number above 0");
}

namespace {

// Merge functions that promise to leave degrees out, although their weights add them.
struct silent_mean : kvmeld::merge::average {
  bool carries_degree() const { return false; }
};
struct silent_gaussian : kvmeld::merge::gaussian {
  bool carries_degree() const { return false; }
};
struct silent_spread : kvmeld::merge::additive {
  bool carries_degree() const { return false; }
};

// Every degree after a compression of 12 entries to 6 or fewer, by an engine whose attention adds no bias.
template <class Identify, class Merge> void leaves_degrees_out(Identify identify, Merge merge) {
  support::engine_memory<float> memory({1, 1, 1, 1, 2, 1, 16});
  for (std::uint32_t i = 0; i < 12; ++i) {
    memory.fill({0, 0, 0, 0}, i, {{1.0f + static_cast<float>(i % 3), 1}}, {{static_cast<float>(i)}});
  }
  kvmeld::cache_options options;
  options.bias = kvmeld::bias_support::none;
  kvmeld::select::sinks_and_recents const ends{kvmeld::quantity::entries(0), kvmeld::quantity::entries(4)};
  auto cache = make_cache(memory, kvmeld::policy{kvmeld::score::global{}, ends, identify, merge}, options);
  cache.open(0, 12);
  support::set_scores(cache.ledger(), {0, 0, 0, 0}, std::vector<float>(12, 1.0f));
  cache.compress({0}, kvmeld::budget::entries(6));
  auto const now = cache.ref();
  kvmeld::track const t = now.where(0, 0, 0);
  REQUIRE(now.length(t) < 12);
  for (std::uint32_t s = 0; s < now.length(t); ++s) {
    CHECK(now.degree(t, s) == 1.0f);
    CHECK(now.log_degree(t, s) == 0.0f);
  }
}

}  // namespace

TEST_CASE("a merge function that says it carries no degree carries none, whatever it weighed") {
  every_few const sets{3, 0};
  leaves_degrees_out(sets, silent_mean{});
  leaves_degrees_out(sets, silent_gaussian{});
  leaves_degrees_out(sets, kvmeld::merge::gaussian{kvmeld::merge::bandwidth::mean_l2, 5.0f, false});
  leaves_degrees_out(kvmeld::identify::chunked_bipartite<>{4, {}}, kvmeld::merge::similarity_weighted{false});
  leaves_degrees_out(kvmeld::identify::local_span{}, silent_spread{});
}

namespace {

// Counts entries whose part of the step is not that of an entry that stays, then writes what no later round
// may find.
struct suspicious : kvmeld::merge::defaults {
  std::uint32_t* odd;
  std::uint32_t* sets;

  explicit suspicious(std::uint32_t* counts) : odd(counts), sets(counts + 1) {}
  void weigh(kvmeld::wave_ref const& wave, kvmeld::tile const& t, kvmeld::slot_t pivot,
             kvmeld::member_list const& m) const {
    kvmeld::plan_ref const& step = wave.step;
    ++*sets;
    for (std::uint32_t i = 0; i < m.count; ++i) {
      kvmeld::slot_t const s = m.slots[i];
      std::size_t const e = step.at(t.item, s);
      bool const kept = s != pivot || (step.target[e] == s && step.key_weight[e] == 1.0f);
      if (!kept || step.span[e] != 0 || step.value_weight[e] != 1.0f || step.degree_weight[e] != 1.0f) ++*odd;
      step.key_weight[e] = 0.25f;
      step.value_weight[e] = 0.5f;
      step.degree_weight[e] = 2.0f;
    }
  }
};

// Every round merges each second live entry into the one before it.
struct halve {
  static constexpr kvmeld::identify_facts facts{&kvmeld::identify_facts::repeats};
  template <class Round> void admit(Round& round) const {
    round.for_each(round.live() / 2, [&](std::uint32_t i) { round.merge(2 * i + 1, 2 * i); });
  }
};

}  // namespace

TEST_CASE("a round finds no weights of the round before") {
  std::uint32_t counts[2] = {};
  kvmeld::select::sinks_and_recents const nobody{kvmeld::quantity::entries(0), kvmeld::quantity::entries(0)};
  support::dice d(3);
  support::engine_memory<float> memory({1, 1, 1, 1, 4, 4, 256});
  memory.fill_sequence(d, 0, 0, 256, support::texture::clusters);
  auto cache = make_cache(memory, kvmeld::policy{kvmeld::score::none{}, nobody, halve{}, suspicious{counts}},
                          support::with_plan());
  cache.open(0, 256);
  cache.compress({0}, kvmeld::budget::entries(16));
  CHECK(cache.ledger().length[0] == 16);
  CHECK(counts[0] == 0);
  CHECK(counts[1] == 128 + 64 + 32 + 16);
  kvmeld::plan_ref const& plan = cache.current_plan();
  for (std::uint32_t i = 0; i < 256; ++i) {  // each was in a set of each of the four rounds
    CHECK(plan.target[i] == i / 16 * 16);
    CHECK(plan.value_weight[i] == 1.0f / 16);
    CHECK(plan.degree_weight[i] == 16.0f);
  }
}
