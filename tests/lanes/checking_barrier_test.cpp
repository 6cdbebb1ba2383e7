// The instrument itself: lanes that are not at the same place, scratch that was not declared, races of
// counters.

#include <kvmeld/testing/lane_executor.hpp>

#include <atomic>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "support/any_track.hpp"

namespace checking_barrier_cases {

namespace {

constexpr kvmeld::shape extent{1, 1, 1, 1, 1, 1, 1};

using support::any_track;

// A phase from a function of the team.
template <class F> struct phase_of {
  F body;
  std::size_t bytes;
  std::uint32_t tiles(kvmeld::shape const&) const { return 3; }
  std::size_t scratch_bytes(int lanes) const { return bytes * static_cast<std::size_t>(lanes); }
  template <class Team> void operator()(Team const& team, kvmeld::tile const& t) const { body(team, t); }
};

// What the instrument finds in three tiles of `body`.
template <class F> std::vector<std::string> run(F body, std::uint32_t lanes, std::size_t bytes = 0) {
  kvmeld::testing::findings found;
  kvmeld::testing::lane_executor(lanes, 1, kvmeld::testing::tile_order::ascending, &found)
      .run(phase_of<F>{body, bytes}, extent, 1, any_track{});
  return found.all();
}

bool holds(std::string const& text, char const* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("lanes that agree are left alone") {
  for (std::uint32_t lanes : {1u, 2u, 5u, 8u}) {
    std::vector<std::uint32_t> sums(3), before(3 * lanes), fetched(3);
    auto const body = [&](auto const& team, kvmeld::tile const& t) {
      std::uint32_t const sum = team.reduce(team.lane() + 1, kvmeld::op_sum{});
      std::uint32_t const least = team.reduce(team.lane() + 7, kvmeld::op_min{});
      std::uint32_t const most = team.reduce(team.lane() + 7, kvmeld::op_max{});
      kvmeld::scan_result const s = team.scan(10 + team.lane());
      before[t.index * lanes + team.lane()] = s.before;
      team.for_each(100, [&](std::uint32_t) { team.fetch_add(&fetched[t.index], 1); });
      team.sync();
      if (team.lane() == 0) sums[t.index] = sum + 1000 * (most - least) + 100000 * s.total;
    };
    CHECK(run(body, lanes).empty());
    for (std::uint32_t i = 0; i < 3; ++i) {
      std::uint32_t total = 0;
      for (std::uint32_t lane = 0; lane < lanes; ++lane) {
        CHECK(before[i * lanes + lane] == total);
        total += 10 + lane;
      }
      CHECK(sums[i] == lanes * (lanes + 1) / 2 + 1000 * (lanes - 1) + 100000 * total);
      CHECK(fetched[i] == 100);
    }
  }
}

TEST_CASE("a lane at another place is found") {
  SUBCASE("another barrier") {
    auto const found = run(
        [](auto const& team, kvmeld::tile const&) {
          if (team.lane() == 1) {
            team.sync();
          } else {
            team.sync();
          }
        },
        4);
    REQUIRE(found.size() == 1);
    CHECK(holds(found[0], "checking_barrier_test.cpp:"));
    CHECK(holds(found[0], "lane 1 is in sync"));
  }
  SUBCASE("a barrier left out") {
    auto const found = run(
        [](auto const& team, kvmeld::tile const&) {
          if (team.lane() != 2) team.sync();
        },
        3);
    REQUIRE(found.size() == 1);
    CHECK(holds(found[0], "lane 2 is in end of tile"));
  }
  SUBCASE("a loop that runs longer on one lane") {
    auto const found = run(
        [](auto const& team, kvmeld::tile const&) {
          for (std::uint32_t i = 0; i < 2 + team.lane() / 4; ++i) team.sync();
        },
        5);
    REQUIRE(found.size() == 1);
  }
  SUBCASE("another collective call") {
    auto const found = run(
        [](auto const& team, kvmeld::tile const&) {
          if (team.lane() == 0) {
            team.scan(1);
          } else {
            team.reduce(1, kvmeld::op_sum{});
          }
        },
        2);
    REQUIRE(found.size() == 1);
    CHECK(holds(found[0], "scan"));
    CHECK(holds(found[0], "reduce"));
  }
  SUBCASE("work shared out by some lanes only, or over another count") {
    CHECK(run(
              [](auto const& team, kvmeld::tile const&) {
                if (team.lane() == 0) team.for_each(4, [](std::uint32_t) {});
                team.sync();
              },
              2)
              .size() == 1);
    CHECK(run(
              [](auto const& team, kvmeld::tile const&) {
                team.for_each(4 + team.lane(), [](std::uint32_t) {});
                team.sync();
              },
              2)
              .size() == 1);
  }
}

TEST_CASE("scratch is poisoned, exactly as declared, and guarded") {
  std::atomic<std::uint32_t> clean{0};
  auto const fill = [&](auto const& team, kvmeld::tile const&) {
    std::uint32_t* const x = team.template scratch<std::uint32_t>(16 * team.lanes());
    team.for_each(16 * team.lanes(), [&](std::uint32_t i) { clean += x[i] == 0xFFFFFFFFu ? 1u : 0u; });
    team.sync();
    team.for_each(16 * team.lanes(), [&](std::uint32_t i) { x[i] = i; });
  };
  CHECK(run(fill, 3, 64).empty());
  CHECK(clean == 3 * 16 * 3);  // all of it, in every tile

  auto const found =
      run([](auto const& team, kvmeld::tile const&) { team.template scratch<float>(17); }, 2, 32);
  REQUIRE(found.size() == 3);
  CHECK(holds(found[0], "128 bytes asked for, 64 declared"));

  auto const beyond = [](auto const& team, kvmeld::tile const& t) {
    std::byte* const x = team.template scratch<std::byte>(64);
    team.sync();
    if (team.lane() == 0 && t.index == 2) x[64] = std::byte{0};
  };
  auto const written = run(beyond, 2, 32);
  REQUIRE(written.size() == 1);
  CHECK(holds(written[0], "beyond the 64 bytes"));
}

}  // namespace checking_barrier_cases
