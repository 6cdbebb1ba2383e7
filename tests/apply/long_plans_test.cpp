// Plans written by hand for tracks of several tiles, against naive loops, and on several lanes.
#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing/lane_executor.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "hand_made.hpp"
#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

using doctest::Approx;
using kvmeld::fate;
using support::dice;

namespace long_plans_cases {

namespace {

constexpr std::uint32_t n = 1400;
constexpr kvmeld::shape extent{1, 1, 1, 1, 19, 21, n};

// Entry s with s % 3 != 0 shares the slot of the entry before that has s % 3 == 0. Every ninth set stays as
// it is.
bool shares(std::uint32_t s) { return s % 27 >= 3 && s % 3 != 0; }
bool owns(std::uint32_t s) { return s % 27 >= 3 && s % 3 == 0 && s + 1 < n; }

template <class Executor> support::byte_list share_by_hand(Executor executor, bool check) {
  dice d(17);
  std::vector<float> k(std::size_t{n} * extent.key_dim), v(std::size_t{n} * extent.value_dim);
  for (float& x : k) x = static_cast<float>(d.normal());
  for (float& x : v) x = static_cast<float>(d.normal());
  for (std::uint32_t c = 0; c < extent.key_dim; ++c) k[4 * extent.key_dim + c] = 0.0f;
  std::vector<float> const before = k;
  kvmeld::cache_options sizes = support::with_plan(n);
  sizes.extent = extent;
  kvmeld::merged_cache cache{std::move(executor), hand_made::policy(),
                             kvmeld::kv{kvmeld::strided<float>(k.data(), "LSHTC", extent, extent.key_dim),
                                        kvmeld::strided<float>(v.data(), "LSHTC", extent, extent.value_dim)},
                             sizes};
  cache.open(0, n);
  cache.plan({0}, kvmeld::budget::entries(n));
  kvmeld::plan_ref const plan = cache.current_plan();
  for (std::uint32_t s = 0; s < n; ++s) {
    if (shares(s)) hand_made::send(plan, 0, s, fate::share, s / 3 * 3, 0.25f, 0.25f, 1.0f);
  }
  hand_made::dump::renumber(plan, 0);
  cache.apply();
  if (check) {
    std::size_t wrong = 0;
    kvmeld::ledger_ref const& l = cache.ledger();
    auto const is_norm_of = [&](float norm, std::uint32_t s) {
      double square = 0;
      for (std::uint32_t c = 0; c < extent.key_dim; ++c) {
        double const x = before[std::size_t{s} * extent.key_dim + c];
        square += x * x;
      }
      return norm > 0.0f && std::fabs(norm - std::sqrt(square)) <= 1e-5 * std::sqrt(square) + 2e-30;
    };
    std::uint32_t slot = 0, member = 0;
    for (std::uint32_t s = 0; s < n; ++s) {
      if (shares(s)) {
        wrong += is_norm_of(l.members.norm[member], s) && l.members.owner[member] == slot - 1 ? 0 : 1;
        ++member;
        continue;
      }
      wrong += owns(s) ? !is_norm_of(l.members.own_norm[slot], s) : l.members.own_norm[slot] != 0.0f;
      ++slot;
    }
    CHECK(wrong == 0);
    CHECK(l.members.count[0] == member);
    CHECK(cache.length(0, 0, 0) == slot);
  }
  support::byte_list bytes = support::ledger_bytes(cache);
  for (support::byte_list const& rows : {support::bytes_of(k), support::bytes_of(v)})
    bytes.insert(bytes.end(), rows.begin(), rows.end());
  return bytes;
}

}  // namespace

TEST_CASE("entries that share a slot keep the norms of their keys, in every tile of a track") {
  auto const host = share_by_hand(kvmeld::host_executor(1), true);
  for (std::uint32_t lanes : {1u, 5u, 8u}) {
    CAPTURE(lanes);
    CHECK(host == share_by_hand(kvmeld::testing::lane_executor(lanes, 2), true));
  }
}

}  // namespace long_plans_cases
