#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <kvmeld/kvmeld.hpp>

// The body that every translation unit of the program compiles under options of its own. What has external
// linkage here is either named by the unit or kvmeld's; kvmeld's inline namespace has to keep the units
// apart.
namespace one_program {

constexpr int probe_count = 9;

constexpr int refusal_count = 2;
constexpr std::size_t refusal_length = 200;

struct report {
  std::uint32_t keys[probe_count];
  bool throws;                                  // how this unit is refused
  char refusal[refusal_count][refusal_length];  // and with which text: of a constructor, of a call
  bool accepted;                                // sound calls go through
  bool unusable;                                // a cache whose construction was refused refuses every call
  std::uint32_t length, warnings;               // after a whole compression
  float degrees;
  double values;
};

report plain();
report fast_math();
report no_exceptions();

using policy_type = kvmeld::preset::chelsea::type;
using cache_type = kvmeld::merged_cache<kvmeld::host_executor, policy_type, kvmeld::strided<float>,
                                        kvmeld::transposed<kvmeld::float16>>;

// A cache of one track over memory of the caller.
static inline cache_type make_cache(float* keys, kvmeld::float16* values, std::uint32_t chunk) {
  kvmeld::cache_options options{};
  options.extent = {1, 1, 1, 1, 8, 4, 64};
  policy_type policy = kvmeld::preset::chelsea::with_schedule(
      {0.4, 0.0, 0, 0.05}, kvmeld::quantity::entries(2), kvmeld::quantity::entries(4));
  policy.identify.chunk = chunk;
  return cache_type{kvmeld::host_executor(2), policy,
                    kvmeld::kv{kvmeld::strided<float>(keys, "LSHTC", options.extent, 8),
                               kvmeld::transposed<kvmeld::float16>(values, "LSHCT", options.extent, 4)},
                    options};
}

// A refusal is thrown, or returned as a status with the same text.
template <class F> static inline void refuse(report& r, int which, F call) {
#if defined(__cpp_exceptions)
  try {
    (void)call();
  } catch (kvmeld::invalid_argument const& e) {
    r.throws = true;
    std::snprintf(r.refusal[which], refusal_length, "%s", e.what());
  }
#else
  kvmeld::status const s = call();
  r.throws = s.ok();
  std::snprintf(r.refusal[which], refusal_length, "%s", s.text().c_str());
#endif
}

static inline void compress(report& r) {
  static float keys[64 * 8];
  static kvmeld::float16 values[64 * 4];
  for (int i = 0; i < 64 * 8; ++i)
    keys[i] = static_cast<float>((i * 7919) % 101 - 50) + 8.0f * static_cast<float>(i % 8);
  for (int i = 0; i < 64 * 4; ++i) values[i] = kvmeld::element_traits<kvmeld::float16>::from_float(1.0f);
  cache_type cache = make_cache(keys, values, 16);
  r.accepted = cache.open(0, 60).ok() && cache.compress({0}, kvmeld::budget::entries(20)).ok();
  r.length = cache.longest(0);
  r.warnings = cache.warnings(0);
  kvmeld::track const t = cache.ref().where(0, 0, 0);
  for (std::uint32_t s = 0; s < r.length; ++s) {
    r.degrees += cache.ref().degree(t, s);
    float row[4];
    cache.ref().values.load_tile(kvmeld::serial_team(nullptr, 0), t, s, 1, 0, 4, row, 4);
    for (float const x : row) r.values += static_cast<double>(x * cache.ref().degree(t, s));
  }
  refuse(r, 0, [&] { return make_cache(keys, values, 1).valid(); });
  refuse(r, 1, [&] { return cache.open(0, 60); });
#if defined(__cpp_exceptions)
  r.unusable = true;
#else
  cache_type broken = make_cache(keys, values, 1);
  r.unusable =
      !broken.valid().ok() && !broken.open(0, 1).ok() && broken.open(0, 1).text() == broken.valid().text();
#endif
}

static inline report run() {
  // quiet NaN, -inf, -1, smallest negative subnormal, -0, +0, smallest subnormal, 1, +inf
  const std::uint32_t bits[probe_count] = {0x7fc00000u, 0xff800000u, 0xbf800000u, 0x80000001u, 0x80000000u,
                                           0x00000000u, 0x00000001u, 0x3f800000u, 0x7f800000u};
  report result{};
  for (int i = 0; i < probe_count; ++i) {
    float value;
    std::memcpy(&value, &bits[i], sizeof value);
    result.keys[i] = kvmeld::order_key(value);
  }
  compress(result);
  return result;
}

}  // namespace one_program
