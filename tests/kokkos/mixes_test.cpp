// Compositions that no preset has, and keys along tokens, on Kokkos' default execution space.
#include "same_on_all_teams.hpp"

#include "support/compositions.hpp"

namespace mixes_cases {

using kokkos_test::same_on_all_teams;
using lanes_test::row_keys;
using lanes_test::token_keys;

TEST_CASE("consecutive mixes on Kokkos are the host's") {
  support::each_consecutive_mix(same_on_all_teams<token_keys>{kvmeld::shortfall::evict_lowest});
}

TEST_CASE("bipartite mixes on Kokkos are the host's") {
  support::each_bipartite_mix(same_on_all_teams<token_keys>{kvmeld::shortfall::evict_lowest});
}

TEST_CASE("mixes with centres on Kokkos are the host's") {
  support::each_center_mix(same_on_all_teams<token_keys>{});
}

}  // namespace mixes_cases
