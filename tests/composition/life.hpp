// A prompt, a compression, some tokens more, another compression: under any policy, watched.
#pragma once

#include <kvmeld/testing.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

namespace composition_test {

using support::dice;

// Two sequences of ragged tracks under a policy; the second is a bystander.
template <class Policy> struct subject {
  support::engine_memory<float> memory;
  decltype(support::make_cache(std::declval<support::engine_memory<float>&>(),
                               std::declval<Policy const&>())) cache;

  subject(kvmeld::shape const& s, Policy const& p, kvmeld::cache_options options, std::uint32_t threads)
      : memory(s), cache(support::make_cache(memory, p, options, threads)) {}

  void fill(dice& d, std::uint32_t q, std::uint32_t first, std::uint32_t n) {
    support::for_tracks(memory.extent, q, [&](kvmeld::track t) {
      std::uint32_t const from = first == 0 ? 0 : cache.ref().length(t) - n;
      auto const how = d.chance(0.5) ? support::texture::walk : support::texture::clusters;
      memory.fill(t, from, support::random_rows(d, n, memory.extent.key_dim, how),
                  support::random_rows(d, n, memory.extent.value_dim, support::texture::clusters));
    });
  }
  void open(dice& d, std::uint32_t q, std::uint32_t n) {
    cache.open(q, n);
    fill(d, q, 0, n);
  }
  void grow(dice& d, std::uint32_t q, std::uint32_t n) {
    cache.append({q}, {n});
    cache.commit({q}, {n});
    fill(d, q, 1, n);
  }
  void observe(dice& d, std::uint32_t q, std::uint32_t rows) {
    kvmeld::shape const& s = memory.extent;
    std::vector<float> p(std::size_t{s.query_heads()} * rows * s.capacity);
    for (float& x : p) x = static_cast<float>(d.below(64)) / 1024.0f;
    for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
      support::observe_numbers(cache, {layer, q, rows}, p.data(), rows, s.capacity);
    }
  }
  // Prompt, compression, some tokens more, compression again.
  void live(std::uint64_t seed, kvmeld::budget first, kvmeld::budget second, std::string& broken) {
    dice d(seed);
    open(d, 0, memory.extent.capacity - 12);
    open(d, 1, 20);
    observe(d, 0, 24);
    observe(d, 1, 3);
    compress(first, broken);
    grow(d, 0, 9);
    observe(d, 0, 2);
    compress(second, broken);
  }
  void compress(kvmeld::budget to, std::string& broken) {
    kvmeld::testing::watch const before(cache);
    cache.compress({0}, to);
    if (broken.empty()) broken = before.after_compress(cache, std::vector<std::uint32_t>{0});
  }
  template <class Other> bool same_as(subject<Other> const& other) const {
    return memory == other.memory && support::ledger_bytes(cache) == support::ledger_bytes(other.cache);
  }
};

}  // namespace composition_test
