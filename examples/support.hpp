// What stands in for an engine in the short examples: K and V filled with smooth random rows, one query per
// head.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <cstdint>
#include <vector>

namespace examples {

/// An engine's cache tensors, token-major: [layer][sequence][slot][kv_head][channel].
struct engine_tensors {
  kvmeld::shape extent;
  std::vector<float> k, v;

  /// Rows drift along the tokens, as keys of real models do, so that neighbours resemble each other.
  explicit engine_tensors(kvmeld::shape const& s = {2, 1, 4, 2, 64, 64, 1024})
      : extent(s), k(s.slots() * s.key_dim), v(s.slots() * s.value_dim) {
    std::uint32_t const row = extent.kv_heads * extent.key_dim;
    for (std::vector<float>* x : {&k, &v}) {
      for (std::uint32_t i = 0; i < x->size(); ++i) {
        float const noise = kvmeld::uniform01({x == &k ? 1u : 2u, 0, 0, 0, i}) - 0.5f;
        (*x)[i] = i < row ? noise : 0.9f * (*x)[i - row] + noise;
      }
    }
  }
  kvmeld::strided<float> keys() { return {k.data(), "LSTHC", extent, extent.key_dim}; }
  kvmeld::strided<float> values() { return {v.data(), "LSTHC", extent, extent.value_dim}; }
};

}  // namespace examples
