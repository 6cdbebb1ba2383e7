// Keys that turn, in double: what the tests of shift and renumber expect.
#pragma once

#include <kvmeld/queries/rope.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace sequences_test {

// RoFormer's rotation of one row for a number of positions, in double.
inline std::vector<double> turned(std::vector<double> row, kvmeld::rope_pairing pairing, double base,
                                  double by) {
  std::size_t const pairs = row.size() / 2;
  for (std::size_t i = 0; i < pairs; ++i) {
    double const angle = by * std::pow(base, -static_cast<double>(i) / static_cast<double>(pairs));
    std::size_t const a = pairing == kvmeld::rope_pairing::half_split ? i : 2 * i;
    std::size_t const b = pairing == kvmeld::rope_pairing::half_split ? i + pairs : 2 * i + 1;
    double const x = row[a], y = row[b];
    row[a] = x * std::cos(angle) - y * std::sin(angle);
    row[b] = x * std::sin(angle) + y * std::cos(angle);
  }
  return row;
}

inline std::vector<double> in_double(std::vector<float> const& row) { return {row.begin(), row.end()}; }

inline kvmeld::rope_params rope_of(kvmeld::rope_pairing pairing) {
  kvmeld::rope_params r;
  r.pairing = pairing;
  return r;
}

inline double largest(std::vector<double> const& row) {
  double most = 0;
  for (double x : row) most = std::max(most, std::fabs(x));
  return most;
}

}  // namespace sequences_test
