// The check of refusals: it passes what follows the rule, finds what does not, and sees what is thrown.
#include <kvmeld/core/error.hpp>

#include <string>

#include <doctest/doctest.h>

#include "support/refusal_rule.hpp"

namespace refusal_rule_cases {

TEST_CASE("texts that follow the rule") {
  for (char const* good : {
           "append: counts[1] is 9; it must be at most 4, the free entries of sequence 0",
           "merged_cache: keys: tiled: width is 0; it must be at least 1",
           "observe: sequence is 7; it must be 0 to 2",
           "policy: admit::threshold.theta is nan; it must be -1 to 1, a cosine",
           "shift: offset is -9; it must be at least -4, because track (layer 0, sequence 0, head 0) holds "
           "position 4",
       }) {
    CAPTURE(std::string(good));
    CHECK(support::broken_rule(good).empty());
  }
  CHECK(support::broken_rule(kvmeld::refusal("call", "argument", 0xffffffffu, "at most ", 4.0)).empty());
}

TEST_CASE("texts that break it") {
  for (char const* bad : {
           "append: sequence is 7; allowed are 0 to 2",
           "append: sequence 7 is not open; open it first",
           "append: count is 7; it must be 0 to -1",
           "append: count is 7; it must be 0 to 4294967295",
           "append: count is 7; it must be 5 to 3",
           "allot: ratio is 0; it must be 0.5, the floor, to 0.25",
           "shape: tracks is 4.29497e+09; it must be at most 5",
           "shape: tracks is 5; it must be at most 1e+06",
           "append: count is 7; it must be at most -1",
           "append: count is 7; it must be less than 0",
           "append: count is 7; it must be what is allowed",
           "append: count is 7; it must be 3.",
           "append: count is 7; it must be ",
           "count is 7; it must be 3",
           "append: count 7; it must be 3",
           "",
       }) {
    CAPTURE(std::string(bad));
    CHECK_FALSE(support::broken_rule(bad).empty());
  }
}

TEST_CASE("every refusal that a test meets is held against the rule") {
  auto const before = support::refusals_met();
  CHECK_THROWS_AS((void)kvmeld::raise(kvmeld::refusal("call", "argument", 1, "2")), kvmeld::invalid_argument);
  CHECK(support::refusals_met() == before + 1);
}

}  // namespace refusal_rule_cases
