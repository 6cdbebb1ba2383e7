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
#include "support/track_view.hpp"
#include "support/warp_executor.hpp"

using doctest::Approx;
using kvmeld::fate;
using support::dice;

namespace long_plans_cases {

namespace {

constexpr std::uint32_t n = 1400;
constexpr kvmeld::shape extent{1, 1, 1, 1, 19, 69, n};

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
  kvmeld::cache_options options = support::with_plan(n);
  options.extent = extent;
  kvmeld::merged_cache cache{std::move(executor), hand_made::policy(),
                             kvmeld::kv{kvmeld::strided<float>(k.data(), "LSHTC", extent, extent.key_dim),
                                        kvmeld::strided<float>(v.data(), "LSHTC", extent, extent.value_dim)},
                             options};
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

// Most of the first 900 entries spread over one of three spans that overlap; the others stay. A pair merges.
struct spans {
  std::vector<float> weight = std::vector<float>(n, 1.0f);
  static bool spreads(std::uint32_t s) { return s < 900 && s % 4 != 3; }
  static std::uint32_t first(std::uint32_t s) { return s % 3 == 1 ? 1100 : 950; }
  static std::uint32_t count(std::uint32_t s) { return s % 3 == 0 ? 300 : s % 3 == 1 ? 250 : 400; }
  explicit spans(dice& d) {
    for (std::uint32_t s = 0; s < n; ++s) {
      if (spreads(s)) weight[s] = static_cast<float>(0.01 * d.uniform());
      if (s >= 950 && s < 1350) weight[s] = static_cast<float>(0.5 + d.uniform());
    }
    weight[904] = 0.25f;
    weight[905] = 0.75f;
  }
  void write(kvmeld::plan_ref const& plan) const {
    for (std::uint32_t s = 0; s < n; ++s) plan.value_weight[plan.at(0, s)] = weight[s];
    for (std::uint32_t s = 0; s < 900; ++s) {
      if (spreads(s)) hand_made::send(plan, 0, s, fate::spread, first(s), 1.0f, weight[s], 0.5f, count(s));
    }
    hand_made::send(plan, 0, 905, fate::merge, 904, 0.0f, weight[905], 1.0f);
    hand_made::dump::renumber(plan, 0);
  }
};

// How many values differ from those that the loops give, and how many degrees.
template <class T>
std::size_t count_wrong(spans const& by, std::vector<float> const& before, std::vector<float> const& after,
                        std::vector<float> const& degrees) {
  std::uint32_t const d = extent.value_dim;
  std::size_t wrong = 0, slot = 0;
  for (std::uint32_t s = 0; s < n; ++s) {
    if (spans::spreads(s) || s == 905) continue;
    double degree = s == 904 ? 2 : 1;
    std::vector<double> row(d);
    for (std::uint32_t c = 0; c < d; ++c) row[c] = before[std::size_t{s} * d + c];
    for (std::uint32_t i = 0; i < 900; ++i) {
      bool const reaches = spans::spreads(i) && spans::first(i) <= s && s < spans::first(i) + spans::count(i);
      if (!reaches) continue;
      degree += 0.5;
      for (std::uint32_t c = 0; c < d; ++c)
        row[c] += static_cast<double>(by.weight[i]) * before[std::size_t{i} * d + c];
    }
    for (std::uint32_t c = 0; c < d; ++c) {
      double const x =
          s == 904 ? 0.25 * row[c] + 0.75 * before[905 * std::size_t{d} + c] : by.weight[s] * row[c];
      double const off = std::fabs(after[slot * d + c] - x);
      wrong += off <= 0.51 * support::spacing<T>(x) + 1e-5 ? 0 : 1;
    }
    wrong += std::fabs(degrees[slot] - degree) <= 1e-4 * degree ? 0 : 1;
    ++slot;
  }
  return wrong;
}

template <class Layout, class Executor, class Make>
support::byte_list spread_by_hand(Executor executor, Make layout_of) {
  using T = typename Layout::element_type;
  dice d(29);
  spans const by(d);
  std::vector<float> k(std::size_t{n} * extent.key_dim);
  for (float& x : k) x = static_cast<float>(d.normal());
  std::vector<T> v(std::size_t{n} * extent.value_dim);
  for (T& x : v) x = kvmeld::element_traits<T>::from_float(static_cast<float>(d.normal()));
  Layout const values = layout_of(v.data());
  kvmeld::track const where = kvmeld::make_track(extent, 0, 0, 0);
  auto const read_rows = [&](std::uint32_t count) {
    std::vector<float> rows;
    for (std::uint32_t s = 0; s < count; ++s) {
      auto const row = support::get_row(values, where, s);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
  };
  std::vector<float> const before = read_rows(n);
  kvmeld::cache_options options = support::with_plan();
  options.extent = extent;
  kvmeld::merged_cache cache{
      std::move(executor), hand_made::policy(),
      kvmeld::kv{kvmeld::strided<float>(k.data(), "LSHTC", extent, extent.key_dim), values}, options};
  cache.open(0, n);
  cache.plan({0}, kvmeld::budget::entries(n));
  by.write(cache.current_plan());
  cache.apply();
  std::uint32_t const left = cache.length(0, 0, 0);
  CHECK(left == n - 675 - 1);
  float const* const degree = cache.ledger().degree + cache.ledger().at(where, 0);
  CHECK(count_wrong<T>(by, before, read_rows(left), {degree, degree + left}) == 0);
  support::byte_list bytes = support::ledger_bytes(cache);
  support::byte_list const rows = support::bytes_of(v);
  bytes.insert(bytes.end(), rows.begin(), rows.end());
  return bytes;
}

template <class Layout, class Make> void spread_alike(Make layout_of) {
  auto const host = spread_by_hand<Layout>(kvmeld::host_executor(1), layout_of);
  CHECK(host == spread_by_hand<Layout>(kvmeld::host_executor(1, kvmeld::tuning::off), layout_of));
  for (std::uint32_t lanes : {1u, 5u, 24u}) {
    CAPTURE(lanes);
    CHECK(host == spread_by_hand<Layout>(kvmeld::testing::lane_executor(lanes, 2), layout_of));
  }
  for (std::uint32_t warps : {1u, 2u}) {
    support::warp_executor const executor(warps);
    CHECK(host == spread_by_hand<Layout>(executor, layout_of));
    CHECK(executor.tuned_launches() != 0);
  }
}

}  // namespace

TEST_CASE("entries that share a slot keep the norms of their keys, in every tile of a track") {
  auto const host = share_by_hand(kvmeld::host_executor(1), true);
  for (std::uint32_t lanes : {1u, 5u, 8u}) {
    CAPTURE(lanes);
    CHECK(host == share_by_hand(kvmeld::testing::lane_executor(lanes, 2), true));
  }
}

TEST_CASE("hundreds of entries spread over spans that overlap, in any number of lanes") {
  using kvmeld::bfloat16;
  std::uint32_t const d = extent.value_dim;
  spread_alike<kvmeld::strided<float>>(
      [&](float* v) { return kvmeld::strided<float>(v, "LSHTC", extent, d); });
  spread_alike<kvmeld::strided<bfloat16>>(
      [&](bfloat16* v) { return kvmeld::strided<bfloat16>(v, "LSHTC", extent, d); });
  spread_alike<kvmeld::transposed<float>>(
      [&](float* v) { return kvmeld::transposed<float>(v, "LSHCT", extent, d); });
}

}  // namespace long_plans_cases
