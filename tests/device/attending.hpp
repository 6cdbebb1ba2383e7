// Attention with everything that its parameters can say, over sequences of unequal queries, on a device as on
// the host.
#pragma once

#include "twins.hpp"

namespace device_test {

/// Parameters one by one and together; `sink` lies where the phases can read it.
inline std::vector<kvmeld::attention_params> ways_to_attend(float const* sink) {
  kvmeld::attention_params capped, windowed, sunk, turned, plain, all;
  capped.softcap = 3.0f;
  windowed.window = 25;
  windowed.window_sinks = 2;
  sunk.sink = sink;
  turned.rope.pairing = kvmeld::rope_pairing::half_split;
  turned.rope.rotary_dim = 8;
  turned.rope.factor = 4.0;
  plain.causal = plain.use_degree = false;
  plain.scale = 0.4f;
  all = windowed;
  all.softcap = 5.0f;
  all.sink = sink;
  all.rope.pairing = kvmeld::rope_pairing::interleaved;
  all.rope.positions = kvmeld::rope_positions::slot;
  return {capped, windowed, sunk, turned, plain, all};
}

/// Of sequences 0 and 1, 3 queries and 1. What the outputs are off by is asked of the device too.
template <class Device, class T, class Policy> void attend_every_way(twins<Device, T, Policy>& pair) {
  constexpr std::uint32_t most = 3;
  std::vector<std::uint32_t> const slots{0, 1}, counts{3, 1};
  kvmeld::query_batch const batch{extent.layers - 1, slots, counts};
  std::uint32_t const heads = extent.query_heads(), rows = 2 * most * heads;
  using floats = typename Device::template array<float>;
  noise n(61);
  std::vector<T> q;
  for (std::uint32_t i = 0; i < rows * extent.key_dim; ++i)
    q.push_back(kvmeld::element_traits<T>::from_float(2.0f * n.uniform()));
  std::vector<float> sink, out(std::size_t{rows} * extent.value_dim), lse(rows);
  for (std::uint32_t h = 0; h < heads; ++h) sink.push_back(n.uniform());
  typename Device::template array<T> const far_q(q);
  floats const far_sink(sink);
  auto const near_ways = ways_to_attend(sink.data()), far_ways = ways_to_attend(far_sink.data());
  for (std::size_t i = 0; i < near_ways.size(); ++i) {
    CAPTURE(i);
    floats far_out(out), far_lse(lse), far_scratch(out), far_errors(std::vector<float>(2 * heads));
    auto const base = i % 2 == 0 ? kvmeld::lse_base::natural : kvmeld::lse_base::two;
    auto const attend = [&](auto& cache, kvmeld::attention_params const& params, T const* from, float* to,
                            float* sums) {
      kvmeld::attention::attend(cache.executor(), batch,
                                kvmeld::rows_by_token(from, most, heads, extent.key_dim), cache.ref(),
                                kvmeld::rows_by_token(to, most, heads, extent.value_dim),
                                {kvmeld::rows_by_head(sums, most, heads, 1), base}, params);
    };
    attend(pair.host(), near_ways[i], q.data(), out.data(), lse.data());
    attend(pair.device(), far_ways[i], far_q.data(), far_out.data(), far_lse.data());
    pair.settle();
    auto const got = far_out.get(), got_lse = far_lse.get();
    for (std::size_t j = 0; j < out.size(); ++j) CHECK(got[j] == doctest::Approx(out[j]).epsilon(3e-4));
    for (std::size_t j = 0; j < lse.size(); ++j) CHECK(got_lse[j] == doctest::Approx(lse[j]).epsilon(2e-5));
    // Expected to be twice what it is: off by half of that.
    std::vector<float> doubled = got;
    for (float& x : doubled) x *= 2.0f;
    floats const far_expected(doubled);
    kvmeld::attention::output_error(
        pair.device().executor(), batch, kvmeld::rows_by_token(far_q.data(), most, heads, extent.key_dim),
        pair.device().ref(),
        kvmeld::rows_by_token<float const>(far_expected.data(), most, heads, extent.value_dim),
        kvmeld::rows_by_token(far_scratch.data(), most, heads, extent.value_dim),
        {far_errors.data(), std::size_t{2} * heads}, far_ways[i]);
    pair.settle();
    auto const off = far_errors.get();
    for (std::size_t s = 0; s < 2; ++s) {
      for (std::uint32_t h = 0; h < heads; ++h) CHECK(off[s * heads + h] == doctest::Approx(0.5f));
    }
  }
}

/// Tracks of unequal lengths, compressed and then grown, read in every way.
template <class Device> void attended_merges(Device const& device) {
  made_for const now({2, 3, 2, 2, 32, 16, 112});
  std::vector<std::uint32_t> budgets;
  for (std::uint32_t i = 0; i < extent.tracks(); ++i) budgets.push_back(20 + 7 * (i % 4));
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
    CAPTURE(static_cast<int>(tuning));
    auto const policy = steep_chelsea();
    twins<Device, typename Device::bfloat16, std::decay_t<decltype(policy)>> pair(device, policy, 19, tuning);
    pair.both([&](auto& c) {
      c.open(0, 100);
      c.open(1, 80);
      c.compress({0, 1}, kvmeld::budget::per_track(budgets.data()));
    });
    for (std::uint32_t slot : {0u, 1u}) pair.check(slot);
    pair.both([](auto& c) { c.append({0, 1}, {5, 2}); });
    attend_every_way(pair);
  }
}

}  // namespace device_test
