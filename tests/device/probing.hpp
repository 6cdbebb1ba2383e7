// Merges that pass measured probes, on a device as on the host.
#pragma once

#include "attending.hpp"
#include "merging.hpp"

namespace device_test {

inline constexpr kvmeld::shape probed_shape{2, 3, 2, 2, 32, 16, 112};

/// Compressed under probes that see every key a little, and read in every way.
template <class Device> void probed_merges(Device const& device, kvmeld::tuning tuning) {
  using element = typename Device::bfloat16;
  using guard_type = kvmeld::guard::probed<element>;
  constexpr std::uint32_t probes = 4;
  made_for const now(probed_shape);
  CAPTURE(static_cast<int>(tuning));
  auto const policy = kvmeld::preset::chelsea::guarded(guard_type{0.15f}, steep_chelsea());
  twins<Device, element, std::decay_t<decltype(policy)>> pair(device, policy, 19, tuning);
  using floats = typename Device::template array<float>;
  pair.both([](auto& c) {
    c.open(0, 100);
    c.open(1, 80);
  });
  noise n(23);
  std::uint32_t const heads = extent.query_heads();
  std::size_t const rows = std::size_t{extent.layers} * extent.sequences * probes * heads;
  std::vector<element> q;
  for (std::size_t i = 0; i < rows * extent.key_dim; ++i)
    q.push_back(kvmeld::element_traits<element>::from_float(2.0f * n.uniform()));
  std::vector<float> lse(rows), out(rows * extent.value_dim), room(kvmeld::guard::probe_room(extent, probes));
  auto const guard_of = [&](element const* query, float* sums, float* memory) {
    guard_type guard{0.15f};
    auto& p = guard.probes;
    p.query = kvmeld::rows_by_token<element const>(query, probes, heads, extent.key_dim);
    p.lse = kvmeld::rows_by_token<float const>(sums, probes, heads, 1);
    p.query_layer_stride = static_cast<std::int64_t>(rows / extent.layers) * extent.key_dim;
    p.lse_layer_stride = static_cast<std::int64_t>(rows / extent.layers);
    p.count = probes;
    p.room = memory;
    return guard;
  };
  auto const near = guard_of(q.data(), lse.data(), room.data());
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
    std::size_t const at = layer * (rows / extent.layers);
    std::vector<std::uint32_t> const two{0, 1}, counts(2, probes);
    kvmeld::attention::attend(
        pair.host().executor(), kvmeld::query_batch{layer, two, counts},
        kvmeld::rows_by_token<element const>(q.data() + at * extent.key_dim, probes, heads, extent.key_dim),
        pair.host().ref(), kvmeld::rows_by_token(out.data(), probes, heads, extent.value_dim),
        kvmeld::rows_by_token(lse.data() + at, probes, heads, 1));
  }
  typename Device::template array<element> const far_q(q);
  floats const far_lse(lse), far_room(room);
  pair.host().set_guard(near);
  pair.device().set_guard(guard_of(far_q.data(), far_lse.data(), far_room.data()));
  pair.both([](auto& c) { c.compress({0, 1}, kvmeld::budget::entries(20), kvmeld::shortfall::keep); });
  for (std::uint32_t slot : {0u, 1u}) {
    pair.check(slot, 1);  // what merging changed is kept too, to the last bit of exponentials
    CHECK(pair.host().longest(slot) < 80 - 5 * slot);  // some may
    CHECK(pair.host().longest(slot) > 20);             // and some may not
  }
  auto const got = far_room.get();
  for (std::size_t i = 0; i < room.size(); ++i) CHECK(got[i] == doctest::Approx(room[i]).epsilon(1e-3));
  pair.both([](auto& c) { c.append({0, 1}, {5, 2}); });
  attend_every_way(pair);
}

template <class Device> void probed_merges(Device const& device) {
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) probed_merges(device, tuning);
}

}  // namespace device_test
