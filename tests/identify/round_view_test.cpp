// What an identifier sees through a round_view and what becomes of what it merges and drops, against a loop
// over the ledger.
#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing/lane_executor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace round_view_cases {

namespace {

using kvmeld::fate;
using kvmeld::quantity;

// Every second live entry: goes if it is unimportant, else merges into the older neighbour if nothing lies
// between the two.
struct by_rule {
  static constexpr kvmeld::identify_facts facts{&kvmeld::identify_facts::needs_score};
  float enough = 0.5f;
  explicit by_rule(float e) : enough(e) {}

  template <class Round> void admit(Round& round) const {
    round.for_each(round.live() / 2, [&](std::uint32_t pair) {
      std::uint32_t const i = 2 * pair + 1;
      if (round.score(i) < enough && round.position(i) % 3 != 0) return round.drop(i);
      if (round.adjacent(i - 1) && round.degree(i) < 4.0f && round.slot(i) != 40) round.merge(i, i - 1);
    });
  }
};

// What the rule makes of a track: fates and targets by slot.
struct expected {
  std::vector<fate> fates;
  std::vector<kvmeld::slot_t> target;
};
expected follow(kvmeld::ledger_ref const& l, kvmeld::track t, std::vector<float> const& score,
                std::vector<bool> const& bad, std::uint32_t first, std::uint32_t last) {
  std::uint32_t const n = l.length[t.index];
  expected out{std::vector<fate>(n, fate::keep), std::vector<kvmeld::slot_t>(n)};
  std::vector<kvmeld::slot_t> live;
  for (kvmeld::slot_t s = first; s < last; ++s) {
    if (!bad[s]) live.push_back(s);
  }
  for (std::size_t i = 1; i < live.size(); i += 2) {
    kvmeld::slot_t const s = live[i], before = live[i - 1];
    if (score[s] < 0.5f && l.position[l.at(t, s)] % 3 != 0) {
      out.fates[s] = fate::drop;
    } else if (s == before + 1 && l.degree[l.at(t, s)] < 4.0f && s != 40) {
      out.fates[s] = fate::merge;
      out.target[s] = before;
    }
  }
  return out;
}

template <class Executor> void check(Executor executor) {
  kvmeld::shape const s{1, 2, 2, 1, 8, 4, 80};
  support::engine_memory<float> memory(s);
  support::dice d(11);
  kvmeld::policy const policy{
      kvmeld::score::global{},
      kvmeld::select::top{quantity::entries(3), quantity::entries(5), quantity::entries(0)}, by_rule(0.5f),
      kvmeld::merge::average{}};
  kvmeld::cache_options options = support::with_plan();
  options.extent = s;
  kvmeld::merged_cache cache{executor, policy, memory.tensors(), options};
  std::vector<std::vector<float>> scores;
  std::vector<std::vector<bool>> bad;
  for (std::uint32_t q : {0u, 1u}) {
    std::uint32_t const n = 80 - 7 * q;
    memory.fill_sequence(d, q, 0, n, support::texture::noise);
    cache.open(q, n);
    support::for_tracks(s, q, [&](kvmeld::track t) {
      scores.push_back(support::random_scores(d, n));
      support::set_scores(cache.ledger(), t, scores.back());
      bad.emplace_back(n, false);
      for (kvmeld::slot_t i = 0; i < n; ++i) {
        cache.ledger().degree[cache.ledger().at(t, i)] = static_cast<float>(1 + d.below(5));
        bad.back()[i] = d.chance(0.1);
        if (bad.back()[i])
          support::write_row(memory.tensors().keys, t, i, {std::numeric_limits<float>::quiet_NaN()});
      }
    });
  }
  cache.plan({0, 1}, kvmeld::budget::entries(20), kvmeld::shortfall::keep);
  std::size_t merged = 0, dropped = 0;
  for (std::uint32_t item = 0; item < 4; ++item) {
    kvmeld::track const t = cache.planned_work().at(s, item);
    std::uint32_t const n = cache.ledger().length[t.index];
    std::size_t const which = t.sequence * 2 + t.kv_head;
    expected const e = follow(cache.ledger(), t, scores[which], bad[which], 3, n - 5);
    kvmeld::plan_ref const& p = cache.current_plan();
    std::uint32_t kept = 0;
    for (kvmeld::slot_t i = 0; i < n; ++i) {
      CHECK(p.fates[p.at(item, i)] == e.fates[i]);
      if (e.fates[i] == fate::merge) CHECK(p.target[p.at(item, i)] == e.target[i]);
      kept += e.fates[i] == fate::keep;
      merged += e.fates[i] == fate::merge;
      dropped += e.fates[i] == fate::drop;
    }
    CHECK(p.new_length[item] == kept);  // what went was counted
  }
  CHECK(merged > 10);
  CHECK(dropped > 10);
}

// Merges one pair a round until the budget is met.
struct one_by_one {
  static constexpr kvmeld::identify_facts facts{&kvmeld::identify_facts::repeats};
  std::uint32_t max_rounds(std::uint32_t length, std::uint32_t limit) const {
    return length > limit ? length - limit : 0;
  }
  template <class Round> void admit(Round& round) const {
    if (round.team().lane() == 0 && round.excess() != 0 && round.live() > 1)
      round.merge(1 + round.round() % (round.live() - 1), 0);
  }
};

// Reads keys, or keys and values, in `admit`: every odd live entry proposes its more similar neighbour, and
// the best proposals merge.
template <bool Values> struct closer_neighbour {
  static constexpr kvmeld::identify_facts facts = kvmeld::changed_facts(
      kvmeld::identify_facts{&kvmeld::identify_facts::needs_keys, &kvmeld::identify_facts::gives_similarity},
      &kvmeld::identify_facts::needs_values, Values);
  std::uint32_t most;
  explicit closer_neighbour(std::uint32_t m) : most(m) {}

  template <class Round> float alike(Round const& round, std::uint32_t i, std::uint32_t j) const {
    if constexpr (Values) {
      return round.similarity(i, j) * round.value_similarity(i, j);
    } else {
      return round.similarity(i, j);
    }
  }
  template <class Round> void admit(Round& round) const {
    round.for_each(round.live() / 2, [&](std::uint32_t pair) {
      std::uint32_t const i = 2 * pair + 1;
      float const older = alike(round, i, i - 1);
      float const newer = i + 1 < round.live() ? alike(round, i, i + 1) : -2.0f;
      round.propose(i, older >= newer ? i - 1 : i + 1, older >= newer ? older : newer);
    });
    round.merge_best(most);
  }
};

// The cosine of two rows in double precision; of all heads of a layer where heads share a plan.
template <class Rows>
double cosine(Rows const& rows, kvmeld::track t, std::uint32_t heads, kvmeld::slot_t a, kvmeld::slot_t b) {
  reference::row x, y;
  for (std::uint32_t h = 0; h < heads; ++h) {
    kvmeld::track const of{t.index + h, t.layer, t.sequence, t.kv_head + h};
    for (double v : support::read_row(rows, of, a)) x.push_back(v);
    for (double v : support::read_row(rows, of, b)) y.push_back(v);
  }
  return reference::cosine(x, y);
}

template <bool Values, class Executor> void check_rows(Executor executor, bool shared) {
  constexpr std::uint32_t first = 2, last = 67, most = 20;
  kvmeld::shape const s{1, 1, 2, 1, 40, 7, 70};
  support::engine_memory<float> memory(s);
  support::dice d(shared ? 5 : 6);
  memory.fill_sequence(d, 0, 0, 70, support::texture::noise);
  kvmeld::policy const policy{
      kvmeld::score::none{},
      kvmeld::select::sinks_and_recents{quantity::entries(first), quantity::entries(70 - last)},
      closer_neighbour<Values>(most), kvmeld::merge::average{}};
  kvmeld::cache_options options = support::with_plan();
  options.extent = s;
  if (shared) options.scope = kvmeld::plan_scope::layer;
  kvmeld::merged_cache cache{executor, policy, memory.tensors(), options};
  cache.open(0, 70);
  for (std::uint32_t h : {0u, 1u})
    support::write_row(memory.tensors().keys, kvmeld::make_track(s, 0, 0, h), 30,
                       {std::numeric_limits<float>::quiet_NaN()});
  cache.plan({0}, kvmeld::budget::entries(10), kvmeld::shortfall::keep);
  for (std::uint32_t item = 0; item < 2; ++item) {
    kvmeld::track const t = kvmeld::make_track(s, 0, 0, shared ? 0 : item);
    std::vector<kvmeld::slot_t> live;
    for (kvmeld::slot_t i = first; i < last; ++i) {
      if (i != 30) live.push_back(i);
    }
    struct proposal {
      double similarity;
      kvmeld::slot_t from, to;
    };
    std::vector<proposal> all;
    auto const alike = [&](kvmeld::slot_t a, kvmeld::slot_t b) {
      std::uint32_t const heads = shared ? 2 : 1;
      double const of_keys = cosine(memory.tensors().keys, t, heads, a, b);
      return Values ? of_keys * cosine(memory.tensors().values, t, heads, a, b) : of_keys;
    };
    for (std::size_t i = 1; i < live.size(); i += 2) {
      double const older = alike(live[i], live[i - 1]);
      double const newer = i + 1 < live.size() ? alike(live[i], live[i + 1]) : -2.0;
      all.push_back({std::max(older, newer), live[i], older >= newer ? live[i - 1] : live[i + 1]});
    }
    std::sort(all.begin(), all.end(),
              [](auto const& a, auto const& b) { return a.similarity > b.similarity; });
    REQUIRE(all[most - 1].similarity - all[most].similarity > 1e-6);
    std::vector<kvmeld::slot_t> target(70);
    for (kvmeld::slot_t i = 0; i < 70; ++i) target[i] = i;
    for (std::uint32_t n = 0; n < most; ++n) target[all[n].from] = all[n].to;
    kvmeld::plan_ref const& p = cache.current_plan();
    for (kvmeld::slot_t i = 0; i < 70; ++i) {
      CAPTURE(i);
      CHECK((p.fates[p.at(item, i)] == fate::merge) == (target[i] != i));
      if (target[i] != i) CHECK(p.target[p.at(item, i)] == target[i]);
    }
    CHECK(p.new_length[item] == 70 - most);
  }
}

}  // namespace

TEST_CASE("an identifier compares keys and values in admit, and the best of its proposals merge") {
  for (bool shared : {false, true}) {
    CAPTURE(shared);
    check_rows<false>(kvmeld::host_executor(1), shared);
    check_rows<true>(kvmeld::host_executor(1), shared);
    check_rows<false>(kvmeld::testing::lane_executor(4), shared);
    check_rows<true>(kvmeld::testing::lane_executor(4), shared);
  }
}

TEST_CASE("an identifier sees the live entries of a track, and what it merges and drops is counted") {
  check(kvmeld::host_executor(1));
  check(kvmeld::host_executor(3));
  check(kvmeld::testing::lane_executor(4));
}

TEST_CASE("rounds go on while they merge, and tell which round they are") {
  kvmeld::shape const s{1, 1, 1, 1, 4, 4, 40};
  support::engine_memory<float> memory(s);
  support::dice d(2);
  memory.fill_sequence(d, 0, 0, 40, support::texture::noise);
  kvmeld::policy const policy{kvmeld::score::none{},
                              kvmeld::select::sinks_and_recents{quantity::entries(2), quantity::entries(3)},
                              one_by_one{}, kvmeld::merge::degree_weighted{}};
  auto cache = support::make_cache(memory, policy);
  cache.open(0, 40);
  cache.compress({0}, kvmeld::budget::entries(30), kvmeld::shortfall::keep);
  CHECK(cache.length(0, 0, 0) == 30);
  CHECK(cache.rounds(0) == 10);
  CHECK(cache.ref().degree(kvmeld::make_track(s, 0, 0, 0), 2) ==
        11.0f);  // the first live entry has taken ten
  // Round r takes entry 1 + r % (live - 1), of 35 live entries at first.
  std::vector<kvmeld::position_t> live;
  for (kvmeld::position_t p = 2; p < 37; ++p) live.push_back(p);
  for (std::uint32_t r = 0; r < 10; ++r)
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(1 + r % (live.size() - 1)));
  for (std::size_t i = 1; i < live.size(); ++i)
    CHECK(cache.ref().position(kvmeld::make_track(s, 0, 0, 0), static_cast<kvmeld::slot_t>(2 + i)) ==
          live[i]);
}

}  // namespace round_view_cases
