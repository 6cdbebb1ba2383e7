// Scores from queries, and merges that follow them, on Kokkos' default execution space.
#include "device.hpp"
#include "device/merging.hpp"
#include "device/observing.hpp"
#include "device/shared_scores.hpp"

namespace observing_cases {

using device = kokkos_test::kokkos_device<Kokkos::DefaultExecutionSpace>;

TEST_CASE("observed scores on Kokkos are the host's") {
  for (std::uint32_t lanes : kokkos_test::team_sizes<Kokkos::DefaultExecutionSpace>()) {
    device_test::observed_scores(device{lanes});
  }
}

TEST_CASE("merges that follow observed thresholds on Kokkos are the host's") {
  for (std::uint32_t lanes : kokkos_test::team_sizes<Kokkos::DefaultExecutionSpace>()) {
    device_test::observed_merges(device{lanes});
  }
}

TEST_CASE("scores of members on Kokkos are the host's") { device_test::scores_of_members(device{}); }

}  // namespace observing_cases
