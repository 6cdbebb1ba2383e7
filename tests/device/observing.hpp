// Scores that a device recomputes from queries are the host's, up to the rounding of exponentials and sums.
#pragma once

#include "twins.hpp"

namespace device_test {

template <class Device, class Policy>
void same_scores(Device const& device, char const* name, Policy const& policy) {
  using element = typename Device::bfloat16;
  constexpr std::uint32_t rows = 37, slot = 1, length = 300;
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
    CAPTURE(std::string(name));
    CAPTURE(static_cast<int>(tuning));
    twins<Device, element, Policy> pair(device, policy, 29, tuning);
    using floats = typename Device::template array<float>;
    noise n(31);
    std::uint32_t const heads = extent.query_heads();
    std::vector<element> q;
    for (std::uint32_t i = 0; i < rows * heads * extent.key_dim; ++i)
      q.push_back(kvmeld::element_traits<element>::from_float(2.0f * n.uniform()));
    std::vector<float> lse(std::size_t{rows} * heads), out(std::size_t{rows} * heads * extent.value_dim);
    typename Device::template array<element> const far_q(q);
    std::vector<float> weights;  // of queries
    for (std::uint32_t i = 0; i < rows; ++i) weights.push_back(1.5f + n.uniform());
    pair.both([&](auto& c) { c.open(slot, length); });
    for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
      kvmeld::attention::attend(pair.host().executor(), kvmeld::query_batch{layer, slot, rows},
                                kvmeld::rows_by_token<element const>(q.data(), rows, heads, extent.key_dim),
                                pair.host().ref(),
                                kvmeld::rows_by_token(out.data(), rows, heads, extent.value_dim),
                                kvmeld::rows_by_head(lse.data(), rows, heads, 1));
      floats const far_lse(lse);
      floats const far_weights(weights);
      auto const observe = [&](auto& cache, element const* from, float const* sums, float const* times) {
        cache.observe({layer, slot, rows},
                      kvmeld::rows_by_token<element const>(from, rows, heads, extent.key_dim),
                      kvmeld::rows_by_head<float const>(sums, rows, heads, 1), {}, {0, 1, times});
      };
      observe(pair.host(), q.data(), lse.data(), layer == 0 ? nullptr : weights.data());
      observe(pair.device(), far_q.data(), far_lse.data(), layer == 0 ? nullptr : far_weights.data());
      // Every fifth query again: attention and then observation here, both at once there.
      auto const fifth = kvmeld::every_nth(5);
      pair.host().observe({layer, slot, rows},
                          kvmeld::rows_by_token<element const>(q.data(), rows, heads, extent.key_dim),
                          kvmeld::rows_by_head<float const>(lse.data(), rows, heads, 1), {}, fifth);
      floats const room(std::vector<float>(kvmeld::attention::observed_floats(extent, 1, rows, fifth)));
      floats const far_out(out);
      kvmeld::attention::attend_and_observe(
          pair.device(), kvmeld::query_batch{layer, slot, rows},
          kvmeld::rows_by_token<element const>(far_q.data(), rows, heads, extent.key_dim),
          kvmeld::rows_by_token(far_out.data(), rows, heads, extent.value_dim),
          {room.data(), kvmeld::attention::observed_floats(extent, 1, rows, fifth)}, {},
          kvmeld::attention_params{}, fifth);
      pair.settle();
    }
    auto const& here = pair.host().ledger();
    auto const& there = pair.device().ledger();
    for (std::uint32_t c = 0; c < here.channels.count; ++c) {
      std::vector<float> got(extent.slots());
      pair.device().executor().download(got.data(), there.channel_data[c], got.size() * sizeof(float));
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

template <class Device> void observed_scores(Device const& device) {
  same_scores(device, "h2o", kvmeld::preset::h2o::defaults());
  same_scores(device, "snapkv", kvmeld::preset::snapkv::with_window(16));
  for (kvmeld::shape const& s : {crooked, wide}) {
    made_for const now(s);
    same_scores(device, "h2o", kvmeld::preset::h2o::defaults());
  }
}

}  // namespace device_test
