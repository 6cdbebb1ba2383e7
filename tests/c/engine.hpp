// A small engine with float tensors, for tests of the C interface.
#pragma once

#include <kvmeld/kvmeld.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace c_test {

/// Options that kvmeld_create takes.
inline kvmeld_options options(char const* policy = "h2o") {
  kvmeld_options o;
  REQUIRE(kvmeld_options_init(&o, sizeof o) == KVMELD_OK);
  o.policy = policy;
  o.layers = 2;
  o.sequences = 3;
  o.kv_heads = 2;
  o.queries_per_kv_head = 2;
  o.key_dim = 8;
  o.value_dim = 8;
  o.capacity = 64;
  o.threads = 1;
  return o;
}

struct engine {
  static constexpr std::int64_t d = 8, token = d, head = 64 * d, sequence = 2 * head, layer = 3 * sequence;
  std::vector<float> k = std::vector<float>(2 * layer), v = k;
  kvmeld_tensor keys{k.data(), layer, sequence, head, token, 1},
      values{v.data(), layer, sequence, head, token, 1};
  kvmeld_cache cache{0};

  engine() {
    for (std::size_t i = 0; i < k.size(); ++i) {
      k[i] = static_cast<float>(i * 7919 % 1009) / 1009.0f - 0.5f;
      v[i] = static_cast<float>(i * 104729 % 997) / 997.0f - 0.5f;
    }
  }
  explicit engine(kvmeld_options const& o) : engine() {
    REQUIRE(kvmeld_create(&o, &keys, &values, 1, &cache) == KVMELD_OK);
  }
  explicit engine(char const* policy) : engine(options(policy)) {}
  engine(engine const&) = delete;
  ~engine() {
    if (cache.id != 0) kvmeld_destroy(cache);
  }
};

/// A budget of each track.
inline kvmeld_budget entries(std::uint32_t n) { return {n, 0.0, KVMELD_HEAD, 0.0, 0}; }

/// A call was refused, with this status and text.
inline void refused(kvmeld_status status, kvmeld_status wanted, std::string const& text) {
  CHECK(status == wanted);
  CHECK(std::string(kvmeld_problem()) == text);
}
inline void invalid(kvmeld_status status, std::string const& text) {
  refused(status, KVMELD_INVALID_ARGUMENT, text);
}

}  // namespace c_test
