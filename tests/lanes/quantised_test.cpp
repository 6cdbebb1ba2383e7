// Rows whose storing needs the whole row: a lane may not clear what another still looks at.
#include <kvmeld/testing/lane_executor.hpp>

#include "layout/tensors.hpp"
#include "scenario.hpp"
#include "support/compositions.hpp"

#include <utility>

namespace quantised_cases {

namespace {

constexpr kvmeld::shape extent{1, 1, 2, 1, 40, 36, 64};

template <class Executor, class Policy>
lanes_test::result merge_quantised(Executor executor, Policy const& policy) {
  layout_test::int8_tensor keys(extent, extent.key_dim), values(extent, extent.value_dim);
  support::dice d(17);
  support::for_tracks(extent, 0, [&](kvmeld::track t) {
    auto const k = support::random_rows(d, 60, extent.key_dim, support::texture::walk);
    auto const v = support::random_rows(d, 60, extent.value_dim, support::texture::noise);
    for (std::uint32_t i = 0; i < 60; ++i) {
      support::put_row(keys.view(), t, i, k[i]);
      support::put_row(values.view(), t, i, v[i]);
    }
  });
  kvmeld::cache_options options{};
  options.extent = extent;
  kvmeld::merged_cache cache{std::move(executor), policy, kvmeld::kv{keys.view(), values.view()}, options};
  cache.open(0, 60);
  cache.compress({0}, kvmeld::budget::entries(20));
  return {keys.bytes(), values.bytes(), support::ledger_bytes(cache), {}, {cache.longest(0)}};
}

}  // namespace

TEST_CASE("rows of int8 with a scale each do not depend on the number of lanes") {
  support::each_chelsea_preset([](char const* name, auto const& policy) {
    CAPTURE(std::string(name));
    auto const host = merge_quantised(kvmeld::host_executor(1, kvmeld::tuning::off), policy);
    CHECK(host.lengths[0] == 20);
    for (std::uint32_t lanes : {1u, 2u, 5u, 8u}) {
      CAPTURE(lanes);
      CHECK(host == merge_quantised(kvmeld::testing::lane_executor(lanes), policy));
    }
  });
}

}  // namespace quantised_cases
