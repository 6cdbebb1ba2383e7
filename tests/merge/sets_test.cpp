// Lists of members in order, sorted by one lane and several.
#include <doctest/doctest.h>

#include <kvmeld/merge/sets.hpp>
#include <kvmeld/testing/lane_executor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "support/any_track.hpp"
#include "support/random_cache.hpp"
#include "support/warp_executor.hpp"

namespace sets_cases {

namespace {

using slots = std::vector<kvmeld::slot_t>;

// Lists to sort, in memory of the test.
struct sort_phase {
  slots list, room;
  std::vector<kvmeld::lane_range> list_of;  // of each element
  std::uint32_t longest = 0;
  bool descending = false;
};
struct phase_ref {
  sort_phase* sorts;
  std::uint32_t tiles(kvmeld::shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }
  template <class Team> void operator()(Team const& team, kvmeld::tile const&) const {
    sort_phase& p = *sorts;
    kvmeld::detail::sort_lists(
        team, p.list.data(), p.room.data(), static_cast<std::uint32_t>(p.list.size()), p.longest,
        [&](kvmeld::slot_t x) { return p.list_of[x]; },
        [&](kvmeld::slot_t a, kvmeld::slot_t b) { return p.descending ? b < a : a < b; });
  }
};
using support::any_track;

}  // namespace

TEST_CASE("the pivot moves from the front to its place") {
  support::dice d(12);
  for (int times = 0; times < 300; ++times) {
    slots list;
    for (std::uint32_t s = 0; s < 20; ++s) {
      if (d.chance(0.5)) list.push_back(s);
    }
    if (list.empty()) continue;
    slots const expected = list;
    auto const at = list.begin() + d.below(static_cast<std::uint32_t>(list.size()));
    std::rotate(list.begin(), at, at + 1);
    kvmeld::detail::place_pivot(list.data(), static_cast<std::uint32_t>(list.size()));
    CHECK(list == expected);
  }
}

TEST_CASE_TEMPLATE("lists are sorted side by side, short and long ones", Executor,
                   kvmeld::testing::lane_executor, support::warp_executor) {
  support::dice d(13);
  support::for_teams<Executor>([&](Executor& executor) {
    for (std::uint32_t most : {0u, 1u, 2u, 31u, 32u, 33u, 64u, 65u, 130u, 700u}) {
      sort_phase phase;
      slots expected;
      std::uint32_t longest = 0;
      for (std::uint32_t i = 0; i < 6; ++i) {
        std::uint32_t const size = i == 3 ? most : d.below(most + 1);  // one as long as can be, some empty
        auto const begin = static_cast<std::uint32_t>(phase.list.size());
        for (std::uint32_t k = 0; k < size; ++k) phase.list.push_back(begin + k);
        expected = phase.list;
        for (std::uint32_t k = 0; k < size; ++k) phase.list_of.push_back({begin, begin + size});
        longest = std::max(longest, size);
      }
      // Elements are numbers of their own: descending, they sort by another order than ascending.
      bool const descending = d.chance(0.5);
      for (std::uint32_t begin = 0; begin < phase.list.size(); begin = phase.list_of[begin].end) {
        auto const from = phase.list.begin() + begin, to = phase.list.begin() + phase.list_of[begin].end;
        if (descending) std::reverse(expected.begin() + begin, expected.begin() + phase.list_of[begin].end);
        for (auto k = to - from; k > 1; --k)
          std::swap(from[k - 1], from[d.below(static_cast<std::uint32_t>(k))]);
      }
      phase.longest = longest;
      phase.descending = descending;
      phase.room.assign(phase.list.size(), 0);
      executor.run(phase_ref{&phase}, kvmeld::shape{1, 1, 1, 1, 1, 1, 1}, 1, any_track{});
      CAPTURE(most);
      CHECK(phase.list == expected);
    }
  });
}

}  // namespace sets_cases
