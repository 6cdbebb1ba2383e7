// Scores that a device recomputes from queries are the host's, up to the rounding of exponentials and sums.
#include "twins.cuh"

namespace {

using element = __nv_bfloat16;

template <class Policy> void same_scores(char const* name, Policy const& policy) {
  using namespace cuda_test;
  constexpr std::uint32_t rows = 37, slot = 1, length = 300;
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
    CAPTURE(std::string(name));
    CAPTURE(static_cast<int>(tuning));
    twins<element, Policy> pair(policy, 29, nullptr, tuning);
    noise n(31);
    std::uint32_t const heads = extent.query_heads();
    std::vector<element> q;
    for (std::uint32_t i = 0; i < rows * heads * extent.key_dim; ++i)
      q.push_back(kvmeld::element_traits<element>::from_float(2.0f * n.uniform()));
    std::vector<float> lse(std::size_t{rows} * heads), out(std::size_t{rows} * heads * extent.value_dim);
    device_array<element> const far_q(q);
    pair.both([&](auto& c) { c.open(slot, length); });
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      kvmeld::attention::extend(
          pair.host().executor(), kvmeld::attention_params{}, kvmeld::query_batch{layer, slot, rows},
          kvmeld::rows_by_token<element const>(q.data(), rows, heads, extent.key_dim), pair.host().ref(),
          kvmeld::rows_by_token(out.data(), rows, heads, extent.value_dim),
          kvmeld::rows_by_head(lse.data(), rows, heads, 1));
      device_array<float> const far_lse(lse);
      auto const observe = [&](auto& cache, element const* from, float const* sums) {
        cache.observe({layer, slot, rows},
                      kvmeld::rows_by_token<element const>(from, rows, heads, extent.key_dim),
                      kvmeld::rows_by_head<float const>(sums, rows, heads, 1));
      };
      observe(pair.host(), q.data(), lse.data());
      observe(pair.device(), far_q.data(), far_lse.data());
      // Every fifth query again: attention and then observation here, both at once there.
      auto const fifth = kvmeld::every_nth(5);
      pair.host().observe({layer, slot, rows},
                          kvmeld::rows_by_token<element const>(q.data(), rows, heads, extent.key_dim),
                          kvmeld::rows_by_head<float const>(lse.data(), rows, heads, 1), {}, fifth);
      device_array<float> const room(
          std::vector<float>(kvmeld::attention::observed_floats(extent, 1, rows, fifth)));
      device_array<float> const far_out(out);
      kvmeld::attention::extend_and_observe(
          pair.device(), kvmeld::attention_params{}, kvmeld::query_batch{layer, slot, rows},
          kvmeld::rows_by_token<element const>(far_q.data(), rows, heads, extent.key_dim),
          kvmeld::rows_by_token(far_out.data(), rows, heads, extent.value_dim),
          {room.data(), kvmeld::attention::observed_floats(extent, 1, rows, fifth)}, {}, fifth);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    }
    auto const& here = pair.host().ledger();
    auto const& there = pair.device().ledger();
    for (std::uint32_t c = 0; c < here.channels.count; ++c) {
      std::vector<float> got(extent.slots());
      REQUIRE(cudaMemcpy(got.data(), there.channel_data[c], got.size() * sizeof(float),
                         cudaMemcpyDeviceToHost) == cudaSuccess);
      for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
        for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
          kvmeld::track const t = kvmeld::make_track(extent, layer, slot, head);
          for (std::uint32_t i = 0; i < length; ++i) {
            std::size_t const at = here.at(t, i);
            CHECK(got[at] == doctest::Approx(here.channel_data[c][at]).epsilon(1e-4));
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("observed scores on a device are the host's") {
  same_scores("h2o", kvmeld::preset::h2o::halves());
  same_scores("snapkv", kvmeld::preset::snapkv::with_window(16));
  for (kvmeld::shape const& s : {cuda_test::crooked, cuda_test::wide}) {
    cuda_test::made_for const now(s);
    same_scores("h2o", kvmeld::preset::h2o::halves());
  }
}

TEST_CASE("merges that follow observed thresholds on a device are the host's") {
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
    cuda_test::same_life<element>("d2o", kvmeld::preset::d2o::halves(), 1, tuning);
  }
}
