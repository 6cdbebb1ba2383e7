// KVMerger's sets on teams made of warps: whole lives beside the host's generic ones, sets longer than what
// an entry looks back at once, and the thresholds that several bisections may ask for.
#include <kvmeld/backend/warps/consecutive.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "scenario.hpp"
#include "support/compositions.hpp"
#include "support/warp_executor.hpp"

namespace warps_consecutive_cases {

namespace {

using rows = support::rows;

// Which entries a plan merges into which, and with what weights.
struct planned {
  std::vector<std::uint32_t> targets;
  std::vector<float> weights;  // of keys, values and degrees
};

template <class T, class Executor, class Policy>
planned plan_on(Executor executor, Policy const& policy, support::engine_memory<T> memory,
                std::uint32_t length, std::uint32_t budget) {
  kvmeld::cache_options options = support::with_plan();
  options.extent = memory.extent;
  kvmeld::merged_cache cache{std::move(executor), policy, memory.tensors(), options};
  cache.open(0, length);
  std::vector<float> p(length);
  support::dice d(length);
  for (float& y : p) y = static_cast<float>(d.uniform());
  cache.observe_rows({0, 0, 1}, kvmeld::rows_by_head<float const>(p.data(), 1, 1, length));
  REQUIRE(cache.plan({0}, kvmeld::budget::entries(budget)).ok());
  kvmeld::plan_ref const& plan = cache.current_plan();
  planned out;
  for (std::uint32_t i = 0; i < length; ++i) {
    out.targets.push_back(plan.target[i]);
    out.weights.insert(out.weights.end(), {plan.key_weight[i], plan.value_weight[i], plan.degree_weight[i]});
  }
  return out;
}

// One track with these keys.
template <class T> support::engine_memory<T> one_track(rows const& keys) {
  auto const length = static_cast<std::uint32_t>(keys.size());
  support::engine_memory<T> memory({1, 1, 1, 1, static_cast<std::uint32_t>(keys[0].size()), 4, length + 3});
  memory.fill(kvmeld::make_track(memory.extent, 0, 0, 0), 0, keys, rows(length, std::vector<float>(4, 1.0f)));
  return memory;
}

template <class Policy>
void same_sets(Policy const& policy, rows const& keys, std::uint32_t budget, bool replaced = true) {
  auto const length = static_cast<std::uint32_t>(keys.size());
  auto const memory = one_track<kvmeld::float16>(keys);
  auto const host = plan_on(kvmeld::host_executor(1, kvmeld::tuning::off), policy, memory, length, budget);
  std::uint32_t const warps = 1 + length % 2;
  CAPTURE(warps);
  support::warp_executor const executor(warps);
  auto const got = plan_on(executor, policy, memory, length, budget);
  CHECK(got.targets == host.targets);
  CHECK(executor.tuned_launches() == (replaced ? 2 : 1));  // weights are always
  float far = 0.0f;
  for (std::size_t i = 0; i < got.weights.size(); ++i)
    far = std::max(far, std::abs(got.weights[i] - host.weights[i]));
  CHECK(far < 2e-5f);
}

struct storage {
  using key_type = kvmeld::bfloat16;
  using value_type = float;
  static auto view(kvmeld::bfloat16* k, float* v, kvmeld::shape const& s) {
    return kvmeld::kv{kvmeld::strided<kvmeld::bfloat16>(k, "LSHTC", s, s.key_dim),
                      kvmeld::strided<float>(v, "LSTHC", s, s.value_dim)};
  }
};

kvmeld::preset::kvmerger::type scanning(bool break_at_gap = false) {
  auto p = kvmeld::preset::kvmerger::for_budget(kvmeld::quantity::entries(5), kvmeld::quantity::entries(8));
  p.identify.break_at_gap = break_at_gap;
  return p;
}

// Stretches of rows that resemble each other, of the given lengths.
rows stretches(support::dice& d, std::vector<std::uint32_t> const& lengths, std::uint32_t dim,
               double spread) {
  rows out;
  for (std::uint32_t n : lengths) {
    std::vector<float> centre(dim);
    for (float& x : centre) x = static_cast<float>(d.normal());
    for (std::uint32_t i = 0; i < n; ++i) {
      std::vector<float> row = centre;
      for (float& x : row) x += static_cast<float>(spread * d.normal());
      out.push_back(row);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("consecutive sets on warps are the host's") {
  support::dice d(31);
  for (std::uint32_t n : {2u, 3u, 17u, 300u}) {
    CAPTURE(n);
    rows const keys = support::random_rows(d, n + 13, d.between(9, 40), support::texture::walk);
    for (bool gaps : {false, true}) same_sets(scanning(gaps), keys, 14 + n / 3);
  }
}

TEST_CASE("sets longer than the window are looked at to their end") {
  support::dice d(32);
  same_sets(scanning(), stretches(d, {200, 3, 1, 120, 49, 48, 50, 7}, 24, 0.15), 40);
  same_sets(scanning(true), stretches(d, {150, 60, 97}, 24, 0.1), 120);
  same_sets(scanning(), rows(230, std::vector<float>(8, 1.0f)), 60);   // all the same
  same_sets(scanning(), rows(900, std::vector<float>(8, 1.0f)), 200);  // over many segments
  rows some = stretches(d, {100, 100}, 16, 0.1);
  for (std::uint32_t i : {0u, 50u, 199u}) some[i].assign(16, 0.0f);  // cosines of zero rows are 0
  same_sets(scanning(), some, 30);
}

TEST_CASE("one threshold, and any number of bisections") {
  support::dice d(33);
  rows const keys = support::random_rows(d, 260, 20, support::texture::walk);
  for (std::uint32_t bisections : {1u, 3u, 4u, 7u, 24u}) {
    CAPTURE(bisections);
    auto p = scanning();
    p.identify.admission.bisections = bisections;
    same_sets(p, keys, 90);
  }
  auto paper = kvmeld::preset::kvmerger::paper_50();
  for (float theta : {-1.0f, 0.5f, 0.75f, 0.99f}) {
    CAPTURE(theta);
    paper.identify.admission.theta = theta;
    same_sets(paper, keys, 90);
  }
  auto chain = scanning();
  chain.identify.anchor = kvmeld::identify::anchor_rule::chain;
  same_sets(chain, support::random_rows(d, 60, 20, support::texture::walk), 30, false);
}

TEST_CASE("the thresholds of a pass are those of bisections in turn") {
  using bracket = kvmeld::identify::scan_bracket;
  support::dice d(34);
  for (int i = 0; i < 50; ++i) {
    bracket const start{static_cast<float>(d.uniform() - 1), static_cast<float>(d.uniform())};
    CHECK(kvmeld::tuned_form::pass_threshold(start, kvmeld::tuned_form::upper_end) == start.high);
    bracket now = start;
    std::uint32_t node = 1;
    for (int step = 0; step < 4; ++step) {
      float const middle = 0.5f * (now.low + now.high);
      CHECK(kvmeld::tuned_form::pass_threshold(start, node - 1) == middle);
      bool const upper = d.chance(0.5);
      (upper ? now.low : now.high) = middle;
      node = 2 * node + (upper ? 1 : 0);
    }
  }
}

TEST_CASE("kvmerger on warps is the host's") {
  constexpr lanes_test::sizes_of_life life{{1, 2, 2, 1, 24, 19, 200}, 190, 44, 70, 40};
  auto const fallback = kvmeld::shortfall::keep;
  auto const policy = kvmeld::preset::kvmerger::for_budget();
  auto const host =
      lanes_test::play<storage>(kvmeld::host_executor(1, kvmeld::tuning::off), policy, fallback, life);
  auto const got = lanes_test::play<storage>(support::warp_executor(2), policy, fallback, life);
  CHECK(got.lengths == host.lengths);
  CHECK(got.ledger == host.ledger);  // rows may differ by the rounding of their weights
}

TEST_CASE_TEMPLATE("gaussian weights on warps are the host's", T, float, kvmeld::bfloat16) {
  support::dice d(35);
  auto policy = kvmeld::preset::kvmerger::paper_50();
  policy.identify.admission.theta = 0.3f;
  policy.identify.anchor = kvmeld::identify::anchor_rule::chain;  // the same sets in every form
  for (std::uint32_t dim : {1u, 7u, 64u, 300u}) {
    CAPTURE(dim);
    for (auto sigma : {kvmeld::merge::bandwidth::mean_l2, kvmeld::merge::bandwidth::eq7_000,
                       kvmeld::merge::bandwidth::fixed}) {
      policy.merge.sigma = sigma;
      policy.merge.fixed_sigma = 0.6f;
      policy.merge.degrees = sigma == kvmeld::merge::bandwidth::fixed;
      policy.merge.scale_values_by_set_size = sigma == kvmeld::merge::bandwidth::eq7_000;
      rows const keys = stretches(d, {70, 3, 32, 1, 33, 20}, dim, 0.1);
      auto const length = static_cast<std::uint32_t>(keys.size());
      auto const memory = one_track<T>(keys);
      auto const host = plan_on(kvmeld::host_executor(1, kvmeld::tuning::off), policy, memory, length, 60);
      support::warp_executor const executor(1);
      auto const got = plan_on(executor, policy, memory, length, 60);
      CHECK(executor.tuned_launches() == 1);
      REQUIRE(got.targets == host.targets);
      for (std::size_t i = 0; i < got.weights.size(); ++i)
        CHECK(got.weights[i] == doctest::Approx(host.weights[i]).epsilon(1e-5));
    }
  }
}

}  // namespace warps_consecutive_cases
