// Chelsea, Theorem 6.1 (paper 001, section 6 and appendix A), checked by looking at every partition.
//
// Claim: for f with f(1)-f(2) >= f(2)-f(3) >= ... >= 0 (convex, decreasing), among all A, B with
// A u B = {1..2n}, |A| = |B| = n, the alternating partition maximises the sum over ALL pairs (x in A,
// y in B) of f(|x - y|). f stands for similarity by distance: the keys themselves do not occur, nor do
// best edges, thresholds or chunks, and there may be other maximisers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace reference {

using distance_score = std::vector<double>;  // f[d] for d = 1 .. length - 1; f[0] is not used
using partition = std::vector<char>;         // 1: in A, 0: in B; element x of the theorem at x - 1

// Sum over x in A, y in B of f(|x - y|): Eq. 3.
inline double partition_value(partition const& in_a, distance_score const& f) {
  double sum = 0;
  for (std::size_t x = 0; x < in_a.size(); ++x)
    for (std::size_t y = x + 1; y < in_a.size(); ++y)
      if (in_a[x] != in_a[y]) sum += f[y - x];
  return sum;
}

// A_0 = {1, 3, 5, ...}, B_0 = {2, 4, 6, ...}; an odd length gives A the extra element.
inline partition alternating(std::size_t length) {
  partition in_a;
  for (std::size_t x = 0; x < length; ++x) in_a.push_back(x % 2 == 0);
  return in_a;
}

// The assumption: the steps f(d) - f(d+1) never grow and never turn negative.
inline bool convex_and_decreasing(distance_score const& f, std::size_t length) {
  for (std::size_t d = 1; d + 1 < length; ++d) {
    if (f[d] - f[d + 1] < 0) return false;
    if (d + 2 < length && f[d] - f[d + 1] < f[d + 1] - f[d + 2]) return false;
  }
  return true;
}

// The maximum of Eq. 3 over all partitions with |A| = size_a: 2^length of them are looked at.
inline double best_partition_value(std::size_t length, std::size_t size_a, distance_score const& f) {
  bool found = false;
  double best = 0;
  for (unsigned long subset = 0; subset < (1ul << length); ++subset) {
    partition in_a;
    std::size_t size = 0;
    for (std::size_t x = 0; x < length; ++x) {
      in_a.push_back(static_cast<char>((subset >> x) & 1ul));
      if (in_a.back()) ++size;
    }
    if (size != size_a) continue;
    double const value = partition_value(in_a, f);
    if (!found || value > best) best = value;
    found = true;
  }
  return best;
}

// The proof's closed form of the maximum, Eq. 15 with the sum of Eq. 14 for c_{2n,j}:
// n^2 f(2n-1) + sum_j c_{2n,j} b_j, b_j = a_j - a_{j+1}, a_j = f(j) - f(j+1), b_{2n-2} = a_{2n-2}.
inline double theorem_maximum(std::size_t n, distance_score const& f) {
  double const half = static_cast<double>(n);
  double value = half * half * f[2 * n - 1];
  for (std::size_t j = 1; j + 2 <= 2 * n; ++j) {
    double const step = f[j] - f[j + 1];
    double const b = j + 2 == 2 * n ? step : step - (f[j + 1] - f[j + 2]);
    double c = 0;
    for (std::size_t i = 1; i <= (j + 1) / 2; ++i)
      c += static_cast<double>(2 * n - 2 * i + 1) * static_cast<double>(j - 2 * i + 2);
    value += c * b;
  }
  return value;
}

}  // namespace reference
