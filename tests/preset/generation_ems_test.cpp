// Long generations under EMS, shared and collapsed, with every invariant of entries and members at every
// step.
#include <doctest/doctest.h>

#include "support/toy_generation.hpp"

namespace generation_ems_cases {

namespace {

namespace ems = kvmeld::preset::ems;
using kvmeld::quantity;

support::toy_options every(std::uint32_t interval, std::uint32_t members) {
  support::toy_options o;
  o.when = {24, interval};
  o.degrees = support::degree_law::losing;
  o.extent.sequences = 1;
  o.members = members;
  return o;
}

}  // namespace

TEST_CASE("EMS with shared entries for 100,000 tokens") {
  for (std::uint32_t interval : {1u, 8u}) {
    support::toy_options const o = every(interval, ems::members_for(24));
    auto const r = support::generate(ems::shared(quantity::entries(6), 6), o);
    CHECK(r.broken == "");
    CHECK(r.at_step == 0);
    CHECK(r.compressions == (o.steps - 24) / interval);
    CHECK(r.largest_value <= 2.0001);
    CHECK(r.max_members == ems::members_for(24));
    CHECK(r.max_degree > 2);
    MESSAGE("largest degree ", r.max_degree);
  }
}

TEST_CASE("EMS with less room for members than it could use") {
  support::toy_options o = every(3, 17);
  o.steps = support::long_life(20000);
  auto const r = support::generate<kvmeld::float16>(ems::shared(quantity::entries(6), 6, 0.3f, 10), o);
  CHECK(r.broken == "");
  CHECK(r.max_members == 17);
}

TEST_CASE("EMS with collapsed entries for 100,000 tokens") {
  for (std::uint32_t interval : {1u, 8u}) {
    support::toy_options const o = every(interval, 0);
    auto const r = support::generate(ems::collapsed(quantity::entries(6), 6), o);
    CHECK(r.broken == "");
    CHECK(r.at_step == 0);
    CHECK(r.compressions == (o.steps - 24) / interval);
    CHECK(r.largest_value <= 2.0001);
    CHECK(r.max_degree > 2);
    MESSAGE("largest degree ", r.max_degree);
  }
}

}  // namespace generation_ems_cases
