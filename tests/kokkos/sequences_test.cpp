// What sequences live through, on Kokkos' default execution space, as if it were a device.
#include "device.hpp"
#include "device/sequences.hpp"

namespace sequences_cases {

using device = kokkos_test::kokkos_device<Kokkos::DefaultExecutionSpace, false>;

TEST_CASE("a ledger in pages") { device_test::ledgers_in_pages(device{}); }
TEST_CASE("scores that the engine brings") { device_test::given_scores(device{}); }

TEST_CASE("beginnings that sequences share are on Kokkos as on the host") {
  device_test::shared_beginnings(device{});
}

TEST_CASE("a context shifted on Kokkos is the host's") { device_test::shifts(device{}); }

TEST_CASE("positions dropped on Kokkos are the host's") { device_test::dropped_positions(device{}); }

TEST_CASE("padded tracks on Kokkos are the host's") { device_test::padded_tracks(device{}); }

TEST_CASE("notes of pages on Kokkos are the host's") { device_test::pages(device{}); }

TEST_CASE("tracks of no length, of one entry and full ones on Kokkos are the host's") {
  device_test::extremes(device{});
}

TEST_CASE("nothing is written beyond a track on Kokkos") { device_test::overfull_tracks(device{}); }

}  // namespace sequences_cases
