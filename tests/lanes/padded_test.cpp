// Tracks padded to one length, on any number of lanes and on warps.
#include "scenario.hpp"

#include <kvmeld/testing.hpp>
#include <kvmeld/testing/lane_executor.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/warp_executor.hpp"

namespace padded_cases {

namespace {

using kvmeld::budget;

kvmeld::cache_options padded(kvmeld::cache_options options = {}) {
  options.padded = true;
  return options;
}

}  // namespace

TEST_CASE("padded tracks are the same on any number of lanes") {
  constexpr kvmeld::shape s{2, 2, 2, 1, 16, 8, 300};
  auto const run = [&](auto executor, auto type) {
    using T = decltype(type);
    support::dice d(3);
    support::engine_memory<T> memory(s);
    memory.fill_sequence(d, 0, 0, 290, support::texture::walk);
    auto const policy = kvmeld::preset::h2o::defaults();
    kvmeld::merged_cache cache{executor, policy, memory.tensors(), padded({s})};
    cache.open(0, 290, 2);
    std::vector<std::uint32_t> table(s.tracks());
    for (int i = 0; i < 3; ++i) {
      support::for_tracks(s, 0, [&](kvmeld::track t) {
        table[t.index] = d.between(120 - 40 * static_cast<std::uint32_t>(i), 220);
        support::set_scores(cache.ledger(), t, support::random_scores(d, cache.ref().length(t)));
      });
      cache.compress({0}, budget::per_track(table.data()));
      std::uint32_t const n = cache.longest(0);
      memory.fill_sequence(d, 0, n, 5, support::texture::walk);
      cache.append({0}, {5});
      cache.commit({0}, {4});
    }
    CHECK(kvmeld::testing::invariant_problem(cache) == "");
    auto out = support::ledger_bytes(cache);
    for (auto const& x : {support::bytes_of(memory.keys), support::bytes_of(memory.values)})
      out.insert(out.end(), x.begin(), x.end());
    return out;
  };
  auto const same = [&](auto type) {
    auto const expected = run(kvmeld::host_executor(1), type);
    for (std::uint32_t lanes : {3u, 8u}) CHECK(run(kvmeld::testing::lane_executor(lanes), type) == expected);
    CHECK(run(support::warp_executor(2), type) == expected);
  };
  same(float{});
  same(kvmeld::float16{});
}

TEST_CASE("attention on warps does not see empty slots") {
  constexpr kvmeld::shape s{1, 1, 2, 4, 32, 32, 200};
  using kvmeld::float16;
  support::dice d(6);
  support::engine_memory<float16> memory(s), plain_memory(s);
  memory.fill_sequence(d, 0, 0, 190, support::texture::walk);
  plain_memory = memory;
  auto const policy = kvmeld::preset::streaming_llm::with_sinks(1);
  auto cache = support::make_cache(memory, policy, padded());
  auto plain = support::make_cache(plain_memory, policy);
  std::uint32_t const table[] = {9, 150};
  std::vector<float16> q(2 * s.query_heads() * 32);
  for (float16& x : q) x = kvmeld::element_traits<float16>::from_float(static_cast<float>(d.normal()));
  auto const row = support::random_rows(d, 2, 32, support::texture::noise);
  auto const attend = [&](auto& c, auto& m) {
    c.open(0, 190);
    c.compress({0}, budget::per_track(table));
    for (std::uint32_t head : {0u, 1u}) {
      kvmeld::track const t = kvmeld::make_track(s, 0, 0, head);
      m.fill(t, c.ref().length(t), row, row);
    }
    c.append({0}, {2});
    support::warp_executor executor(2);
    std::vector<float> out(2 * s.query_heads() * 32);
    kvmeld::attention::attend(executor, {0, 0, 2},
                              kvmeld::rows_by_token<float16 const>(q.data(), 2, s.query_heads(), 32), c.ref(),
                              kvmeld::rows_by_token(out.data(), 2, s.query_heads(), 32));
    CHECK(executor.tuned_launches() == 1);
    return out;
  };
  auto const got = attend(cache, memory), expected = attend(plain, plain_memory);
  for (std::size_t i = 0; i < got.size(); ++i)
    CHECK(std::fabs(static_cast<double>(got[i]) - static_cast<double>(expected[i])) < 5e-4);
}

}  // namespace padded_cases
