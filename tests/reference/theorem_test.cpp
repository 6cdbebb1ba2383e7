// Chelsea's theorem 6.1 against every partition of short sequences.
#include "theorem.hpp"

#include <cmath>

#include <doctest/doctest.h>

using namespace reference;
using doctest::Approx;

TEST_CASE("Chelsea's theorem 6.1 on every partition of up to 10") {
  // f per distance: linear, geometric, a hinge, a first step only, and one below zero.
  auto const f_of = [](int kind, double d) {
    double const all[] = {20 - d, std::pow(0.5, d), std::max(0.0, 4 - d), d < 2 ? 1.0 : 0.0, -d};
    return all[kind];
  };
  for (int kind = 0; kind < 5; ++kind)
    for (std::size_t length = 2; length <= 10; ++length) {
      distance_score f;
      for (std::size_t d = 0; d < length; ++d) f.push_back(f_of(kind, static_cast<double>(d)));
      REQUIRE(convex_and_decreasing(f, length));
      double const alternated = partition_value(alternating(length), f);
      CHECK(alternated == Approx(best_partition_value(length, (length + 1) / 2, f)));  // odd lengths too
      if (length % 2 == 0) CHECK(alternated == Approx(theorem_maximum(length / 2, f)));
    }
  // Both assumptions are needed. f = 1, 1, 0 is not convex: {1,3} has 3 f(1) + f(3) = 3, but {1,4} has
  // 2 f(1) + 2 f(2) = 4.
  distance_score const bent{0, 1, 1, 0};
  CHECK_FALSE(convex_and_decreasing(bent, 4));
  CHECK(partition_value(alternating(4), bent) == 3);
  CHECK(best_partition_value(4, 2, bent) == 4);
  // Equal sizes: for f < 0 an empty A has 0, more than any other.
  CHECK(best_partition_value(4, 0, {0, -1, -2, -3}) > best_partition_value(4, 2, {0, -1, -2, -3}));
}
