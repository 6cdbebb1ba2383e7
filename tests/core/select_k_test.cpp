// select_k against a stable sort; compact_indices, for_each_chosen and scan_values against loops; one lane
// and several.
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/testing/lane_executor.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

#include "support/any_track.hpp"
#include "support/random_cache.hpp"
#include "support/warp_executor.hpp"

namespace select_k_cases {

namespace {

using list = std::vector<std::uint32_t>;

// Indices of the k highest keys, 0 never among them, ties to the lower index; ascending.
list expected(list const& keys, std::uint32_t k) {
  list order(keys.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return keys[a] > keys[b]; });
  list taken;
  for (std::uint32_t i : order) {
    if (taken.size() < k && keys[i] != 0) taken.push_back(i);
  }
  std::sort(taken.begin(), taken.end());
  return taken;
}

struct select_phase {
  list* keys;
  std::uint32_t k;
  list* marks;
  std::uint32_t* count;
  std::uint32_t tiles(kvmeld::shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return kvmeld::select_k_scratch(); }
  template <class Team> void operator()(Team const& team, kvmeld::tile const&) const {
    auto const n = static_cast<std::uint32_t>(keys->size());
    std::uint32_t const marked = kvmeld::select_k(
        team, n, k, [&](std::uint32_t i) { return (*keys)[i]; },
        [&](std::uint32_t i) {
          ++(*marks)[i];
          (*keys)[i] = 0;  // a caller may mark where it reads
        });
    if (team.lane() == 0) *count = marked;
  }
};

struct visit_phase {
  list const* keys;
  list* visits;
  std::uint32_t tiles(kvmeld::shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }
  template <class Team> void operator()(Team const& team, kvmeld::tile const&) const {
    kvmeld::for_each_chosen(
        team, static_cast<std::uint32_t>(keys->size()), [&](std::uint32_t i) { return (*keys)[i] % 3 == 0; },
        [&](std::uint32_t i) { ++(*visits)[i]; });
  }
};

struct compact_phase {
  list const* keys;
  list* ranks;
  std::uint32_t* count;
  std::uint32_t tiles(kvmeld::shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }
  template <class Team> void operator()(Team const& team, kvmeld::tile const&) const {
    auto const n = static_cast<std::uint32_t>(keys->size());
    std::uint32_t const chosen = kvmeld::compact_indices(
        team, n, [&](std::uint32_t i) { return (*keys)[i] % 3 == 0; },
        [&](std::uint32_t rank, std::uint32_t i) { (*ranks)[rank] = i; });
    if (team.lane() == 0) *count = chosen;
  }
};

struct scan_phase {
  list* values;
  list* sums;
  std::uint32_t* all;
  std::uint32_t tiles(kvmeld::shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }
  template <class Team> void operator()(Team const& team, kvmeld::tile const&) const {
    std::uint32_t const total = kvmeld::scan_values(
        team, static_cast<std::uint32_t>(values->size()), [&](std::uint32_t i) { return (*values)[i]; },
        [&](std::uint32_t i, std::uint32_t before) {
          (*sums)[i] += before;
          (*values)[i] = 12345;  // a caller may write where it reads
        });
    if (team.lane() == 0) *all = total;
  }
};

constexpr kvmeld::shape extent{1, 1, 1, 1, 1, 1, 1};
using support::any_track;

template <class Executor> void check(Executor& executor, list const& given, std::uint32_t k) {
  list keys = given;
  list marks(keys.size(), 0);
  std::uint32_t count = 12345;
  executor.run(select_phase{&keys, k, &marks, &count}, extent, 1, any_track{});
  list taken;
  for (std::uint32_t i = 0; i < marks.size(); ++i) {
    for (std::uint32_t m = 0; m < marks[i]; ++m) taken.push_back(i);
  }
  CAPTURE(keys.size());
  CAPTURE(k);
  CHECK(taken == expected(given, k));
  CHECK(count == taken.size());
}

// Keys of many kinds: few values (ties), dense in one byte, zeros, all the same.
list random_keys(support::dice& d, std::uint32_t n) {
  list keys(n);
  std::uint32_t const kind = d.below(5);
  for (std::uint32_t& x : keys) {
    auto const any = static_cast<std::uint32_t>(d.next() >> 32);
    x = kind == 0   ? any
        : kind == 1 ? any % 4
        : kind == 2 ? 0x80000000u + any % 700
        : kind == 3 ? any & 0xff00ff00u
                    : 9;
    if (d.chance(0.1)) x = 0;
  }
  return keys;
}

}  // namespace

TEST_CASE("select_k takes the best, ties to the lower index") {
  kvmeld::host_executor host(1);
  support::dice d(6);
  for (std::uint32_t n : {0u, 1u, 2u, 3u, 17u, 255u, 256u, 257u, 1000u}) {
    for (int i = 0; i < 12; ++i) {
      list const keys = random_keys(d, n);
      for (std::uint32_t k : {0u, 1u, n / 3, n - (n != 0), n, n + 5, 0xffffffffu}) check(host, keys, k);
    }
  }
  check(host, {5, 5, 5, 5}, 2);
  check(host, {0, 0, 0}, 2);
  check(host, {0xffffffffu, 0xffffffffu, 1}, 2);
}

TEST_CASE("select_k does not depend on the number of lanes") {
  support::dice d(7);
  for (std::uint32_t lanes : {2u, 3u, 5u, 8u}) {
    kvmeld::testing::lane_executor executor(lanes);
    for (std::uint32_t n : {0u, 1u, 3u, 100u, 301u}) {
      for (int i = 0; i < 4; ++i) {
        list const keys = random_keys(d, n);
        check(executor, keys, d.below(n + 2));
      }
    }
  }
}

TEST_CASE("select_k on warps takes the same") {
  support::dice d(9);
  for (std::uint32_t warps : {1u, 2u}) {
    support::warp_executor executor(warps);
    for (std::uint32_t n : {0u, 1u, 31u, 32u, 65u, 300u, 1000u}) {
      for (int i = 0; i < 5; ++i) {
        list const keys = random_keys(d, n);
        for (std::uint32_t k : {0u, d.below(n + 2), n + 5}) check(executor, keys, k);
      }
    }
    check(executor, {5, 5, 5, 5}, 2);
    check(executor, {0, 0, 0}, 2);
    check(executor, {0xffffffffu, 0xffffffffu, 1}, 2);
  }
}

TEST_CASE_TEMPLATE("compact_indices keeps the order, for_each_chosen takes each once", Executor,
                   kvmeld::testing::lane_executor, support::warp_executor) {
  support::dice d(8);
  support::for_teams<Executor>([&](Executor& executor) {
    for (std::uint32_t n : {0u, 1u, 4u, 9u, 200u}) {
      list const keys = random_keys(d, n);
      list wanted;
      for (std::uint32_t i = 0; i < n; ++i) {
        if (keys[i] % 3 == 0) wanted.push_back(i);
      }
      list ranks(n, 777);
      std::uint32_t count = 999;
      executor.run(compact_phase{&keys, &ranks, &count}, extent, 1, any_track{});
      REQUIRE(count == wanted.size());
      ranks.resize(count);
      CHECK(ranks == wanted);
      list visits(n, 0);
      executor.run(visit_phase{&keys, &visits}, extent, 1, any_track{});
      for (std::uint32_t i = 0; i < n; ++i) CHECK(visits[i] == (keys[i] % 3 == 0 ? 1 : 0));
    }
  });
}

TEST_CASE_TEMPLATE("scan_values adds up what comes before each index", Executor,
                   kvmeld::testing::lane_executor, support::warp_executor) {
  support::dice d(9);
  support::for_teams<Executor>([&](Executor& executor) {
    for (std::uint32_t n : {0u, 1u, 4u, 31u, 32u, 33u, 200u, 1000u}) {
      list values(n), wanted(n), sums(n, 0);
      std::uint32_t sum = 0, all = 777;
      for (std::uint32_t i = 0; i < n; ++i) {
        values[i] = d.below(5);
        wanted[i] = sum;
        sum += values[i];
      }
      executor.run(scan_phase{&values, &sums, &all}, extent, 1, any_track{});
      CHECK(sums == wanted);
      CHECK(all == sum);
    }
  });
}

TEST_CASE("contiguous_range covers every index once, in order") {
  struct numbered {
    std::uint32_t number, of;
    std::uint32_t lane() const { return number; }
    std::uint32_t lanes() const { return of; }
  };
  for (std::uint32_t lanes : {1u, 2u, 7u, 256u}) {
    for (std::uint32_t n : {0u, 1u, 6u, 255u, 1000u, 0xffffffffu}) {
      std::uint32_t next = 0;
      for (std::uint32_t lane = 0; lane < lanes; ++lane) {
        auto const r = kvmeld::contiguous_range(numbered{lane, lanes}, n);
        CHECK(r.begin == next);
        CHECK(r.end >= r.begin);
        next = r.end;
      }
      CHECK(next == n);
    }
  }
}

}  // namespace select_k_cases
