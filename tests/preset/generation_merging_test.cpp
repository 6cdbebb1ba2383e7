// Long generations under Chelsea, KVMerger and KeepKV's composition, with every invariant at every step.
#include <doctest/doctest.h>

#include "support/toy_generation.hpp"

namespace generation_merging_cases {

namespace {

namespace preset = kvmeld::preset;
using kvmeld::quantity;
using support::degree_law;
using support::toy_options;

toy_options every(std::uint32_t interval, degree_law law) {
  toy_options o;
  o.when = {20, interval};
  o.degrees = law;
  return o;
}

}  // namespace

TEST_CASE("Chelsea for 100,000 tokens keeps count of every token") {
  toy_options const o = every(12, degree_law::tokens);
  auto const policy =
      preset::chelsea::with_schedule({0.45, 0.05, 3, 0.05}, quantity::entries(2), quantity::entries(6));
  auto const r = support::generate(policy, o);
  CHECK(r.broken == "");
  CHECK(r.at_step == 0);
  CHECK(r.compressions == (o.steps - 20) / 12);
  CHECK(r.largest_value <= 2.0001);  // centroids
}

TEST_CASE("KVMerger for 100,000 tokens keeps count of every token") {
  toy_options const o = every(10, degree_law::tokens);
  auto const r = support::generate(preset::kvmerger::for_budget(), o);
  CHECK(r.broken == "");
  CHECK(r.at_step == 0);
  CHECK(r.compressions == (o.steps - 20) / 10);
  CHECK(r.largest_value <= 2.0001);
}

TEST_CASE("mass-preserving merging for 50,000 tokens: never more degrees than tokens") {
  toy_options o = every(10, degree_law::mass);
  o.steps = support::long_life(50000);
  o.max_degree = o.steps;
  auto const r = support::generate(preset::keepkv::for_budget(), o);
  CHECK(r.broken == "");
  CHECK(r.compressions == (o.steps - 20) / 10);
  CHECK(r.max_degree > 2);
  CHECK(r.largest_value <= 2.0001);
  MESSAGE("largest degree ", r.max_degree);
}

}  // namespace generation_merging_cases
