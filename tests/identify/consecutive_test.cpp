// consecutive_threshold and evict_rest alone: the sets of a plan against the reference's walk.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "backend/instruction_sets.hpp"
#include "reference/kvmerger.hpp"
#include "reference/samples.hpp"
#include "support/brief.hpp"
#include "support/random_cache.hpp"
#include "support/track_view.hpp"

using kvmeld::quantity;
using support::dice;

namespace {

using by_threshold =
    kvmeld::policy<kvmeld::score::global, kvmeld::select::top,
                   kvmeld::identify::consecutive_threshold<kvmeld::admit::threshold>, kvmeld::merge::average>;
using by_budget = kvmeld::policy<kvmeld::score::global, kvmeld::select::top,
                                 kvmeld::identify::consecutive_threshold<kvmeld::admit::exact_budget>,
                                 kvmeld::merge::average>;

template <class Policy> Policy with_ends(std::uint32_t recents, std::uint32_t heavy) {
  Policy p{};
  p.select = {quantity::entries(0), quantity::entries(recents), quantity::entries(heavy)};
  return p;
}

// Keys at angles in a plane, in degrees.
support::engine_memory<float> at_angles(std::vector<double> const& angles) {
  std::uint32_t const n = static_cast<std::uint32_t>(angles.size());
  support::engine_memory<float> memory({1, 1, 1, 1, 2, 1, n});
  support::rows keys;
  for (double angle : angles) {
    auto const r = reference::at_angle(angle);
    keys.push_back({static_cast<float>(r[0]), static_cast<float>(r[1])});
  }
  memory.fill({0, 0, 0, 0}, 0, keys, support::rows(n, {0}));
  return memory;
}

template <class Policy>
std::vector<std::uint32_t> targets(support::engine_memory<float> memory, Policy const& policy,
                                   std::vector<float> const& scores, std::uint32_t limit) {
  auto cache = make_cache(memory, policy, support::with_plan());
  std::uint32_t const n = static_cast<std::uint32_t>(scores.size());
  cache.open(0, n);
  support::set_scores(cache.ledger(), {0, 0, 0, 0}, scores);
  cache.plan({0}, kvmeld::budget::entries(limit), kvmeld::shortfall::keep);
  return {cache.current_plan().target, cache.current_plan().target + n};
}

}  // namespace

TEST_CASE("a threshold of everything makes one set of the list, opposite rows too, and one of nothing none") {
  using list = std::vector<std::uint32_t>;
  auto const memory = at_angles({0, 180, 90, 90, 200});
  std::vector<float> const scores{1, 2, 9, 3, 4};
  by_threshold p = with_ends<by_threshold>(0, 0);
  float table[1] = {0.5f};
  for (bool by_layer : {false, true}) {  // theta, and the table that calibration fills
    auto const planned = [&](float theta) {
      p.identify.admission.theta = by_layer ? 0.5f : theta;
      table[0] = theta;
      p.identify.admission.per_layer = by_layer ? table : nullptr;
      return targets(memory, p, scores, 1);
    };
    CHECK(planned(kvmeld::admit::everything) == list{2, 2, 2, 2, 2});
    CHECK(planned(-1e30f) == list{2, 2, 2, 2, 2});
    CHECK(planned(kvmeld::admit::nothing) == list{0, 1, 2, 3, 4});
    CHECK(planned(1e30f) == list{0, 1, 2, 3, 4});
  }
}

TEST_CASE("the walk by hand: anchors, gaps, pivots, strictness") {
  using list = std::vector<std::uint32_t>;
  by_threshold p = with_ends<by_threshold>(0, 0);
  p.identify.admission.theta = 0.7071f;  // 45 degrees
  // From 60: 30 joins; 0 is 60 degrees from the fixed anchor, 30 from the chain's. Pivots: the best score,
  // ties low.
  CHECK(targets(at_angles({0, 30, 60}), p, {1, 5, 2}, 2) == list{0, 1, 1});
  p.identify.anchor = kvmeld::identify::anchor_rule::chain;
  CHECK(targets(at_angles({0, 30, 60}), p, {2, 2, 2}, 2) == list{0, 0, 0});
  p.identify.pivot = kvmeld::identify::pivot_rule::newest;
  CHECK(targets(at_angles({0, 30, 60}), p, {9, 2, 2}, 2) == list{2, 2, 2});
  // NaN scores rank lowest, and are pivot where nothing else is.
  float const nan = kvmeld::bits_float(0x7fc00000u);
  p.identify.pivot = kvmeld::identify::pivot_rule::highest_score;
  CHECK(targets(at_angles({0, 0, 0}), p, {nan, -1, nan}, 2) == list{1, 1, 1});
  CHECK(targets(at_angles({0, 0, 0}), p, {nan, nan, nan}, 2) == list{0, 0, 0});

  // Slot 2 is the heavy hitter, slot 4 recent: 0, 1, 3 are one set, or two with the gap.
  by_threshold gap = with_ends<by_threshold>(1, 1);
  CHECK(targets(at_angles({0, 0, 0, 0, 0}), gap, {1, 2, 9, 3, 99}, 4) == list{3, 3, 2, 3, 4});
  gap.identify.break_at_gap = true;
  CHECK(targets(at_angles({0, 0, 0, 0, 0}), gap, {1, 2, 9, 3, 99}, 4) == list{1, 1, 2, 3, 4});

  // Strictly above: cosine 0 does not exceed 0. A cosine of 1 does not exceed 1.
  by_threshold strict = with_ends<by_threshold>(0, 0);
  strict.identify.admission.theta = 0;
  support::engine_memory<float> cross({1, 1, 1, 1, 2, 1, 3});
  cross.fill({0, 0, 0, 0}, 0, {{1, 0}, {0, 1}, {0, 0}}, support::rows(3, {0}));
  CHECK(targets(cross, strict, {0, 0, 0}, 2) == list{0, 1, 2});
  strict.identify.admission.theta = 1;
  CHECK(targets(at_angles({0, 0, 0}), strict, {0, 0, 0}, 2) == list{0, 1, 2});
}

TEST_CASE("an exact budget by hand: the most similar neighbours join, ties to the older") {
  using list = std::vector<std::uint32_t>;
  by_budget p = with_ends<by_budget>(0, 0);
  // Angles 0 50 60 80, down to 3: the lowest theta that leaves three sets lies above cos 30, where 60 joins
  // 80 (20 degrees) and 50 does not (30): {0}, {50}, {60, 80}.
  CHECK(targets(at_angles({0, 50, 60, 80}), p, {1, 1, 2, 1}, 3) == list{0, 1, 2, 2});
  CHECK(targets(at_angles({0, 50, 60, 80}), p, {1, 1, 2, 1}, 1) == list{2, 2, 2, 2});
  // Equal rows are below no theta: only joining separates them, the older boundaries first.
  CHECK(targets(at_angles({7, 7, 7, 7}), p, {4, 3, 2, 1}, 3) == list{0, 0, 2, 3});
  CHECK(targets(at_angles({7, 7, 7, 7}), p, {4, 3, 2, 1}, 2) == list{0, 0, 0, 3});
  // One step of bisection tries theta 0 only: 0 | 105 | 130 200 is 3 sets. For 2 the boundary between the
  // anchors 105 and 200, 95 degrees apart, goes before the one of 105 degrees.
  p.identify.admission.bisections = 1;
  CHECK(targets(at_angles({0, 105, 130, 200}), p, {1, 2, 3, 4}, 3) == list{0, 1, 3, 3});
  CHECK(targets(at_angles({0, 105, 130, 200}), p, {1, 2, 3, 4}, 2) == list{0, 3, 3, 3});
  // A gap that no theta bridges: sets {0, 1}, {3}, and slot 2 protected: 3 entries are the least.
  by_budget gap = with_ends<by_budget>(0, 1);
  gap.identify.break_at_gap = true;
  CHECK(targets(at_angles({0, 0, 0, 0}), gap, {1, 2, 9, 3}, 2) == list{1, 1, 2, 3});
}

TEST_CASE("sets at a threshold are the reference's, for every anchor, pivot and gap") {
  dice d(52);
  support::tally count;
  for (int i = 0; i < 1500; ++i) {
    std::uint32_t const n = d.between(3, 120), dim = d.between(2, 40), limit = d.between(n / 2 + 1, n - 1);
    support::engine_memory<float> memory({1, 1, 1, 1, dim, 1, n});
    constexpr support::texture textures[] = {support::texture::noise, support::texture::walk,
                                             support::texture::clusters};
    memory.fill_sequence(d, 0, 0, n, d.pick(textures));
    std::uint32_t const recents = d.below(n / 4 + 1), heavy = d.below(n / 4 + 1);
    by_threshold p = with_ends<by_threshold>(recents, heavy);
    reference::kvmerger_options o;
    o.recents = recents;
    o.heavies = heavy;
    p.identify.admission.theta = static_cast<float>(1.4 * d.uniform() - 0.4);
    o.theta = static_cast<double>(p.identify.admission.theta);
    p.identify.break_at_gap = o.break_at_gap = d.chance(0.3);
    if (d.chance(0.5))
      p.identify.anchor = kvmeld::identify::anchor_rule::chain, o.anchor = reference::anchor_rule::chain;
    if (d.chance(0.3))
      p.identify.pivot = kvmeld::identify::pivot_rule::newest, o.pivot = reference::pivot_rule::newest;
    std::vector<float> scores(n);
    for (float& x : scores) x = static_cast<float>(d.below(12));  // ties
    auto cache = make_cache(memory, p);
    cache.open(0, n);
    support::set_scores(cache.ledger(), {0, 0, 0, 0}, scores);
    reference::outcome const expected =
        reference::kvmerger(support::read_track(cache.ref(), {0, 0, 0, 0}), o);
    if (expected.margin < 1e-6) {
      ++count.skipped;
      continue;
    }
    ++count.compared;
    auto const got = targets(memory, p, scores, limit);
    CHECK(std::vector<int>(got.begin(), got.end()) == expected.target);
  }
  MESSAGE("compared ", count.compared, " plans, skipped ", count.skipped);
  CHECK(count.compared > 1400);
}

#if !defined(__FAST_MATH__)  // which may round the cosines of the two forms differently
namespace {

// Rows of few small integers: all sums of products are exact, whether multiply and add are fused or not.
// Neighbours are alike, and many rows are equal, zero or no numbers.
support::rows exact_rows(dice& d, std::uint32_t n, std::uint32_t dim) {
  auto const small = [&] { return static_cast<float>(d.between(0, 6)) - 3.0f; };
  bool const often = d.chance(0.5);  // rows that are no numbers
  std::vector<float> base(dim);
  support::rows out(n, base);
  for (auto& row : out) {
    if (d.chance(0.15)) {
      for (float& x : base) x = small();
    }
    row = base;
    for (float& x : row) x = d.chance(0.3) ? small() : x;
    if (d.chance(0.2)) row = base;
    if (d.chance(0.02)) row.assign(dim, 0.0f);
    if (d.chance(often ? 0.05 : 0.001)) row[d.below(dim)] = kvmeld::bits_float(0x7fc00000u);
  }
  return out;
}

template <class T, class Policy>
std::vector<std::uint32_t> planned(kvmeld::host_executor const& executor, support::engine_memory<T>& memory,
                                   Policy const& policy, std::vector<float> const& scores,
                                   std::uint32_t limit, kvmeld::plan_scope scope) {
  kvmeld::cache_options options = support::with_plan();
  options.extent = memory.extent;
  options.scope = scope;
  kvmeld::merged_cache cache{executor, policy, memory.tensors(), options};
  std::uint32_t const n = memory.extent.capacity;
  cache.open(0, n);
  for (std::uint32_t head = 0; head < memory.extent.kv_heads; ++head)
    support::set_scores(cache.ledger(), kvmeld::make_track(memory.extent, 0, 0, head), scores);
  cache.plan({0}, kvmeld::budget::entries(limit), kvmeld::shortfall::keep);
  auto const& p = cache.current_plan();
  return {p.target, p.target + std::size_t{n} * memory.extent.kv_heads};
}

// The plans of all instruction sets are the plan of the generic form.
template <class T, class Policy>
void every_form_agrees(dice& d, std::uint32_t n, std::uint32_t dim, Policy policy) {
  std::uint32_t const heads = d.between(1, 2);
  constexpr char const* orders[] = {"LSHTC", "LSTHC", "LSHCT"};
  support::engine_memory<T> memory({1, 1, heads, 1, dim, 1, n}, d.pick(orders));
  for (std::uint32_t head = 0; head < heads; ++head) {
    memory.fill(kvmeld::make_track(memory.extent, 0, 0, head), 0, exact_rows(d, n, dim),
                support::rows(n, {1}));
  }
  if (d.chance(0.5)) policy.identify.anchor = kvmeld::identify::anchor_rule::chain;
  policy.identify.break_at_gap = d.chance(0.3);
  std::vector<float> scores(n);
  for (float& x : scores) x = static_cast<float>(d.below(12));
  std::uint32_t const limit = d.between(n / 4 + 1, n);
  auto const scope = d.chance(0.3) ? kvmeld::plan_scope::layer : kvmeld::plan_scope::head;
  CAPTURE(n);
  CAPTURE(dim);
  CAPTURE(limit);
  auto const expected =
      planned(kvmeld::host_executor(1, kvmeld::tuning::off), memory, policy, scores, limit, scope);
  for (auto set : instruction_sets()) {
    INFO(kvmeld::name_of(set));
    CHECK(planned(kvmeld::host_executor(1, kvmeld::tuning::on, set), memory, policy, scores, limit, scope) ==
          expected);
  }
}

}  // namespace

TEST_CASE("every instruction set makes the sets of the generic form") {
  dice d(53);
  constexpr std::uint32_t dims[] = {3, 16, 100, 128}, few[] = {3, 16};
  auto const any = [&](std::uint32_t n, std::uint32_t dim) {
    std::uint32_t const recents = d.below(n / 8 + 1), heavy = d.below(n / 8 + 1);
    by_threshold at = with_ends<by_threshold>(recents, heavy);
    by_budget to = with_ends<by_budget>(recents, heavy);
    at.identify.admission.theta = static_cast<float>(1.4 * d.uniform() - 0.4);
    to.identify.admission.bisections = d.between(1, 20);
    every_form_agrees<float>(d, n, dim, at);
    every_form_agrees<float>(d, n, dim, to);
    every_form_agrees<kvmeld::bfloat16>(d, n, dim, to);
  };
  for (std::uint32_t n = 1; n <= 70; ++n) {
    for (std::uint32_t dim : dims) any(n, dim);
  }
  for (int i = 0; i < support::cases(40); ++i) any(d.between(100, 700), d.pick(dims));
  for (int i = 0; i < support::cases(6); ++i)
    any(d.between(6000, 20000), d.pick(few));  // thresholds are foretold
}
#endif

TEST_CASE("none and the zero class: nothing goes, or all that may") {
  kvmeld::select::sinks_and_recents const ends{quantity::entries(1), quantity::entries(2)};
  kvmeld::policy const nothing{kvmeld::score::global{}, ends, kvmeld::identify::none{},
                               kvmeld::merge::drop{}};
  kvmeld::policy const zero{kvmeld::score::global{}, ends, kvmeld::identify::evict_rest{},
                            kvmeld::merge::drop{}};
  auto const fates = [&](auto const& policy, auto... fallback) {
    auto memory = at_angles({0, 10, 20, 30, 40});
    auto cache = make_cache(memory, policy, support::with_plan());
    cache.open(0, 5);
    support::set_scores(cache.ledger(), {0, 0, 0, 0}, {1, 1, 1, 1, 1});
    cache.plan({0}, kvmeld::budget::entries(3), fallback...);
    std::string out;
    for (int i = 0; i < 5; ++i) out += cache.current_plan().fates[i] == kvmeld::fate::drop ? 'd' : 'k';
    return out + std::to_string(cache.warnings(0));
  };
  CHECK(fates(nothing, kvmeld::shortfall::keep) == "kkkkk2");  // warning::budget_unreached
  CHECK(fates(nothing) == "kddkk4");                           // warning::evicted_fallback
  CHECK(fates(zero) == "kddkk0");
}
