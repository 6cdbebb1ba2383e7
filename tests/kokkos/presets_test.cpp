// Every preset on Kokkos' default execution space.
#include "same_on_all_teams.hpp"

#include "support/compositions.hpp"
#include "support/learned.hpp"

#include <kvmeld/compose/composed.hpp>

namespace presets_cases {

using same = kokkos_test::same_on_all_teams<lanes_test::row_keys>;

TEST_CASE("eviction presets on Kokkos are the host's") { support::each_eviction_preset(same{}); }

TEST_CASE("KVMerger on Kokkos is the host's") { support::each_kvmerger_preset(same{}); }

TEST_CASE("Chelsea on Kokkos is the host's") { support::each_chelsea_preset(same{}); }

TEST_CASE("EMS on Kokkos is the host's") { support::each_ems_preset(same{}); }

TEST_CASE("CaM on Kokkos is the host's") { support::each_cam_preset(same{}); }

TEST_CASE("KeepKV on Kokkos is the host's") { support::each_keepkv_preset(same{}); }

TEST_CASE("learned scores and centroids on Kokkos are the host's") {
  kvmeld::rope_params rope;
  rope.pairing = kvmeld::rope_pairing::interleaved;
  auto const learned =
      kvmeld::preset::learned::with_weights(support::some_weights(lanes_test::short_life.extent), rope);
  same{}("learned", kvmeld::compose::composed_of(learned));
  same{}("learned, centroids", kvmeld::compose::composed_of(kvmeld::preset::with_centroids(learned, rope)));
  support::each_centroid_preset(support::few_types(same{}));
}

TEST_CASE("tracks of several tiles on Kokkos are the host's") {
  same const long_tracks{kvmeld::shortfall::keep, lanes_test::long_life};
  long_tracks("cam", kvmeld::preset::cam::over_h2o());
  long_tracks("kvmerger as printed", kvmeld::preset::kvmerger::paper_50());
}

}  // namespace presets_cases
