// Compositions that no preset has, keys along tokens, and guarded merging on Kokkos' default execution space.
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

TEST_CASE("certified merging on Kokkos is the host's") {
  using kvmeld::quantity;
  namespace preset = kvmeld::preset;
  kvmeld::guard::certified guard{6.0f, 2.0f};
  guard.value_norm = 9.0f;
  auto const clusters =
      preset::chelsea::with_schedule({0.6, 0.1, 3, 0.3}, quantity::entries(2), quantity::entries(6));
  same_on_all_teams<row_keys>{}("chelsea", preset::chelsea::guarded(guard, clusters));
}

}  // namespace mixes_cases
