#pragma once

#include <cstdint>
#include <cstring>

#include <kvmeld/kvmeld.hpp>

// The body that every translation unit of the program compiles under options of its own. What has external linkage
// here is either named by the unit or kvmeld's; kvmeld's inline namespace has to keep the units apart.
namespace one_program {

constexpr int probe_count = 9;

struct report {
  std::uint32_t keys[probe_count];
};

report plain();
report fast_math();
report no_exceptions();
report no_openmp();

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
  return result;
}

}  // namespace one_program
