// Policies that merge: the host's plans; rows to the last bit but where exponentials weigh them.
#pragma once

#include "evicting.hpp"
#include "twins.hpp"

namespace device_test {

/// Chelsea and KVMerger, tuned and not. In brief runs, what is not tuned has short tracks, or is left out
/// where shapes are not the usual ones.
template <class Device> void merges(Device const& device, bool usual = true) {
  using float16 = typename Device::float16;
  auto const kvmerger = kvmeld::preset::kvmerger::for_budget();
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
    same_life<typename Device::bfloat16>(device, "chelsea", steep_chelsea(), 0, tuning);
    if (tuning == kvmeld::tuning::on || !brief()) {
      same_life<float16>(device, "kvmerger", kvmerger, 1, tuning);
    } else if (usual) {
      made_for const now({2, 3, 2, 2, 32, 16, 112});
      same_life<float16>(device, "kvmerger", kvmerger, 1, tuning, {90, 70, 48, 36, 28});
    }
  }
}

/// KVMerger's sets otherwise: ended by gaps, chained, stored where the newest is; by a given threshold.
template <class Device> void sets_otherwise(Device const& device) {
  using float16 = typename Device::float16;
  made_for const now({2, 3, 2, 2, 32, 16, 112});
  constexpr tokens_of_life life{90, 70, 48, 36, 28};
  auto gaps = kvmeld::preset::kvmerger::for_budget(), chained = gaps;
  gaps.identify.break_at_gap = true;
  gaps.identify.pivot = kvmeld::identify::pivot_rule::newest;
  chained.identify.anchor = kvmeld::identify::anchor_rule::chain;
  auto printed = kvmeld::preset::kvmerger::paper_50();
  printed.identify.admission.theta = 0.6f;
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
    if (tuning == kvmeld::tuning::off && brief()) continue;  // `compositions` has the generic forms
    same_life<float16>(device, "between gaps", gaps, 1, tuning, life);
    same_life<float16>(device, "by a threshold", printed, 1, tuning, life);
    if (!brief()) same_life<float16>(device, "chained", chained, 1, tuning, life);  // has no tuned form
  }
}

/// KVMerger's sets by a threshold for each layer.
template <class Device> void thresholds_per_layer(Device const& device) {
  made_for const now({2, 3, 2, 2, 32, 16, 112});
  std::vector<float> const theta{0.9f, 0.5f};
  typename Device::template array<float> const far_theta(theta);
  auto const by = [](float const* each) {
    using kvmeld::quantity;
    return kvmeld::preset::kvmerger::with_thresholds(each, quantity::of_budget(1.0 / 3),
                                                     quantity::of_budget(0.25));
  };
  auto const here = by(theta.data()), there = by(far_theta.data());
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on})
    same_life<typename Device::float16>(device, "thresholds per layer", here, 1, tuning, {90, 70, 48, 36, 28},
                                        &there);
}

/// Nearly all that could be sources are no numbers, so that a track takes more rounds than caches of numbers
/// do.
template <class Device> void unlikely_rounds(Device const& device) {
  made_for const now({1, 3, 2, 2, 32, 16, 112});
  auto const policy = steep_chelsea();
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
    twins<Device, typename Device::bfloat16, std::decay_t<decltype(policy)>> pair(device, policy, 5, tuning);
    for (std::uint32_t head : {0u, 1u}) {
      for (std::uint32_t slot = 4; slot < 84; slot += 2)
        pair.poison(kvmeld::make_track(extent, 0, 0, head), slot);
    }
    pair.both([](auto& c) {
      c.open(0, 100);
      c.open(1, 20);
      c.compress({0, 1}, kvmeld::budget::entries(80), kvmeld::shortfall::keep);
    });
    pair.check(0);
    CHECK(pair.host().longest(0) == 80);
    CHECK(pair.host().rounds(0) > kvmeld::likely_rounds(policy.identify, 100, 80, 8));
  }
}

template <class Device> void shared_entries(Device const& device) {
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
    same_life<typename Device::bfloat16>(device, "ems", kvmeld::preset::ems::shared(), 1, tuning);
  }
}

/// Rows that lie anywhere, wide rows, heads with one plan.
template <class Device> void merges_of_shapes(Device const& device) {
  for (kvmeld::shape const& s : {crooked, wide}) {
    if (!tried(s.key_dim == wide.key_dim)) continue;
    made_for const now(s);
    merges(device, false);
  }
  made_for const layers(crooked, kvmeld::plan_scope::layer);
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
    same_life<typename Device::bfloat16>(device, "chelsea", steep_chelsea(), 0, tuning);
  }
}

/// Merges in tracks that several blocks of a device share.
template <class Device> void long_merges(Device const& device) {
  long_track<typename Device::bfloat16>(device, "chelsea", steep_chelsea(), 9000);
  long_track<typename Device::bfloat16>(device, "d2o", kvmeld::preset::d2o::defaults(), 9000, 1);
  long_track<typename Device::float16>(device, "kvmerger", kvmeld::preset::kvmerger::for_budget(), 9000, 1);
  long_track<typename Device::float16>(device, "cam", kvmeld::preset::cam::over_streaming_llm(), 9000, 1);
  long_track<typename Device::bfloat16>(device, "ems", kvmeld::preset::ems::shared(), 9000, 1, {230, 190});
}

/// Merges that follow observed thresholds.
template <class Device> void observed_merges(Device const& device) {
  for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
    same_life<typename Device::bfloat16>(device, "d2o", kvmeld::preset::d2o::defaults(), 1, tuning);
  }
}

}  // namespace device_test
