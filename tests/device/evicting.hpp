// Policies that compute nothing from rows: the host's bits.
#pragma once

#include "twins.hpp"

namespace device_test {

template <class Device> void evictions(Device const& device) {
  using float16 = typename Device::float16;
  using bfloat16 = typename Device::bfloat16;
  same_life<float16>(device, "streaming_llm", kvmeld::preset::streaming_llm::with_sinks(3));
  same_life<bfloat16>(device, "h2o", kvmeld::preset::h2o::defaults());
  for (auto among : {kvmeld::budget_scope::layer, kvmeld::budget_scope::all_layers}) {
    shared_over const now(among);
    same_life<bfloat16>(device, "h2o", kvmeld::preset::h2o::defaults());
  }
}

/// One compression of one track that is long enough for several blocks of a device to share it, and the next
/// one a few tokens later.
template <class T, class Device, class Policy>
void long_track(Device const& device, char const* name, Policy const& policy, std::uint32_t tokens,
                int units = 0, std::vector<std::uint32_t> budgets = {}) {
  CAPTURE(std::string(name));
  if (budgets.empty()) budgets = {tokens / 5 * 4 + 1, tokens / 2};
  made_for const now({1, 1, 1, 1, 16, 8, tokens + 100});
  twins<Device, T, Policy> pair(device, policy, 23, kvmeld::tuning::on);
  pair.both([&](auto& c) { c.open(0, tokens); });
  pair.observe(0, 4);
  for (std::uint32_t budget : budgets) {
    pair.both([&](auto& c) {
      c.compress({0}, kvmeld::budget::entries(budget));
      c.append({0}, {50});
      c.commit({0}, {50});
    });
    pair.check(0, units);
  }
}

/// Evictions in long tracks; the ledger and the rows are the host's bits.
template <class Device> void long_evictions(Device const& device) {
  using bfloat16 = typename Device::bfloat16;
  long_track<bfloat16>(device, "h2o", kvmeld::preset::h2o::defaults(), brief() ? 16900 : 66000);
  long_track<bfloat16>(device, "snapkv", kvmeld::preset::snapkv::with_window(8), 9000);
  long_track<bfloat16>(device, "streaming_llm", kvmeld::preset::streaming_llm::with_sinks(3), 9000);
  long_track<bfloat16>(device, "knorm", kvmeld::preset::knorm::for_budget(), 9000);
}

}  // namespace device_test
