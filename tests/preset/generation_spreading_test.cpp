// 100,000 tokens under CaM and Scissorhands, compressed every step or every few, with every invariant at
// every step.
#include <doctest/doctest.h>

#include "support/toy_generation.hpp"

#include <cmath>

namespace generation_spreading_cases {

namespace {

namespace preset = kvmeld::preset;
using support::degree_law;
using support::toy_options;

toy_options every(std::uint32_t interval, degree_law law, double most = 1) {
  toy_options o;
  o.when = {20, interval};
  o.degrees = law;
  o.max_degree = most;
  return o;
}

void holds(support::toy_report const& r, toy_options const& o) {
  CHECK(r.broken == "");
  CHECK(r.at_step == 0);
  // The first at limit + interval tokens, then one every interval.
  CHECK(r.compressions == (o.steps - o.when.limit) / o.when.interval);
}

}  // namespace

TEST_CASE("CaM for 100,000 tokens, every step: degrees stay below e, values within those of tokens") {
  toy_options const o = every(1, degree_law::mass, std::pow(1.1, 10));  // (1 + 1/m)^m with a window of m = 10
  auto const r = support::generate(preset::cam::over_streaming_llm(), o);
  holds(r, o);
  CHECK(r.max_degree > 2);  // it merged
  CHECK(r.largest_value < 2.001);
  MESSAGE("largest degree ", r.max_degree);
}

TEST_CASE("CaM for 100,000 tokens, every eight steps, over H2O, in bfloat16") {
  // Recents 10: an entry is a target of at most ceil(10/8) = 2 compressions of 8 evictions each.
  toy_options const o = every(8, degree_law::mass, 1.8 * 1.8);
  auto const r = support::generate<kvmeld::bfloat16>(preset::cam::over_h2o(), o);
  holds(r, o);
  CHECK(r.max_degree > 2);
  CHECK(r.largest_value < 2.02);
}

TEST_CASE("CaM as printed for 100,000 tokens: degrees stay 1, and values have no bound but float's") {
  toy_options const o = every(1, degree_law::one);
  auto const r = support::generate(preset::cam::as_printed(preset::cam::over_streaming_llm(), 3), o);
  holds(r, o);
  CHECK(r.largest_value > 10);  // what tokens bring is at most 2
  MESSAGE("largest value ", r.largest_value);
}

TEST_CASE("Scissorhands for 100,000 tokens") {
  toy_options const o = every(3, degree_law::one);
  auto const r = support::generate(preset::scissorhands::defaults(), o);
  holds(r, o);
  CHECK(r.largest_value <= 2);
}

}  // namespace generation_spreading_cases
