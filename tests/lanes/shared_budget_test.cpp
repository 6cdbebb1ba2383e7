// Tracks that share their budgets make the same bytes on any number of lanes as on the host.
#include <kvmeld/compose/composed.hpp>

#include "scenario.hpp"
#include "support/compositions.hpp"

namespace shared_budget_cases {

using lanes_test::row_keys;
using lanes_test::same_on_all_lanes;

TEST_CASE("shared budgets do not depend on the number of lanes") {
  auto const run = [](char const* name, auto const& p, kvmeld::shortfall fallback) {
    constexpr kvmeld::shape extent{2, 2, 3, 2, 20, 19, 64};
    for (auto over : {kvmeld::budget_scope::layer, kvmeld::budget_scope::all_layers}) {
      lanes_test::sizes_of_life const life{extent, 51, 44, 24, 20, over};
      same_on_all_lanes<row_keys>(name, kvmeld::compose::composed_of(p), fallback, life);
    }
  };
  run("h2o", kvmeld::preset::h2o::defaults(), kvmeld::shortfall::keep);
  run("centroids",
      kvmeld::preset::with_centroids(kvmeld::preset::kvzip::for_budget(kvmeld::quantity::entries(0)), {}),
      kvmeld::shortfall::keep);
  run("cam", kvmeld::preset::cam::over_h2o(), kvmeld::shortfall::evict_lowest);
}

}  // namespace shared_budget_cases
