// Compositions that no preset has, other storage, and the eviction fallback on several lanes.
#include "scenario.hpp"
#include "support/compositions.hpp"

namespace mixes_cases {

using kvmeld::shortfall;
using lanes_test::same_on_all_lanes;
using lanes_test::token_keys;

TEST_CASE("consecutive mixes do not depend on the number of lanes") {
  support::each_consecutive_mix([](char const* name, auto const& p) {
    same_on_all_lanes<token_keys>(name, p, shortfall::evict_lowest);
  });
}

TEST_CASE("bipartite mixes do not depend on the number of lanes") {
  support::each_bipartite_mix([](char const* name, auto const& p) {
    same_on_all_lanes<token_keys>(name, p, shortfall::evict_lowest);
  });
}

TEST_CASE("Chelsea over keys that run along tokens does not depend on the number of lanes") {
  support::each_chelsea_preset(
      [](char const* name, auto const& p) { same_on_all_lanes<token_keys>(name, p); });
}

}  // namespace mixes_cases
