// Members of sets in order: by key, ties by slot.
#include <doctest/doctest.h>

#include <kvmeld/merge/sets.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "support/random_cache.hpp"

namespace sets_cases {

namespace {

using slots = std::vector<kvmeld::slot_t>;

// Where place_by_key puts every member, by slot.
slots places(slots const& members, std::vector<std::uint32_t> const& keys) {
  std::vector<kvmeld::candidate> ranks(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) ranks[i].key = keys[i];
  slots out(keys.size(), 99);
  kvmeld::detail::place_by_key(kvmeld::serial_team(nullptr, 0), ranks.data(),
                               {members.data(), static_cast<std::uint32_t>(members.size())},
                               [&](kvmeld::slot_t s, std::uint32_t place) { out[s] = place; });
  return out;
}

}  // namespace

TEST_CASE("members are placed by key, and by slot where keys are equal") {
  CHECK(places({4, 1, 3}, {9, 5, 9, 5, 5}) == slots{99, 0, 99, 1, 2});
  CHECK(places({0, 1, 2}, {7, 7, 7}) == slots{0, 1, 2});
  CHECK(places({2, 1, 0}, {1, 0, 1}) == slots{1, 0, 2});
  support::dice d(11);
  for (int times = 0; times < 200; ++times) {
    std::uint32_t const n = d.between(1, 12);
    slots members;
    std::vector<std::uint32_t> keys;
    for (std::uint32_t s = 0; s < n; ++s) {
      keys.push_back(d.below(4));
      if (d.chance(0.7)) members.push_back(s);
    }
    slots order = members, expected(n, 99);
    std::stable_sort(order.begin(), order.end(),
                     [&](kvmeld::slot_t a, kvmeld::slot_t b) { return keys[a] < keys[b]; });
    for (std::uint32_t i = 0; i < order.size(); ++i) expected[order[i]] = i;
    for (std::size_t i = members.size(); i > 1; --i)
      std::swap(members[i - 1], members[d.below(static_cast<std::uint32_t>(i))]);
    CHECK(places(members, keys) == expected);
  }
}

TEST_CASE("slots are sorted whatever their order was") {
  support::dice d(12);
  for (int times = 0; times < 300; ++times) {
    slots list;
    for (std::uint32_t s = 0; s < 20; ++s) {
      if (d.chance(0.5)) list.push_back(s);
    }
    slots const expected = list;
    bool const pivot_first = d.chance(0.3) && !list.empty();
    if (pivot_first) {  // as one lane lists a set: the rest is in order
      auto const at =
          list.begin() + static_cast<std::ptrdiff_t>(d.below(static_cast<std::uint32_t>(list.size())));
      std::rotate(list.begin(), at, at + 1);
    }
    for (std::size_t i = list.size(); i > 1 && !pivot_first; --i)
      std::swap(list[i - 1], list[d.below(static_cast<std::uint32_t>(i))]);
    kvmeld::detail::sort_members(list.data(), static_cast<std::uint32_t>(list.size()));
    CHECK(list == expected);
  }
}

}  // namespace sets_cases
