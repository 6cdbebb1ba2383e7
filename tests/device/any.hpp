// A cache behind one virtual interface on a device: every call of it, beside the same on the host.
#pragma once

#include "twins.hpp"

#include <kvmeld/compose/any_cache.hpp>

namespace device_test {

template <class Device> void any_caches(Device const& device) {
  using element = kvmeld::bfloat16;
  made_for const now(brief() ? kvmeld::shape{2, 3, 1, 2, 16, 16, 112}
                             : kvmeld::shape{2, 3, 2, 2, 32, 16, 112});
  kvmeld::shape const s = extent;
  noise n(71);
  auto keys = random_rows<element>(n, s.key_dim, 0.9f), values = random_rows<element>(n, s.value_dim, 0.0f);
  typename Device::template array<element> const far_keys(keys), far_values(values);
  auto const sizes = usual_limits<decltype(kvmeld::preset::h2o::defaults())>();
  auto const made = [&](auto executor, element* k, element* v) {
    return kvmeld::make_any_cache(
        kvmeld::merged_cache{std::move(executor), kvmeld::preset::h2o::defaults(),
                             kvmeld::kv{kvmeld::strided<element>(k, "LSTHC", s, s.key_dim),
                                        kvmeld::strided<element>(v, "LSTHC", s, s.value_dim)},
                             sizes});
  };
  auto const held_here = made(kvmeld::host_executor(1, kvmeld::tuning::off), keys.data(), values.data());
  auto const held_there = made(device.executor(kvmeld::tuning::on), far_keys.data(), far_values.data());
  kvmeld::any_cache &here = *held_here, &there = *held_there;
  auto const both = [&](auto f) {
    f(here);
    f(there);
  };
  auto const same = [&](std::uint32_t slot) {
    there.sync_lengths(slot);  // waits
    CHECK(here.longest(slot) == there.longest(slot));
    CHECK(here.tokens(slot) == there.tokens(slot));
    CHECK(here.entries(slot) == there.entries(slot));
  };
  constexpr std::uint32_t rows = 3;
  std::uint32_t const heads = s.query_heads();
  std::vector<element> q;
  for (std::uint32_t i = 0; i < rows * heads * s.key_dim; ++i)
    q.push_back(kvmeld::element_traits<element>::from_float(2.0f * n.uniform()));
  std::size_t const room = kvmeld::attention::observed_floats(s, 1, rows);
  std::vector<float> out(std::size_t{rows} * heads * s.value_dim), lse(std::size_t{rows} * heads),
      memory(room), bias(std::size_t{s.kv_heads} * s.capacity);
  typename Device::template array<element> const far_q(q);
  typename Device::template array<float> const far_out(out), far_lse(lse), far_memory(memory), far_bias(bias);
  auto const attend = [&](kvmeld::any_cache& c, std::uint32_t slot, element const* from, float* to,
                          float* sums, float* kept, float* by_head) {
    auto const queries = kvmeld::rows_by_token(from, rows, heads, s.key_dim);
    auto const outputs = kvmeld::rows_by_token(to, rows, heads, s.value_dim);
    auto const norms = kvmeld::rows_by_head(sums, rows, heads, 1);
    c.attend({0, slot, rows}, queries, outputs, norms);
    c.observe({0, slot, rows}, queries, kvmeld::rows_by_head<float const>(sums, rows, heads, 1));
    c.attend_and_observe({1, slot, rows}, queries, outputs, {kept, room}, norms);
    c.write_log_degree(1, {slot}, kvmeld::rows_by_head(by_head, 1, s.kv_heads, s.capacity));
  };
  auto const attends = [&](std::uint32_t slot) {
    attend(here, slot, q.data(), out.data(), lse.data(), memory.data(), bias.data());
    attend(there, slot, far_q.data(), far_out.data(), far_lse.data(), far_memory.data(), far_bias.data());
    same(slot);
    auto const got = far_out.get(), norms = far_lse.get();
    for (std::size_t i = 0; i < out.size(); ++i) CHECK(got[i] == doctest::Approx(out[i]).epsilon(3e-4));
    for (std::size_t i = 0; i < lse.size(); ++i) CHECK(norms[i] == doctest::Approx(lse[i]).epsilon(2e-5));
    CHECK(far_bias.get() == bias);  // nothing merges, and what is empty is the lowest
  };
  both([](auto& c) {
    c.open(0, 100);
    c.open(1, 70, 3);
  });
  for (std::uint32_t slot : {0u, 1u}) attends(slot);
  both([](auto& c) {
    c.compress({0, 1}, kvmeld::budget::entries(50));
    c.append({1}, {6});
    c.commit({1}, {5});
    c.fork(1, 2);
    c.truncate(2, c.tokens(2) - 2);
    c.freeze(0, 4);
    c.request_stats({0});
  });
  for (std::uint32_t slot : {0u, 1u, 2u}) same(slot);
  CHECK(there.stats_ready());
  CHECK(there.stats(0).dropped == 50 * s.layers * s.kv_heads);
  CHECK(here.stats(0).dropped == there.stats(0).dropped);
  auto const saved = there.save(1);
  both([&](auto& c) {
    c.close(1);
    c.resume(1, saved);
    c.shift(2, 5);
    c.drop_positions(0, 60, 70);
    c.plan({0, 2}, kvmeld::budget::entries(30));
    c.apply();
    c.request_lengths();
  });
  for (std::uint32_t slot : {0u, 1u, 2u}) same(slot);
  CHECK(there.poll_lengths());
  CHECK(std::memcmp(far_values.get().data(), values.data(), values.size() * sizeof(element)) == 0);
  CHECK(std::memcmp(far_keys.get().data(), keys.data(), keys.size() * sizeof(element)) == 0);
  attends(2);
}

}  // namespace device_test
