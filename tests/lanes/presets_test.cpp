// Every preset makes the same bytes of K, V and ledger on any number of lanes as on the host.
#include "scenario.hpp"
#include "support/compositions.hpp"
#include "support/learned.hpp"

namespace presets_cases {

using lanes_test::row_keys;
using lanes_test::same_on_all_lanes;

TEST_CASE("eviction presets do not depend on the number of lanes") {
  support::each_eviction_preset(
      [](char const* name, auto const& p) { same_on_all_lanes<row_keys>(name, p); });
  namespace preset = kvmeld::preset;
  kvmeld::rope_params rope;
  rope.pairing = kvmeld::rope_pairing::half_split;
  auto expecting = preset::expected_attention::with_rope(rope);
  same_on_all_lanes<row_keys>("expected_attention, rotated", expecting);
  expecting.score.keys_rotated = false;
  same_on_all_lanes<row_keys>("expected_attention, keys unrotated", expecting);
  auto by_distance = preset::triattention::with_rope(rope);
  same_on_all_lanes<row_keys>("triattention, rotated", by_distance);
  by_distance.score.keys_rotated = false;
  same_on_all_lanes<row_keys>("triattention, keys unrotated", by_distance);
  auto outputs = preset::dropkv::with_window();
  outputs.score.rope = rope;
  same_on_all_lanes<row_keys>("dropkv, keys unrotated", outputs);
  same_on_all_lanes<row_keys>("leverage before rotation", preset::leverage::with_rope(rope));
  auto const learned =
      preset::learned::with_weights(support::some_weights(lanes_test::short_life.extent), rope);
  same_on_all_lanes<row_keys>("learned", learned);
  same_on_all_lanes<row_keys>("learned, centroids", preset::with_centroids(learned, rope));
  auto compactor = preset::compactor::with_rope(rope);
  compactor.score.chunk = 9;
  same_on_all_lanes<row_keys>("compactor before rotation", compactor);
  kvmeld::select::above const above{0.4f, kvmeld::quantity::entries(1), kvmeld::quantity::entries(3)};
  same_on_all_lanes<row_keys>(
      "what scores enough",
      kvmeld::policy{kvmeld::score::global{}, above, kvmeld::identify::evict_rest{}, kvmeld::merge::drop{}});
  auto matching = preset::attention_matching::for_budget(kvmeld::quantity::entries(3));
  matching.score.kept = {9, kvmeld::reference_sample::last};
  matching.merge.degrees = true;
  same_on_all_lanes<row_keys>("attention_matching, with degrees", matching);
  same_on_all_lanes<row_keys>("leverage by chunk", preset::chunkkv::over(preset::leverage::for_budget(), 6));
  same_on_all_lanes<row_keys>("H2O refined by values", preset::criticalkv::over(preset::h2o::defaults()));
}

TEST_CASE("KVMerger does not depend on the number of lanes") {
  support::each_kvmerger_preset(
      [](char const* name, auto const& p) { same_on_all_lanes<row_keys>(name, p); });
}

TEST_CASE("Chelsea does not depend on the number of lanes") {
  support::each_chelsea_preset([](char const* name, auto const& p) { same_on_all_lanes<row_keys>(name, p); });
  support::each_centroid_preset(
      [](char const* name, auto const& p) { same_on_all_lanes<row_keys>(name, p); });
}

TEST_CASE("CaM does not depend on the number of lanes") {
  support::each_cam_preset([](char const* name, auto const& p) { same_on_all_lanes<row_keys>(name, p); });
}

TEST_CASE("KeepKV does not depend on the number of lanes") {
  support::each_keepkv_preset([](char const* name, auto const& p) { same_on_all_lanes<row_keys>(name, p); });
}

TEST_CASE("tracks of several tiles do not depend on the number of lanes") {
  auto const run = [](char const* name, auto const& p) {
    same_on_all_lanes<row_keys>(name, p, kvmeld::shortfall::keep, lanes_test::long_life);
  };
  run("h2o", kvmeld::preset::h2o::defaults());
  run("cam", kvmeld::preset::cam::over_h2o());
  run("keepkv", kvmeld::preset::keepkv::for_budget());
  run("kvmerger as printed", kvmeld::preset::kvmerger::paper_50());
  run("chelsea", kvmeld::preset::chelsea::with_schedule(support::steep(), kvmeld::quantity::entries(3),
                                                        kvmeld::quantity::entries(5)));
}

}  // namespace presets_cases
