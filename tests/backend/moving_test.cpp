// Compaction of so many rows that they go past the caches, against the generic loops.
#include <doctest/doctest.h>

#include <kvmeld/cache/merged_cache.hpp>
#include <kvmeld/layout/strided.hpp>
#include <kvmeld/preset/eviction.hpp>

#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/instruction_sets.hpp"
#include "support/random_cache.hpp"

namespace {

/// K and V after StreamingLLM, as bytes. `shift` elements before the tensors keep them from whole lines.
template <class T>
std::vector<unsigned char> evicted(kvmeld::host_executor executor, char const* order, std::uint32_t shift,
                                   std::uint32_t kept) {
  std::uint32_t const n = 40000, heads = 2, channels = 256 / sizeof(T);
  kvmeld::shape const extent{1, 1, heads, 1, channels, channels, n};
  std::size_t const size = std::size_t{heads} * n * channels;
  kvmeld::host_memory const keys((shift + size) * sizeof(T)), values((shift + size) * sizeof(T));
  support::dice d(24);
  auto* const k = static_cast<T*>(keys.data());
  auto* const v = static_cast<T*>(values.data());
  for (std::size_t i = 0; i < shift + size; ++i) {
    std::uint64_t const bits = d.next();
    k[i] = kvmeld::element_traits<T>::from_float(static_cast<float>(bits >> 40));
    v[i] = kvmeld::element_traits<T>::from_float(static_cast<float>((bits >> 16) & 0xffffffu));
  }
  kvmeld::strided<T> const key_rows(k + shift, order, extent, channels);
  kvmeld::strided<T> const value_rows(v + shift, order, extent, channels);
  kvmeld::merged_cache cache(executor, kvmeld::preset::streaming_llm::with_sinks(),
                             kvmeld::kv{key_rows, value_rows}, {extent});
  cache.open(0, n);
  cache.compress({0}, kvmeld::budget::entries(kept));
  CHECK(cache.length(0, 0, 1) == kept);
  std::vector<unsigned char> out(keys.size() + values.size());
  std::memcpy(out.data(), keys.data(), keys.size());
  std::memcpy(out.data() + keys.size(), values.data(), values.size());
  return out;
}

}  // namespace

TEST_CASE_TEMPLATE("many rows are moved and cleared as few are", T, float, kvmeld::bfloat16) {
  for (char const* order : {"LSHTC", "LSTHC"}) {
    for (std::uint32_t shift : {0u, 8u}) {
      CAPTURE(order);
      CAPTURE(shift);
      // 38,000 rows of 256 bytes are more than 8 MiB, which go past the caches; 20,000 are not.
      for (std::uint32_t kept : {38000u, 20000u}) {
        auto const wanted = evicted<T>(kvmeld::host_executor(1, kvmeld::tuning::off), order, shift, kept);
        for (auto set : instruction_sets()) {
          CAPTURE(kvmeld::name_of(set));
          CHECK(
              (evicted<T>(kvmeld::host_executor(2, kvmeld::tuning::on, set), order, shift, kept) == wanted));
        }
      }
    }
  }
}
