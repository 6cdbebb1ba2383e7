// team_sum adds up every term, in one order for any number of lanes.
#include <kvmeld/exec/team.hpp>
#include <kvmeld/testing/lane_executor.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "support/any_track.hpp"
#include "support/random_cache.hpp"

namespace team_sum_cases {

namespace {

struct sum_phase {
  std::vector<float> const* terms;
  float* sum;
  std::uint32_t tiles(kvmeld::shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return kvmeld::team_sum_scratch(); }
  template <class Team> void operator()(Team const& team, kvmeld::tile const&) const {
    float* const partial = team.template scratch<float>(kvmeld::team_partials);
    float const all = kvmeld::team_sum(
        team, static_cast<std::uint32_t>(terms->size()), [&](std::uint32_t i) { return (*terms)[i]; },
        partial);
    if (team.lane() == 0) *sum = all;
  }
};

constexpr kvmeld::shape extent{1, 1, 1, 1, 1, 1, 1};
using support::any_track;

template <class Executor> float sum_of(Executor&& executor, std::vector<float> const& terms) {
  float sum = -1.0f;
  executor.run(sum_phase{&terms, &sum}, extent, 1, any_track{});
  return sum;
}

}  // namespace

TEST_CASE("every term is added once, whatever the number of terms") {
  support::dice d(4);
  for (std::uint32_t n : {0u, 1u, 2u, 255u, 256u, 257u, 511u, 512u, 513u, 1000u, 5000u}) {
    CAPTURE(n);
    std::vector<float> ones(n, 1.0f), terms(n);
    double expected = 0, size = 0;
    for (float& x : terms) {
      x = static_cast<float>(d.normal());
      expected += static_cast<double>(x);
      size += std::fabs(static_cast<double>(x));
    }
    CHECK(sum_of(kvmeld::host_executor(1), ones) == static_cast<float>(n));
    float const sum = sum_of(kvmeld::host_executor(1), terms);
    CHECK(std::fabs(static_cast<double>(sum) - expected) <= (n / 256 + 10) * 0x1p-24 * size);
    CHECK(sum_of(kvmeld::testing::lane_executor(3), terms) == sum);
    CHECK(sum_of(kvmeld::testing::lane_executor(8), terms) == sum);
  }
}

}  // namespace team_sum_cases
