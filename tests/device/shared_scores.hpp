// Scores of members, recomputed from queries over shared entries, are the host's up to the rounding of
// exponentials.
#pragma once

#include "twins.hpp"

namespace device_test {

/// EMS: compressed, observed by queries, compressed again.
template <class Device> void scores_of_members(Device const& device) {
  using element = typename Device::bfloat16;
  made_for const now({1, 3, 2, 2, 64, 48, 320});
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
    CAPTURE(static_cast<int>(tuning));
    auto const policy = kvmeld::preset::ems::shared(kvmeld::quantity::entries(8), 6, 0.05f);
    twins<Device, element, std::decay_t<decltype(policy)>> pair(device, policy, 37, tuning);
    pair.both([](auto& c) { c.open(1, 120); });
    pair.observe(1, 8);
    pair.both([](auto& c) {
      c.compress({1}, kvmeld::budget::entries(40));
      c.append({1}, {7});
      c.commit({1}, {7});
    });
    pair.check(1, 1);
    constexpr std::uint32_t rows = 5;
    std::uint32_t const heads = extent.query_heads();
    noise n(3);
    std::vector<element> q;
    for (std::uint32_t i = 0; i < rows * heads * extent.key_dim; ++i)
      q.push_back(kvmeld::element_traits<element>::from_float(2.0f * n.uniform()));
    std::vector<float> lse(std::size_t{rows} * heads), out(std::size_t{rows} * heads * extent.value_dim);
    typename Device::template array<element> const far_q(q);
    typename Device::template array<float> const far_lse(lse), far_out(out);
    auto const observe = [&](auto& cache, element const* from, float* sums, float* to) {
      auto const queries = kvmeld::rows_by_token(from, rows, heads, extent.key_dim);
      kvmeld::attention::attend(cache.executor(), kvmeld::query_batch{0, 1, rows}, queries, cache.ref(),
                                kvmeld::rows_by_token(to, rows, heads, extent.value_dim),
                                kvmeld::rows_by_head(sums, rows, heads, 1));
      cache.observe({0, 1, rows}, queries, kvmeld::rows_by_head<float const>(sums, rows, heads, 1));
    };
    observe(pair.host(), q.data(), lse.data(), out.data());
    observe(pair.device(), far_q.data(), far_lse.data(), far_out.data());
    pair.settle();
    auto const& here = pair.host().ledger();
    auto const& there = pair.device().ledger();
    std::size_t members_seen = 0;
    for (std::uint32_t c = 0; c < here.channels.count; ++c) {
      std::vector<float> entries(extent.slots()), others(std::size_t{extent.tracks()} * members);
      auto& executor = pair.device().executor();
      executor.download(entries.data(), there.channel_data[c], entries.size() * sizeof(float));
      executor.download(others.data(), there.members.channel_data[c], others.size() * sizeof(float));
      for (std::uint32_t head = 0; head < extent.kv_heads; ++head) {
        kvmeld::track const t = kvmeld::make_track(extent, 0, 1, head);
        for (std::uint32_t i = 0; i < here.length[t.index]; ++i)
          CHECK(entries[here.at(t, i)] == doctest::Approx(here.channel_data[c][here.at(t, i)]).epsilon(1e-4));
        for (std::uint32_t i = 0; i < here.members.count[t.index]; ++i, ++members_seen) {
          std::size_t const at = std::size_t{t.index} * members + i;
          CHECK(others[at] == doctest::Approx(here.members.channel_data[c][at]).epsilon(1e-4));
        }
      }
    }
    CHECK(members_seen > 0);
    pair.both([](auto& c) { c.compress({1}, kvmeld::budget::entries(30)); });
    pair.check(1, 1);
  }
}

}  // namespace device_test
