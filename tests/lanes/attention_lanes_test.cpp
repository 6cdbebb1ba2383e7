// Scores from rows, and the written bias, on any number of lanes. (`attend` and scores from queries are part
// of every scenario.)
#include <kvmeld/testing/lane_executor.hpp>

#include "scenario.hpp"
#include "support/compositions.hpp"

#include <utility>

namespace attention_lanes_cases {

namespace {

constexpr kvmeld::shape extent{2, 2, 2, 3, 16, 16, 150};

struct outputs {
  support::byte_list ledger, bias, bias_half, figures;
};
bool operator==(outputs const& a, outputs const& b) {
  return a.figures == b.figures && a.ledger == b.ledger && a.bias == b.bias && a.bias_half == b.bias_half;
}

// Probabilities as an engine would hand them over, in two blocks, then merging and the bias.
template <class Executor, class Policy> outputs feed_rows(Executor executor, Policy const& policy) {
  support::dice d(11);
  lanes_test::world<lanes_test::row_keys> w(extent);
  w.write(d, 0, 0, 140);
  w.write(d, 1, 0, 90);
  kvmeld::cache_options options{};
  options.extent = extent;
  options.stats = true;
  kvmeld::merged_cache cache{std::move(executor), policy, w.tensors(), options};
  cache.open(0, 140);
  cache.open(1, 90);
  std::vector<std::uint32_t> const slots{1, 0};
  for (std::vector<std::uint32_t> const& counts : {std::vector<std::uint32_t>{9, 30}, {2, 0}}) {
    std::vector<float> rows(2 * 30 * extent.query_heads() * extent.capacity);
    for (float& x : rows) x = static_cast<float>(d.uniform());
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      cache.observe_rows({layer, slots, counts}, kvmeld::rows_by_head<float const>(
                                                     rows.data(), 30, extent.query_heads(), extent.capacity));
    }
  }
  cache.compress({0}, kvmeld::budget::entries(60));
  cache.request_stats(slots);
  std::vector<kvmeld::cache_stats> figures;
  for (std::uint32_t slot : slots) {
    support::for_tracks(extent, slot, [&](kvmeld::track t) {
      figures.push_back(cache.stats(t.layer, slot, t.kv_head));
      CHECK(figures.back().mass_retained > (slot == 0 ? 0.1f : 0.99f));
      CHECK(figures.back().merged + figures.back().dropped == (slot == 0 ? 80u : 0u));
    });
  }
  std::vector<float> bias(2 * extent.query_heads() * extent.capacity);
  std::vector<kvmeld::float16> bias_half(2 * extent.kv_heads * extent.capacity);
  kvmeld::attention::write_log_degree(
      cache.executor(), cache.ref(), 1, slots,
      kvmeld::rows_by_head(bias.data(), 1, extent.query_heads(), extent.capacity),
      extent.queries_per_kv_head);
  kvmeld::attention::write_log_degree(
      cache.executor(), cache.ref(), 0, slots,
      kvmeld::rows_by_head(bias_half.data(), 1, extent.kv_heads, extent.capacity));
  return {support::ledger_bytes(cache), support::bytes_of(bias), support::bytes_of(bias_half),
          support::bytes_of(figures)};
}

}  // namespace

TEST_CASE("scores from rows and the written bias do not depend on the number of lanes") {
  auto const compare = [](auto const& policy) {
    outputs const host = feed_rows(kvmeld::host_executor(1, kvmeld::tuning::off), policy);
    for (std::uint32_t lanes : {1u, 2u, 5u, 8u}) {
      CAPTURE(lanes);
      CHECK(host == feed_rows(kvmeld::testing::lane_executor(lanes), policy));
    }
  };
  using namespace kvmeld;
  compare(preset::snapkv::with_window(10));
  compare(policy{score::global{},
                 select::top{quantity::entries(0), quantity::of_budget(0.5), quantity::of_budget(0.25)},
                 identify::chunked_bipartite<admit::exact_budget>{}, merge::degree_weighted{}});
}

namespace {

// Attention and observation with every option, in the middle of a long text.
template <class Executor> support::byte_list every_option(Executor executor) {
  support::dice d(12);
  lanes_test::world<lanes_test::token_keys> w(extent);
  w.write(d, 0, 0, 150);
  w.write(d, 1, 0, 150);
  kvmeld::cache_options options{};
  options.extent = extent;
  kvmeld::merged_cache cache{std::move(executor), kvmeld::preset::h2o::defaults(), w.tensors(), options};
  cache.open(0, 140);
  cache.open(1, 90);
  std::vector<float> sinks(extent.query_heads(), 0.5f);
  kvmeld::attention_params params;
  params.softcap = 3;
  params.sink = sinks.data();
  params.rope.pairing = kvmeld::rope_pairing::interleaved;
  params.rope.rotary_dim = 10;
  std::vector<std::uint32_t> const slots{1, 0}, counts{3, 20};
  std::size_t const rows = 2 * 20 * extent.query_heads();
  std::vector<float> q(rows * extent.key_dim), out(rows * extent.value_dim), lse(rows);
  for (float& x : q) x = static_cast<float>(d.normal());
  support::byte_list result;
  for (std::uint32_t window : {0u, 30u}) {
    params.window = window;
    params.window_sinks = window == 0 ? 0 : 4;
    std::uint32_t const parts = window == 0 ? 2 : 1;
    std::vector<float> memory(kvmeld::attention::split_floats(extent, parts, 2, 20));
    kvmeld::query_batch const batch{1, slots, counts};
    auto const queries =
        kvmeld::rows_by_token<float const>(q.data(), 20, extent.query_heads(), extent.key_dim);
    kvmeld::attention::attend(cache.executor(), batch, queries, cache.ref(),
                              kvmeld::rows_by_token(out.data(), 20, extent.query_heads(), extent.value_dim),
                              kvmeld::rows_by_head(lse.data(), 20, extent.query_heads(), 1), params,
                              {parts, memory, 64});
    cache.observe(batch, queries, kvmeld::rows_by_head<float const>(lse.data(), 20, extent.query_heads(), 1),
                  params);
    // Some of the queries again, to base 2, and at once with attention.
    kvmeld::query_sample const sample{9, 2};
    kvmeld::attention::attend(
        cache.executor(), batch, queries, cache.ref(),
        kvmeld::rows_by_token(out.data(), 20, extent.query_heads(), extent.value_dim),
        kvmeld::in_base_two(kvmeld::rows_by_head(lse.data(), 20, extent.query_heads(), 1)), params);
    cache.observe(
        batch, queries,
        {kvmeld::rows_by_head<float const>(lse.data(), 20, extent.query_heads(), 1), kvmeld::lse_base::two},
        params, sample);
    std::vector<float> room(kvmeld::attention::observed_floats(extent, 2, 20, sample));
    kvmeld::attention::attend_and_observe(
        cache, batch, queries, kvmeld::rows_by_token(out.data(), 20, extent.query_heads(), extent.value_dim),
        room, kvmeld::in_base_two(kvmeld::rows_by_head(lse.data(), 20, extent.query_heads(), 1)), params,
        sample, {parts, memory, 64});
    for (auto const& part : {support::bytes_of(out), support::bytes_of(lse), support::ledger_bytes(cache)})
      result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

}  // namespace

TEST_CASE("sinks, windows and rotated keys do not depend on the number of lanes") {
  support::byte_list const host = every_option(kvmeld::host_executor(1, kvmeld::tuning::off));
  for (std::uint32_t lanes : {1u, 2u, 5u, 8u}) {
    CAPTURE(lanes);
    CHECK(host == every_option(kvmeld::testing::lane_executor(lanes)));
  }
}

}  // namespace attention_lanes_cases
