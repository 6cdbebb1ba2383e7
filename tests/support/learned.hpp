// Weights for policies with the score learned, which have no numbers of their own.
#pragma once

#include <kvmeld/compose/part_parameters.hpp>
#include <kvmeld/score/learned.hpp>

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "support/random_cache.hpp"

namespace support {

/// Random weights for caches of this shape, the same in every call. They live as long as the program.
inline kvmeld::learned_weights some_weights(kvmeld::shape const& s) {
  static std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::vector<float>> all;
  kvmeld::learned_weights out{nullptr, s.layers, s.kv_heads, s.key_dim};
  std::vector<float>& of = all[{s.layers, s.kv_heads, s.key_dim}];
  if (of.empty()) {
    dice d(77);
    for (std::size_t i = 0; i < out.size(); ++i) of.push_back(static_cast<float>(d.normal()));
  }
  out.data = of.data();
  return out;
}

/// The policy with such weights, if its score is learned.
inline kvmeld::compose::composed taught(kvmeld::compose::composed policy, kvmeld::shape const& s) {
  kvmeld::compose::set_learned(policy, some_weights(s));
  return policy;
}

}  // namespace support
