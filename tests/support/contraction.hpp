// Whether the compiler joins a product and a sum into one rounding, as it may where the target has an
// instruction for it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "support/cache_bytes.hpp"

namespace support {

/// True on AArch64 and with -march=native, unless built with -ffp-contract=off.
inline bool contracts_products() {
  float volatile given = 1.0f + 0x1p-12f;
  float const x = given;
  return x * x - (1.0f + 0x1p-11f) != 0.0f;  // rounded, the square is the other number
}

/// Equal bits, or where products are contracted equal up to the coarsest rounding of a stored row.
inline bool same_sums(std::vector<float> const& a, std::vector<float> const& b) {
  if (same_bits(a, b)) return true;
  if (!contracts_products() || a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::fabs(a[i] - b[i]) <= 0x1p-7f * std::max(1.0f, std::fabs(b[i])))) return false;
  }
  return true;
}

}  // namespace support
