// Rows that are no numbers, on every team: what the host's generic forms make of poisoned caches.
#include <kvmeld/testing/lane_executor.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "scenario.hpp"
#include "support/compositions.hpp"
#include "support/fenced_executor.hpp"
#include "support/sanitizer.hpp"
#include "support/warp_executor.hpp"

namespace numbers_lanes_cases {

namespace {

using kvmeld::float16;

// A sequence of `n` entries per head, of which about a share `poisoned` hold NaN or infinity in K or in V.
support::engine_memory<float16> poisoned_rows(support::dice& d, kvmeld::shape const& s, std::uint32_t n,
                                              double poisoned) {
  support::engine_memory<float16> memory(s);
  memory.fill_sequence(d, 0, 0, n, d.chance(0.5) ? support::texture::walk : support::texture::clusters);
  auto const x = memory.tensors();
  support::for_tracks(s, 0, [&](kvmeld::track t) {
    for (std::uint32_t i = 0; i < n; ++i) {
      if (!d.chance(poisoned)) continue;
      float const bad = kvmeld::bits_float(d.chance(0.5) ? 0x7fc00000u : 0xff800000u);
      support::write_row(d.chance(0.6) ? x.keys : x.values, t, i, {1.0f, bad});
    }
  });
  return memory;
}

// What a compression leaves of a copy: every entry's position and degree, warnings and rounds.
template <class Executor, class Policy>
std::vector<std::uint32_t> left_of(Executor executor, Policy const& policy,
                                   support::engine_memory<float16> memory, std::uint32_t n,
                                   kvmeld::budget const& allowed) {
  kvmeld::cache_options options;
  options.extent = memory.extent;
  options.wave_tracks = memory.extent.kv_heads;
  options.members = kvmeld::shares_entries<typename Policy::merge_type>::value ? n : 0;
  kvmeld::merged_cache cache{std::move(executor), policy, memory.tensors(), options};
  cache.open(0, n);
  support::dice d(n);
  std::vector<float> p(std::size_t{memory.extent.kv_heads} * n);
  for (float& y : p) y = static_cast<float>(d.uniform());
  cache.observe_rows({0, 0, 1}, kvmeld::rows_by_head<float const>(p.data(), 1, memory.extent.kv_heads, n));
  REQUIRE(cache.compress({0}, allowed).ok());
  cache.sync_lengths(0);
  std::vector<std::uint32_t> out{cache.rounds(0), cache.warnings(0)};
  support::for_tracks(memory.extent, 0, [&](kvmeld::track t) {
    out.push_back(cache.ref().length(t));
    for (std::uint32_t i = 0; i < cache.ref().length(t); ++i) {
      out.push_back(static_cast<std::uint32_t>(cache.ref().position(t, i)));
      out.push_back(kvmeld::float_bits(cache.ref().ledger.degree[cache.ref().ledger.at(t, i)]));
    }
  });
  return out;
}

template <class Policy>
void same_everywhere(char const* name, Policy const& policy, std::uint32_t n, double poisoned,
                     kvmeld::budget const& allowed, std::uint64_t seed, bool tuned = true) {
  CAPTURE(std::string(name));
  CAPTURE(n);
  CAPTURE(poisoned);
  support::dice d(seed + n);
  auto const memory = poisoned_rows(d, {1, 1, 2, 1, 24, 16, n + 3}, n, poisoned);
  auto const host = left_of(kvmeld::host_executor(1, kvmeld::tuning::off), policy, memory, n, allowed);
  CHECK((host[1] & kvmeld::warning::nonfinite_rows) != 0);
  CHECK(left_of(kvmeld::testing::lane_executor(d.pick({2u, 5u})), policy, memory, n, allowed) == host);
  support::warp_executor const generic(1, kvmeld::tuning::off), executor(1);
  CHECK(left_of(generic, policy, memory, n, allowed) == host);
  CHECK(left_of(executor, policy, memory, n, allowed) == host);
  CHECK((executor.tuned_launches() > 0 || !tuned));
}

constexpr double shares[] = {0.03, 0.2, 0.5};

// Its host does not look at lengths between rounds, as a device's does not.
struct blind_warps : support::warp_executor {
  using support::warp_executor::warp_executor;
  using transfer = support::slow_transfer;
  static constexpr bool immediate = false;
};

}  // namespace

TEST_CASE("matching among rows that are no numbers is the same on every team") {
  auto const four = kvmeld::quantity::entries(4);
  for (std::uint32_t chunk : {7u, 32u, 64u, 256u, 600u}) {
    CAPTURE(chunk);
    auto p = kvmeld::preset::chelsea::with_schedule({0.45, 0.2, 2, 0.05}, four, four);
    p.identify.chunk = chunk;
    std::uint32_t const n = chunk == 600 ? 590 : 150;
    double const poisoned = shares[chunk % 3];
    same_everywhere("chelsea", p, n, poisoned, kvmeld::budget::entries(n / 2), chunk, chunk >= 32);
  }
}

TEST_CASE("rounds that one team takes for a track are those that are launched phase by phase") {
  using kvmeld::quantity;
  std::uint32_t const n = 100, left = 80;
  auto policy =
      kvmeld::preset::chelsea::with_schedule(support::steep(), quantity::entries(4), quantity::entries(4));
  for (std::uint32_t chunk : {12u, 64u}) {  // the tuned form takes chunks of 32 and more
    CAPTURE(chunk);
    policy.identify.chunk = chunk;
    support::dice d(chunk);
    auto memory = poisoned_rows(d, {1, 1, 2, 1, 24, 16, n + 3}, n, 0);
    // Nearly all that could be sources are no numbers in one head, none in the other.
    for (std::uint32_t slot = 4; slot < 84; slot += 2)
      support::write_row(memory.tensors().keys, {0, 0, 0, 0}, slot, {kvmeld::bits_float(0x7fc00000u)});
    auto const allowed = kvmeld::budget::entries(left);
    auto host = left_of(kvmeld::host_executor(1, kvmeld::tuning::off), policy, memory, n, allowed);
    CHECK(host[0] > kvmeld::likely_rounds(policy.identify, n, left, 8) + 1);
    for (auto tuning : {kvmeld::tuning::off, kvmeld::tuning::on}) {
      CHECK(left_of(blind_warps(1, tuning), policy, memory, n, allowed) == host);
      CHECK(left_of(blind_warps(2, tuning), policy, memory, n, allowed) == host);
    }
    // Without room for the scratch of a round, rounds are launched phase by phase.
    CHECK(left_of(blind_warps(1, kvmeld::tuning::on, 0), policy, memory, n, allowed) == host);
  }
}

TEST_CASE("sets among rows that are no numbers are the same on every team") {
  for (double poisoned : shares) {
    if (support::under_thread_sanitizer && poisoned != 0.2) continue;  // races are alike
    auto const exact =
        kvmeld::preset::kvmerger::for_budget(kvmeld::quantity::entries(5), kvmeld::quantity::entries(8));
    same_everywhere("kvmerger", exact, 170, poisoned, kvmeld::budget::entries(60), 3);
    auto gaps = exact;
    gaps.identify.break_at_gap = true;
    same_everywhere("kvmerger with gaps", gaps, 130, poisoned, kvmeld::budget::entries(60), 5);
    auto given = kvmeld::preset::kvmerger::paper_50();
    given.identify.admission.theta = 0.4f;
    same_everywhere("a given threshold", given, 130, poisoned, kvmeld::budget::entries(60), 6);
  }
  // Long runs: entries look further back than a window, up to a row that is no number.
  support::dice d(9);
  support::engine_memory<float16> memory({1, 1, 1, 1, 8, 4, 400});
  memory.fill({0, 0, 0, 0}, 0, support::rows(400, std::vector<float>(8, 1.0f)),
              support::rows(400, std::vector<float>(4, 1.0f)));
  for (std::uint32_t slot : {30u, 200u, 201u, 330u})
    support::write_row(memory.tensors().keys, {0, 0, 0, 0}, slot, {kvmeld::bits_float(0x7fc00000u)});
  auto given = kvmeld::preset::kvmerger::paper_50();
  given.select = {kvmeld::quantity::entries(0), kvmeld::quantity::entries(0), kvmeld::quantity::entries(0)};
  auto const allowed = kvmeld::budget::entries(60);
  auto const host = left_of(kvmeld::host_executor(1, kvmeld::tuning::off), given, memory, 400, allowed);
  CHECK(host[2] == 8);  // four sets and the rows between them
  CHECK(left_of(kvmeld::host_executor(1), given, memory, 400, allowed) == host);
  CHECK(left_of(support::warp_executor(1), given, memory, 400, allowed) == host);
}

TEST_CASE("centres among rows that are no numbers are the same on every team") {
  for (double poisoned : {0.03, 0.3}) {
    same_everywhere("d2o", kvmeld::preset::d2o::defaults(), 140, poisoned, kvmeld::budget::entries(60), 7);
  }
}

}  // namespace numbers_lanes_cases
