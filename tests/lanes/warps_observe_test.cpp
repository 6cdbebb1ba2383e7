// Scores from queries on teams made of warps are those of the generic loops, up to rounding.
#include <kvmeld/backend/warps/observe_queries.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "attention/ragged_call.hpp"
#include "support/random_cache.hpp"
#include "support/sanitizer.hpp"
#include "support/warp_executor.hpp"

namespace warps_observe_cases {

namespace {

using attention_test::call;

template <class T> struct observed {
  support::engine_memory<T> const& memory;
  std::uint32_t length;
  kvmeld::query_sample sample;

  // Channels of every entry after two observations.
  template <class Executor, class Policy, class Q>
  std::vector<float> operator()(Executor executor, Policy const& policy, call<Q, float> const& c,
                                kvmeld::attention_params const& params) const {
    support::engine_memory<T> own = memory;
    kvmeld::cache_options options;
    options.extent = own.extent;
    kvmeld::merged_cache cache{executor, policy, own.tensors(), options};
    for (std::uint32_t slot = 0; slot < own.extent.sequences; ++slot) {
      cache.open(slot, slot == 2 ? 0 : length);
      support::for_tracks(own.extent, slot, [&](kvmeld::track t) {  // ragged, with degrees
        if (slot == 1) cache.ledger().length[t.index] -= t.kv_head;
        for (std::uint32_t i = 0; i < length && slot != 2; i += 3)
          cache.ledger().degree[cache.ledger().at(t, i)] = static_cast<float>(1 + i % 7);
      });
    }
    call<Q, float> made = c;
    for (std::uint32_t layer = 0; layer < own.extent.layers; ++layer) {
      kvmeld::host_executor host(1);
      kvmeld::attention::attend(host, made.batch(layer), made.queries(), cache.ref(), made.outputs(),
                                made.sums(), params);
      auto const sums =
          kvmeld::rows_by_head<float const>(made.lse.data(), made.most, own.extent.query_heads(), 1);
      cache.observe(made.batch(layer), made.queries(), sums, params, sample);
      if (layer == 0) {
        std::vector<float> room(
            kvmeld::attention::observed_floats(own.extent, own.extent.sequences, made.most));
        kvmeld::attention::attend_and_observe(cache, made.batch(layer), made.queries(), made.outputs(), room,
                                              made.sums(), params);
      } else {
        cache.observe(made.batch(layer), made.queries(), sums, params);
      }
    }
    std::vector<float> out;
    auto const& l = cache.ledger();
    for (std::uint32_t channel = 0; channel < l.channels.count; ++channel) {
      for (std::uint32_t slot = 0; slot < own.extent.sequences; ++slot) {
        support::for_tracks(own.extent, slot, [&](kvmeld::track t) {
          for (std::uint32_t i = 0; i < l.length[t.index]; ++i)
            out.push_back(l.channel_data[channel][l.at(t, i)]);
        });
      }
    }
    return out;
  }
};

template <class T, class Policy, class Q = T>
void same_scores(std::uint64_t seed, Policy const& policy, std::uint32_t group, std::uint32_t replaced = 2,
                 std::uint32_t channels = 0) {
  CAPTURE(seed);
  CAPTURE(group);
  support::dice d(seed);
  if (channels == 0) channels = d.between(1, 128);
  kvmeld::shape const s{1, 3, d.between(1, 2), group, channels, 4, 200};
  std::uint32_t const length = d.between(50, 190);
  support::engine_memory<T> memory(s);
  for (std::uint32_t slot : {0u, 1u}) memory.fill_sequence(d, slot, 0, length, support::texture::clusters);
  call<Q, float> c(s, d, d.pick({2u, 9u, 40u}));
  c.counts[0] = 0;  // of sequence 2, which is empty
  kvmeld::attention_params params;
  params.causal = d.chance(0.8);
  params.use_degree = d.chance(0.7);
  if (d.chance(0.5)) params.scale = static_cast<float>(0.05 + 0.1 * d.uniform());
  if (d.chance(0.3)) params.softcap = 3.0f;
  std::vector<float> weights(std::size_t{s.sequences} * c.most);
  for (float& x : weights) x = static_cast<float>(3 * d.uniform());
  observed<T> run{memory, length, {d.below(12), d.pick({1u, 2u, 5u})}};
  run.sample.weight_stride = c.most;
  if (d.chance(0.5)) run.sample.weights = weights.data();
  auto const host = run(kvmeld::host_executor(1, kvmeld::tuning::off), policy, c, params);
  support::warp_executor const executor(d.between(1, 2));
  auto const got = run(executor, policy, c, params);
  CHECK(executor.tuned_launches() == replaced);
  REQUIRE(got.size() == host.size());
  float far = 0.0f;
  for (std::size_t i = 0; i < got.size(); ++i)
    far = std::max(far, std::abs(got[i] - host[i]) / (1.0f + std::abs(host[i])));
  CHECK(far < 2e-5f);
}

}  // namespace

TEST_CASE("scores from queries on warps are the host's") {
  namespace preset = kvmeld::preset;
  for (std::uint64_t seed = 0; seed < 1; ++seed) {
    for (std::uint32_t group : {1u, 2u, 4u, 8u, 16u}) {
      if (support::under_thread_sanitizer && group != 4) continue;  // races are alike
      same_scores<kvmeld::float16>(seed, preset::h2o::defaults(), group);
    }
    same_scores<kvmeld::bfloat16>(seed, preset::snapkv::with_window(7), 4);
    same_scores<kvmeld::bfloat16>(seed, preset::scissorhands::defaults(20), 2);
  }
}

TEST_CASE("scores that warps have no tuned form for are the generic ones") {
  namespace preset = kvmeld::preset;
  same_scores<kvmeld::float16>(50, preset::h2o::defaults(), 3, 1);  // attention has one
  same_scores<kvmeld::float16>(51, preset::h2o::defaults(), 2, 1, 129);
  same_scores<float>(52, preset::h2o::defaults(), 2, 0);
  same_scores<kvmeld::float16, decltype(preset::h2o::defaults()), float>(53, preset::h2o::defaults(), 2, 0);
}

}  // namespace warps_observe_cases
