// Rows wherever engines lay them: merged, moved, copied and read on a device as on the host, byte for byte.
#pragma once

#include "rows.hpp"
#include "twins.hpp"

#include <initializer_list>
#include <type_traits>

namespace device_test {

inline constexpr kvmeld::shape small_rows{2, 3, 2, 2, 32, 32, 112}, latent_rows{2, 3, 1, 4, 40, 32, 112};

/// What encode_row stores.
struct channel_of {
  float const* row;
  KVMELD_HD float operator()(std::uint32_t c) const { return row[c]; }
};

/// Keys of `K`, values of `V`.
template <class K, class V, class Device> class laid_out {
public:
  explicit laid_out(kvmeld::shape const& s) : extent(s), keys(s, s.key_dim), values(values_of(s, keys)) {}
  auto tensors(side where) { return kvmeld::kv{keys.on(where), values.on(where)}; }
  /// Rows from slot `first` on, on both sides; what the device has written is the same.
  void write(noise& n, std::uint32_t sequence, std::uint32_t first, std::uint32_t tokens) {
    auto const x = tensors(side::here);
    std::vector<float> key(extent.key_dim), value(extent.value_dim);
    for (std::uint32_t i = 0; i < extent.layers * extent.kv_heads; ++i) {
      kvmeld::track const t = kvmeld::make_track(extent, i / extent.kv_heads, sequence, i % extent.kv_heads);
      for (std::uint32_t s = 0; s < tokens; ++s) {
        for (float& k : key) k = 0.9f * k + n.uniform();
        for (float& v : value) v = n.uniform();
        kvmeld::serial_team const alone(nullptr, 0);
        x.keys.encode_row(alone, t, first + s, channel_of{key.data()});
        x.values.encode_row(alone, t, first + s, channel_of{value.data()});
      }
    }
    keys.put();
    values.put();
  }
  bool same() const { return keys.same() && values.same(); }

  kvmeld::shape extent;
  K keys;
  V values;

private:
  static V values_of(kvmeld::shape const& s, [[maybe_unused]] K& keys) {
    if constexpr (std::is_constructible_v<V, K&, std::uint32_t>) {
      return V(keys, s.value_dim);
    } else {
      return V(s, s.value_dim);
    }
  }
};

/// Compressions, tokens in between, a copy and attention.
template <class K, class V, class Device, class Policy>
void same_rows(Device const& device, char const* name, Policy const& policy, kvmeld::tuning tuning,
               kvmeld::shape const& s) {
  CAPTURE(std::string(name));
  CAPTURE(static_cast<int>(tuning));
  laid_out<K, V, Device> rows(s);
  noise n(41);
  kvmeld::merged_cache here{kvmeld::host_executor(1, kvmeld::tuning::off), policy, rows.tensors(side::here),
                            kvmeld::cache_options{s}};
  kvmeld::merged_cache there{device.executor(tuning), policy, rows.tensors(side::there),
                             kvmeld::cache_options{s}};
  auto const both = [&](auto f) {
    f(here);
    f(there);
    REQUIRE(Device::settled(there.executor()));
    CHECK(rows.same());
  };
  rows.write(n, 0, 0, 100);
  rows.write(n, 1, 0, 70);
  both([](auto& c) {
    c.open(0, 100, 2);
    c.open(1, 70);
    c.compress({0, 1}, kvmeld::budget::entries(60));
  });
  auto const before = here.save(0);
  CHECK(before == there.save(0));
  CHECK(here.longest(1) < 70);
  rows.write(n, 1, here.longest(1), 9);
  there.sync_lengths(1);
  both([](auto& c) {
    c.append({1}, {9});
    c.commit({1}, {7});
    c.fork(1, 2);
    c.compress({0, 2}, kvmeld::budget::entries(40));
  });
  for (std::uint32_t slot : {0u, 1u, 2u}) CHECK(here.save(slot) == there.save(slot));
  std::vector<float> q(std::size_t{2} * s.query_heads() * s.key_dim),
      out(std::size_t{2} * s.query_heads() * s.value_dim);
  for (float& x : q) x = n.uniform();
  typename Device::template array<float> const far_q(q), far_out(out);
  auto const attend = [&](auto& cache, float const* from, float* to) {
    kvmeld::attention::attend(cache.executor(), kvmeld::query_batch{1, 2, 2},
                              kvmeld::rows_by_token(from, 2, s.query_heads(), s.key_dim), cache.ref(),
                              kvmeld::rows_by_token(to, 2, s.query_heads(), s.value_dim));
  };
  attend(here, q.data(), out.data());
  attend(there, far_q.data(), far_out.data());
  REQUIRE(Device::settled(there.executor()));
  std::vector<float> const got = far_out.get();
  for (std::size_t i = 0; i < out.size(); ++i) CHECK(got[i] == doctest::Approx(out[i]).epsilon(2e-4));
}

template <class K, class V, class Device>
void same_rows(Device const& device, char const* name,
               std::initializer_list<kvmeld::tuning> how = {kvmeld::tuning::off, kvmeld::tuning::on},
               kvmeld::shape const& s = small_rows) {
  for (auto tuning : how) same_rows<K, V>(device, name, steep_chelsea(), tuning, s);
}

template <class Device> void pages_of_engines(Device const& device) {
  same_rows<vllm_keys<Device>, vllm_values<Device>>(device, "vLLM");
  same_rows<head_pages<Device>, pointed_blocks<Device>>(device, "pages by number and by pointer");
  same_rows<far_pages<Device>, pointed_blocks<Device>>(device, "pages behind 2^33 elements",
                                                       {kvmeld::tuning::on});
}

template <class Device> void quantised_rows(Device const& device) {
  same_rows<fp8_rows<Device>, byte_rows<Device>>(device, "fp8, int8", {kvmeld::tuning::off});
  same_rows<q8_0_blocks<Device>, crooked_ring<Device>>(device, "q8_0, ring");
  same_rows<q4_0_blocks<Device>, zero_point_halves<Device>>(device, "q4_0, int4", {kvmeld::tuning::off});
  same_rows<nvfp4_blocks<Device>, nvfp4_blocks<Device>>(device, "nvfp4", {kvmeld::tuning::off});
}

/// Numbers beyond an 8-bit float's scale are counted where they are stored. What merges is a mean and never
/// beyond; keys that turn are.
template <class Device> void saturated_rows(Device const& device) {
  laid_out<fp8_rows<Device>, byte_rows<Device>, Device> rows(small_rows);
  noise n(43);
  kvmeld::merged_cache here{kvmeld::host_executor(1, kvmeld::tuning::off), steep_chelsea(),
                            rows.tensors(side::here), kvmeld::cache_options{small_rows}};
  kvmeld::merged_cache there{device.executor(kvmeld::tuning::off), steep_chelsea(), rows.tensors(side::there),
                             kvmeld::cache_options{small_rows}};
  rows.write(n, 0, 0, 90);
  std::uint32_t const written = rows.keys.saturated.here[0];
  kvmeld::rope_params rope;
  rope.pairing = kvmeld::rope_pairing::half_split;
  auto const turn = [&](auto& c) {
    c.open(0, 90);
    c.shift(0, 5, rope);
  };
  turn(here);
  turn(there);
  REQUIRE(Device::settled(there.executor()));
  CHECK(rows.keys.saturated.here[0] > written);
  CHECK(rows.same());
}

template <class Device> void rows_elsewhere(Device const& device) {
  same_rows<token_rows<Device>, moving_rows<Device>>(device, "transposed, relocatable");
}

/// `Device` also views tensors: viewed(data, shape, channels, elements from row to row).
template <class Device> void rows_by_layer(Device const& device) {
  using keys = layer_tensors<Device>;
  same_rows<keys, viewed_rows<Device>>(device, "a tensor per layer, a view");
  same_rows<keys, latent_values<keys>>(device, "latent", {kvmeld::tuning::off, kvmeld::tuning::on},
                                       latent_rows);
}

}  // namespace device_test
