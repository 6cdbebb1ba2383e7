// The bodies that the CUDA backend is tested with, on Kokkos' default execution space, with teams of any
// size; and with launches that nobody waits for.
#include "device.hpp"
#include "device/evicting.hpp"
#include "device/merging.hpp"

namespace merging_cases {

namespace {

using space = Kokkos::DefaultExecutionSpace;

template <class Body> void on_all_devices(Body body) {
  for (std::uint32_t lanes : kokkos_test::team_sizes<space>()) {
    CAPTURE(lanes);
    body(kokkos_test::kokkos_device<space>{lanes});
  }
  if (kvmeld::runs_on_host<space>::value) body(kokkos_test::kokkos_device<space, false>{0});
}

}  // namespace

TEST_CASE("evictions on Kokkos are the host's") {
  on_all_devices([](auto const& d) { device_test::evictions(d); });
}

TEST_CASE("merges on Kokkos are the host's") {
  on_all_devices([](auto const& d) { device_test::merges(d); });
}

TEST_CASE("sets ended by gaps, chained or by a threshold are on Kokkos the host's") {
  on_all_devices([](auto const& d) { device_test::sets_otherwise(d); });
}

TEST_CASE("sets by a threshold for each layer are on Kokkos the host's") {
  on_all_devices([](auto const& d) { device_test::thresholds_per_layer(d); });
}

TEST_CASE("rounds that hardly any track needs are made where one does") {
  on_all_devices([](auto const& d) { device_test::unlikely_rounds(d); });
}

TEST_CASE("shared entries on Kokkos are the host's") {
  on_all_devices([](auto const& d) { device_test::shared_entries(d); });
}

TEST_CASE("merges of rows that lie anywhere, of wide rows, and of heads with one plan are the host's") {
  on_all_devices([](auto const& d) { device_test::merges_of_shapes(d); });
}

}  // namespace merging_cases
