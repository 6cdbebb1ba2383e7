// Every preset and mix of parts that can be chosen at run time: one type of cache for all of them.
#pragma once

#include "support/brief.hpp"
#include "support/compositions.hpp"
#include "support/learned.hpp"
#include "twins.hpp"

#include <kvmeld/compose/composed.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace device_test {

inline constexpr kvmeld::shape small{1, 3, 1, 2, 16, 8, 112};
inline constexpr tokens_of_life short_life{90, 70, 48, 36, 28};

/// `same_life` of the policy, its parts chosen at run time. What shares entries is no such part.
template <class Device> struct same_composed {
  Device const& device;
  std::uint64_t* turn;

  template <class Policy> void operator()(char const* name, Policy const& policy) const {
    if (brief() && (*turn)++ % 4 != 0) return;
    using merge = typename Policy::merge_type;
    if constexpr (!kvmeld::shares_entries<merge>::value) {
      // Exponentials differ in the last bit: those of weights, and those of attention from queries.
      bool const attends = kvmeld::need_of(policy).queries && kvmeld::channels_of(policy.score).count != 0;
      int const units = std::is_same_v<merge, kvmeld::merge::gaussian> ||
                        std::is_same_v<merge, kvmeld::merge::mass_preserving> || attends;
      same_life<typename Device::bfloat16>(device, name, kvmeld::compose::composed_of(policy), units,
                                           kvmeld::tuning::off, short_life);
    }
  }
};

/// Learned scores, whose weights lie where the policy reads them. They do not count positions, whose
/// logarithm is another one in its last bit.
template <class Device> void same_learned(Device const& device) {
  kvmeld::learned_weights near = support::some_weights(extent), there = near;
  std::size_t const of_track = kvmeld::learned_weights::floats(extent.key_dim);
  std::vector<float> weights(near.data, near.data + near.size());
  for (std::size_t i = of_track - 2; i < weights.size(); i += of_track) weights[i] = 0.0f;
  typename Device::template array<float> const far_weights(weights);
  near.data = weights.data();
  there.data = far_weights.data();
  auto const made = [](kvmeld::learned_weights const& w, bool centroids) {
    kvmeld::rope_params const rope{kvmeld::rope_pairing::half_split};
    auto const evicting = kvmeld::preset::learned::with_weights(w, rope, kvmeld::quantity::entries(3));
    return centroids ? kvmeld::compose::composed_of(kvmeld::preset::with_centroids(evicting, rope))
                     : kvmeld::compose::composed_of(evicting);
  };
  for (bool const centroids : {false, true}) {
    auto const far = made(there, centroids);
    same_life<typename Device::bfloat16>(device, centroids ? "learned, centroids" : "learned",
                                         made(near, centroids), 0, kvmeld::tuning::off, short_life, &far);
  }
}

template <class Device> void compositions(Device const& device) {
  made_for const now(small);
  std::uint64_t turn = support::test_run() % 4;  // a slow device tries another quarter in every run
  same_learned(device);
  same_composed<Device> const same{device, &turn};
  support::each_preset(same);
  support::each_ems_preset(same);
  support::each_center_mix(same);
  support::each_consecutive_mix(same);
  support::each_bipartite_mix(same);
}

}  // namespace device_test
