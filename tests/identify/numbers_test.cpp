// Rows that are no numbers: they keep their places, draw no edge, are no target, and end consecutive sets.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/instruction_sets.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

using kvmeld::quantity;
using support::dice;

namespace numbers_cases {

namespace {

using list = std::vector<std::uint32_t>;
constexpr kvmeld::track only{0, 0, 0, 0};

float nan() { return kvmeld::bits_float(0x7fc00000u); }
float infinity() { return kvmeld::bits_float(0x7f800000u); }

// One track with a row per letter: x and y are orthogonal keys; K and V are rows whose key or value is no
// number, of x otherwise.
support::engine_memory<float> rows_of(std::string const& letters) {
  std::uint32_t const n = static_cast<std::uint32_t>(letters.size());
  support::engine_memory<float> memory({1, 1, 1, 1, 2, 1, n});
  support::rows keys, values;
  for (char c : letters) {
    keys.push_back({c == 'y' ? 0.0f : c == 'K' ? nan() : 1.0f, c == 'y' ? 1.0f : 0.0f});
    values.push_back({c == 'V' ? infinity() : 1.0f});
  }
  memory.fill(only, 0, keys, values);
  return memory;
}

template <class Policy, class Executor>
auto cache_on(Executor const& executor, support::engine_memory<float>& memory, Policy const& policy,
              std::uint32_t n) {
  kvmeld::cache_options options = support::with_plan();
  options.extent = memory.extent;
  kvmeld::merged_cache cache{executor, policy, memory.tensors(), options};
  cache.open(0, n);
  if constexpr (kvmeld::observation_of<Policy> != kvmeld::observation::none) {
    support::set_scores(cache.ledger(), only, std::vector<float>(n, 1.0f));
  }
  return cache;
}

// Targets of a plan, the same with generic forms and with every instruction set; what compress leaves is what
// the plan keeps.
template <class Policy> list planned(std::string const& letters, Policy const& policy, std::uint32_t limit) {
  CAPTURE(letters);
  std::uint32_t const n = static_cast<std::uint32_t>(letters.size());
  std::vector<kvmeld::host_executor> executors{kvmeld::host_executor(1, kvmeld::tuning::off)};
  for (auto set : instruction_sets()) executors.emplace_back(1, kvmeld::tuning::on, set);
  list found;
  for (auto const& executor : executors) {
    auto memory = rows_of(letters), other = memory;
    auto cache = cache_on(executor, memory, policy, n);
    cache.plan({0}, kvmeld::budget::entries(limit), kvmeld::shortfall::keep);
    kvmeld::plan_ref const& p = cache.current_plan();
    list const targets(p.target, p.target + n);
    if (found.empty()) found = targets;
    CHECK(targets == found);
    std::vector<long> kept;
    for (std::uint32_t i = 0; i < n; ++i) {
      if (p.fates[i] == kvmeld::fate::keep) kept.push_back(i);
    }
    CHECK((cache.warnings(0) & kvmeld::warning::nonfinite_rows) != 0);
    auto whole = cache_on(executor, other, policy, n);
    if (!kvmeld::stated_facts<kvmeld::identify_facts, typename Policy::identify_type>.repeats) {
      whole.compress({0}, kvmeld::budget::entries(limit), kvmeld::shortfall::keep);
      CHECK(support::read_track(whole.ref(), only).position == kept);
    }
  }
  return found;
}

template <class Admit>
using matching = kvmeld::policy<kvmeld::score::none, kvmeld::select::sinks_and_recents,
                                kvmeld::identify::chunked_bipartite<Admit>, kvmeld::merge::average>;
template <class Admit> matching<Admit> in_chunks(std::uint32_t chunk, Admit admit) {
  return {{}, {quantity::entries(0), quantity::entries(0)}, {chunk, admit}, {}};
}

using scanning =
    kvmeld::policy<kvmeld::score::global, kvmeld::select::top,
                   kvmeld::identify::consecutive_threshold<kvmeld::admit::threshold>, kvmeld::merge::average>;
using fitting = kvmeld::policy<kvmeld::score::global, kvmeld::select::top,
                               kvmeld::identify::consecutive_threshold<kvmeld::admit::exact_budget>,
                               kvmeld::merge::average>;
template <class Policy> Policy without_ends() {
  Policy p{};
  p.select = {quantity::entries(0), quantity::entries(0), quantity::entries(0)};
  return p;
}

}  // namespace

TEST_CASE("a row that is no number keeps its place in a chunk") {
  for (std::string const no : {"K", "V"}) {
    CAPTURE(no);
    // A is slots 0, 2, 4 and B is 1, 3, 5 whatever they hold: the first x finds the x in slot 3.
    auto const one = in_chunks(256, kvmeld::admit::exact_budget{});
    CHECK(planned("x" + no + "yxyx", one, 5) == list{3, 1, 2, 3, 4, 5});
    // Half of six places are three merges, though five are numbers.
    auto const half = in_chunks(256, kvmeld::admit::top_share{{0.5, 0, 0, 0.5}});
    CHECK(planned("x" + no + "xxxx", half, 1) == list{3, 1, 3, 3, 3, 5});
    // As a source it draws no edge.
    CHECK(planned("xx" + no + "xxx", half, 1) == list{1, 1, 2, 3, 1, 5});
    // Chunks begin where they would without it, and one whose targets all are no numbers has no edge.
    CHECK(planned("x" + no + "xxxx", in_chunks(2, kvmeld::admit::exact_budget{}), 1) ==
          list{0, 1, 3, 3, 5, 5});
    CHECK(planned("x" + no + "x" + no + "xx", in_chunks(4, kvmeld::admit::exact_budget{}), 1) ==
          list{0, 1, 2, 3, 5, 5});
    // Nothing at all to merge.
    CHECK(planned("x" + no, one, 1) == list{0, 1});
    CHECK(planned(no + "x", one, 1) == list{0, 1});
    CHECK(planned(no + no + no, one, 1) == list{0, 1, 2});
  }
}

TEST_CASE("a later round finds a row that is no number in its new place") {
  // Round one: A is 0, 2, 4, and 0 and 4 go to the x in 3 and 5 (2 is no number). Left are slots 1, 2, 3, 5:
  // A is 1 and 3, B is 2, which is no number, and 5.
  auto memory = rows_of("xxKxxx");
  auto policy = in_chunks(2, kvmeld::admit::exact_budget{});
  auto cache = cache_on(kvmeld::host_executor(1), memory, policy, 6);
  cache.compress({0}, kvmeld::budget::entries(3));
  CHECK(cache.rounds(0) == 2);
  CHECK(support::read_track(cache.ref(), only).position == std::vector<long>{1, 2, 5});
  CHECK(support::read_track(cache.ref(), only).degree == std::vector<double>{2, 1, 3});
  // Two entries that no edge joins are what can be left: above the budget, and said so.
  auto other = rows_of("xKxKxK");
  auto stuck = cache_on(kvmeld::host_executor(1), other, policy, 6);
  stuck.compress({0}, kvmeld::budget::entries(5), kvmeld::shortfall::keep);
  CHECK(stuck.longest(0) == 6);
  CHECK(stuck.warnings(0) == (kvmeld::warning::nonfinite_rows | kvmeld::warning::budget_unreached));
  stuck.compress({0}, kvmeld::budget::entries(5));
  CHECK(stuck.longest(0) == 5);
}

TEST_CASE("a row that is no number ends a set") {
  auto const given = without_ends<scanning>();
  for (std::string const no : {"K", "V"}) {
    CAPTURE(no);
    CHECK(planned("xx" + no + "xx", given, 4) == list{0, 0, 2, 3, 3});
    CHECK(planned("x" + no + no + "xx" + no, given, 4) == list{0, 1, 2, 3, 3, 5});
    CHECK(planned("xx" + no + "yyxx", given, 4) == list{0, 0, 2, 3, 3, 5, 5});
    auto chain = given;
    chain.identify.anchor = kvmeld::identify::anchor_rule::chain;
    CHECK(planned("xx" + no + "xx", chain, 4) == list{0, 0, 2, 3, 3});
    // Whatever the budget: sets on its two sides never join.
    auto const exact = without_ends<fitting>();
    CHECK(planned("xx" + no + "xx", exact, 3) == list{0, 0, 2, 3, 3});
    CHECK(planned("xx" + no + "xx", exact, 1) == list{0, 0, 2, 3, 3});
    CHECK(planned("xy" + no + "xx", exact, 4) == list{0, 1, 2, 3, 3});
    CHECK(planned("xy" + no + "xx", exact, 3) == list{0, 0, 2, 3, 3});
  }
}

namespace {

// A part of one's own that reads keys and only evicts: what is least like the mean of the keys goes.
struct evict_unlike {
  static constexpr char const* name = "evict_unlike";
  static constexpr kvmeld::identify_facts facts =
      kvmeld::changed_facts(kvmeld::identify_facts{&kvmeld::identify_facts::needs_keys},
                            &kvmeld::identify_facts::makes_sets, false);
  std::uint32_t tiles(kvmeld::shape const&) const { return 1; }
  std::size_t scratch_bytes(kvmeld::shape const& s, int) const {
    return 2 * kvmeld::scratch_size(s.key_dim * sizeof(float));
  }
  template <class Team, class Keys> void propose(kvmeld::proposal_tile<Team, Keys> const& tile) const {
    Team const& team = tile.team();
    std::uint32_t const d = tile.rows().channels(), n = tile.state().live_count;
    float* const mean = team.template scratch<float>(d);
    float* const row = team.template scratch<float>(d);
    team.for_each(d, [&](std::uint32_t c) { mean[c] = 0.0f; });
    for (std::uint32_t i = 0; i < 2 * n; ++i) {
      kvmeld::slot_t const s = tile.live()[i % n];
      tile.rows().load_tile(team, tile.where(), s, 1, 0, d, row, d);
      team.sync();
      if (i < n) {
        team.for_each(d, [&](std::uint32_t c) { mean[c] += row[c]; });
      } else if (team.lane() == 0) {
        tile.candidates()[i - n] = {kvmeld::order_key(-kvmeld::dot(mean, row, d)), s, s};
      }
      team.sync();
    }
  }
  template <class Round> void admit(Round& round) const {
    kvmeld::select_k(
        round.team(), round.live(), round.excess(),
        [&](std::uint32_t i) { return round.candidates()[i].key; }, [&](std::uint32_t i) { round.drop(i); });
  }
};

}  // namespace

TEST_CASE("rows are looked at wherever a part reads them, whether it makes sets or only evicts") {
  kvmeld::policy const policy{kvmeld::score::none{},
                              kvmeld::select::sinks_and_recents{quantity::entries(4), quantity::entries(2)},
                              evict_unlike{}, kvmeld::merge::drop{}};
  for (bool poisoned : {false, true}) {
    CAPTURE(poisoned);
    dice d(77);
    support::engine_memory<float> memory({1, 1, 2, 1, 8, 4, 60});
    memory.fill_sequence(d, 0, 0, 60, support::texture::walk);
    kvmeld::track const second = kvmeld::make_track(memory.extent, 0, 0, 1);
    if (poisoned) support::write_row(memory.tensors().keys, second, 20, {nan()});
    auto other = memory;
    auto cache = cache_on(kvmeld::host_executor(1), memory, policy, 60);
    cache.compress({0}, kvmeld::budget::entries(20));
    for (std::uint32_t head : {0u, 1u}) CHECK(cache.length(0, 0, head) == 20);
    CHECK(cache.warnings(0) == (poisoned ? kvmeld::warning::nonfinite_rows : kvmeld::warning::none));
    auto const left = support::read_track(cache.ref(), second).position;
    CHECK((std::count(left.begin(), left.end(), 20) == 1 || !poisoned));
    auto stepwise = cache_on(kvmeld::host_executor(1), other, policy, 60);
    stepwise.plan({0}, kvmeld::budget::entries(20));
    stepwise.apply();
    CHECK(support::read_track(stepwise.ref(), second).position == left);
    CHECK(stepwise.warnings(0) == cache.warnings(0));
  }
}

}  // namespace numbers_cases
