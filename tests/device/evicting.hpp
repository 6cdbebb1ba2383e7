// Policies that compute nothing from rows: the host's bits.
#pragma once

#include "twins.hpp"

namespace device_test {

template <class Device> void evictions(Device const& device) {
  using float16 = typename Device::float16;
  using bfloat16 = typename Device::bfloat16;
  same_life<float16>(device, "streaming_llm", kvmeld::preset::streaming_llm::with_sinks(3));
  same_life<bfloat16>(device, "h2o", kvmeld::preset::h2o::defaults());
  for (auto split : {kvmeld::budget_scope::layer, kvmeld::budget_scope::all_layers}) {
    shared_over const now(split);
    same_life<bfloat16>(device, "h2o", kvmeld::preset::h2o::defaults());
  }
}

}  // namespace device_test
