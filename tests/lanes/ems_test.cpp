// EMS and its relatives make the same bytes of K, V, ledger and members on any number of lanes as on the
// host.
#include <kvmeld/testing/lane_executor.hpp>

#include "scenario.hpp"
#include "support/compositions.hpp"

#include <utility>

namespace ems_cases {

using lanes_test::row_keys;
using lanes_test::same_on_all_lanes;
using lanes_test::token_keys;

TEST_CASE("EMS does not depend on the number of lanes") {
  support::each_ems_preset([](char const* name, auto const& p) { same_on_all_lanes<row_keys>(name, p); });
}

TEST_CASE("mixes with centres do not depend on the number of lanes") {
  support::each_center_mix([](char const* name, auto const& p) { same_on_all_lanes<token_keys>(name, p); });
}

TEST_CASE("EMS over several tiles does not depend on the number of lanes") {
  same_on_all_lanes<row_keys>("ems", kvmeld::preset::ems::shared(kvmeld::quantity::entries(20), 20, 0.05f),
                              kvmeld::shortfall::keep, lanes_test::long_life);
}

namespace {

constexpr kvmeld::shape extent{1, 2, 2, 3, 16, 16, 90};
constexpr std::uint32_t members = 100;

// A merged cache attended to and observed in every form: from rows, and from queries with rotated keys.
template <class Executor>
std::pair<support::byte_list, support::byte_list> observe_members(Executor executor) {
  support::dice d(41);
  lanes_test::world<row_keys> w(extent);
  kvmeld::cache_options options{};
  options.extent = extent;
  options.members = members;
  auto const policy = kvmeld::preset::ems::shared(kvmeld::quantity::entries(5), 5, 0.01f);
  kvmeld::merged_cache cache{std::move(executor), policy, w.tensors(), options};
  std::vector<std::uint32_t> const slots{1, 0}, counts{12, 7};
  std::vector<float> rows(2 * 12 * extent.query_heads() * (extent.capacity + members)),
      q(2 * 12 * extent.query_heads() * 16), out(q.size()), lse(2 * 12 * extent.query_heads());
  for (std::uint32_t sequence : {0u, 1u}) {
    w.write(d, sequence, 0, 90 - sequence);
    cache.open(sequence, 90 - sequence);
  }
  support::byte_list outputs;
  for (int times = 0; times < 3; ++times) {
    for (float& x : rows) x = static_cast<float>(d.uniform());
    for (float& x : q) x = static_cast<float>(d.normal());
    cache.observe_rows(
        {0, slots, counts},
        kvmeld::rows_by_head<float const>(rows.data(), 12, extent.query_heads(), extent.capacity + members));
    cache.compress({0, 1}, kvmeld::budget::entries(70 - 20 * static_cast<std::uint32_t>(times)));
    kvmeld::attention_params params;
    params.window = times == 1 ? 60 : 0;
    params.rope.pairing = times == 0 ? kvmeld::rope_pairing::none : kvmeld::rope_pairing::interleaved;
    auto const queries = kvmeld::rows_by_token<float const>(q.data(), 12, extent.query_heads(), 16);
    kvmeld::attention::attend(cache.executor(), {0, slots, counts}, queries, cache.ref(),
                              kvmeld::rows_by_token(out.data(), 12, extent.query_heads(), 16),
                              kvmeld::rows_by_head(lse.data(), 12, extent.query_heads(), 1), params);
    cache.observe({0, slots, counts}, queries,
                  kvmeld::rows_by_head<float const>(lse.data(), 12, extent.query_heads(), 1), params);
    for (auto const& part : {support::bytes_of(out), support::bytes_of(lse)})
      outputs.insert(outputs.end(), part.begin(), part.end());
  }
  CHECK(cache.ref().tokens(kvmeld::make_track(extent, 0, 0, 1)) > 70);
  return {support::ledger_bytes(cache), outputs};
}

}  // namespace

TEST_CASE("scores of members, and attention to them, do not depend on the number of lanes") {
  auto const host = observe_members(kvmeld::host_executor(1, kvmeld::tuning::off));
  for (std::uint32_t lanes : {1u, 2u, 5u, 8u}) {
    CAPTURE(lanes);
    CHECK(host == observe_members(kvmeld::testing::lane_executor(lanes)));
  }
}

}  // namespace ems_cases
