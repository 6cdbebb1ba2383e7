// attention::attend against softmax attention in double precision, for random shapes, and independent of
// threads.
#include <kvmeld/kvmeld.hpp>
#include <kvmeld/testing/lane_executor.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "cache/refusal.hpp"
#include "ragged_call.hpp"
#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

using namespace attention_test;

namespace {

template <class T, class Q, class Out> void against_reference(std::uint64_t seed, double tolerance) {
  support::dice d(seed);
  kvmeld::shape const s{
      2, 3, d.between(1, 3), d.between(1, 4), d.between(1, 40), d.between(1, 40), d.between(2, 190)};
  ragged_cache<T> x(s, d);
  call<Q, Out> c(s, d, d.pick({1u, 4u, 21u}));
  kvmeld::attention_params params;
  params.causal = d.chance(0.7);
  params.use_degree = d.chance(0.7);
  if (d.chance(0.5)) params.scale = static_cast<float>(0.05 + d.uniform());
  if (d.chance(0.5)) params.softcap = static_cast<float>(0.5 + 4 * d.uniform());
  bool const wants_lse = d.chance(0.8);
  std::uint32_t const layer = d.below(2);
  CAPTURE(seed);
  compare(x.cache, params, layer, c, wants_lse, tolerance, d.pick({1u, 2u, 3u, 7u}));
}

}  // namespace

TEST_CASE("attend is softmax attention with log-degree bias") {
  using kvmeld::bfloat16;
  using kvmeld::float16;
  for (std::uint64_t seed = 0; seed < 60; ++seed) against_reference<float, float, float>(seed, 3e-5);
  for (std::uint64_t seed = 100; seed < 120; ++seed) against_reference<float16, float16, float>(seed, 3e-5);
  for (std::uint64_t seed = 200; seed < 220; ++seed)
    against_reference<bfloat16, bfloat16, bfloat16>(seed, 0.02);
  for (std::uint64_t seed = 300; seed < 320; ++seed) against_reference<float, bfloat16, float16>(seed, 0.003);
}

TEST_CASE("attend gives the same bits for any number of threads and lanes, and for each sequence alone") {
  support::dice d(77);
  kvmeld::shape const s{1, 3, 2, 3, 32, 24, 150};
  ragged_cache<float> x(s, d);
  call<float, float> const start(s, d, 20);
  auto const run = [&](auto executor, std::uint32_t parts = 1) {
    call<float, float> c = start;
    std::vector<float> memory(kvmeld::attention::split_floats(s, parts, 3, c.most));
    kvmeld::attention::attend(executor, c.batch(0), c.queries(), x.cache.ref(), c.outputs(), c.sums(), {},
                              {parts, memory, 64});
    return c;
  };
  auto const one = run(kvmeld::host_executor(1));
  for (std::uint32_t threads : {2u, 3u, 8u}) {
    auto const many = run(kvmeld::host_executor(threads));
    CHECK(support::same_bits(one.out, many.out));
    CHECK(support::same_bits(one.lse, many.lse));
  }
#if !defined(__FAST_MATH__)
  auto const lanes = run(kvmeld::testing::lane_executor(3, 2, kvmeld::testing::tile_order::descending));
  auto const generic = run(kvmeld::host_executor(1, kvmeld::tuning::off));
  CHECK(support::same_bits(generic.out, lanes.out));
  CHECK(support::same_bits(generic.lse, lanes.lse));
  auto const split = run(kvmeld::host_executor(1, kvmeld::tuning::off), 2);
  auto const split_lanes =
      run(kvmeld::testing::lane_executor(3, 2, kvmeld::testing::tile_order::descending), 2);
  CHECK(support::same_bits(split.out, split_lanes.out));
  CHECK(support::same_bits(split.lse, split_lanes.lse));
  CHECK_FALSE(support::same_bits(split.out, generic.out));  // sums were taken part by part
#endif
  auto const parted = run(kvmeld::host_executor(1), 3), others = run(kvmeld::host_executor(3), 3);
  CHECK(support::same_bits(parted.out, others.out));
  CHECK(support::same_bits(parted.lse, others.lse));
  for (std::uint32_t i = 0; i < 3; ++i) {  // batch composition does not show
    call<float, float> c = start;
    c.sequences = {start.sequences[i]};
    c.counts = {start.counts[i]};
    auto const from = [&](auto rows) {
      rows.data += i * rows.sequence_stride;
      return rows;
    };
    kvmeld::host_executor executor(1);
    kvmeld::attention::attend(executor, c.batch(0), from(c.queries()), x.cache.ref(), from(c.outputs()),
                              from(c.sums()));
    for (std::uint32_t head = 0; head < s.query_heads(); ++head) {
      for (std::uint32_t m = 0; m < c.counts[0]; ++m) {
        auto const at = static_cast<std::size_t>(from(c.sums()).row(0, head, m) - c.lse.data());
        CHECK(kvmeld::float_bits(c.lse[at]) == kvmeld::float_bits(one.lse[at]));
        auto const begin = static_cast<std::size_t>(from(c.outputs()).row(0, head, m) - c.out.data());
        std::vector<float> const mine(&c.out[begin], &c.out[begin] + s.value_dim);
        std::vector<float> const theirs(&one.out[begin], &one.out[begin] + s.value_dim);
        CHECK(support::same_bits(mine, theirs));
      }
    }
  }
}

TEST_CASE("large logits neither overflow nor vanish") {
  kvmeld::shape const s{1, 1, 1, 1, 4, 2, 130};
  support::engine_memory<float> memory(s);
  support::rows const keys(130, std::vector<float>{100, 0, 0, 0});
  support::rows values(130, std::vector<float>{1, -1});
  support::rows far = keys;
  far[129] = {101, 0, 0, 0};
  values[129] = {5, 5};
  memory.fill({0, 0, 0, 0}, 0, far, values);
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  cache.open(0, 130);
  std::vector<float> const q{200, 0, 0, 0};
  std::vector<float> out(2), lse(1);
  std::vector<std::uint32_t> const zero{0}, one{1};
  kvmeld::attention_params params;
  params.scale = 1.0f;
  kvmeld::attention::attend(
      cache.executor(), {0, zero, one}, kvmeld::rows_by_token<float const>(q.data(), 1, 1, 4), cache.ref(),
      kvmeld::rows_by_token(out.data(), 1, 1, 2), kvmeld::rows_by_head(lse.data(), 1, 1, 1), params);
  CHECK(out[0] == 5.0f);
  CHECK(out[1] == 5.0f);
  CHECK(lse[0] == 20200.0f);
}

TEST_CASE("attend refuses a batch that does not fit") {
  kvmeld::shape const s{2, 3, 1, 1, 4, 4, 10};
  support::engine_memory<float> memory(s);
  auto cache = support::make_cache(memory, kvmeld::preset::streaming_llm::with_sinks(2));
  auto const refused = [&](kvmeld::query_batch const& b) {
    try {
      kvmeld::attention::attend(cache.executor(), b, kvmeld::head_rows<float const>{}, cache.ref(),
                                kvmeld::head_rows<float>{});
    } catch (kvmeld::invalid_argument const& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  std::vector<std::uint32_t> const one{1}, two{1, 2}, five{5};
  CHECK(refused({2, one, one}) == "attention::attend: layer is 2; it must be 0 to 1");
  CHECK(refused({0, two, one}) ==
        "attention::attend: number of query counts is 1; it must be 2, one for each sequence");
  CHECK(refused({0, five, one}) == "attention::attend: sequence is 5; it must be 0 to 2");
  std::vector<float> few(3 * 6 + 1);
  auto const split = [&](kvmeld::attention::split_keys const& keys) {
    return cache_test::refusal_of([&] {
      std::vector<float> rows(4);
      kvmeld::attention::attend(cache.executor(), {0, 0, 1},
                                kvmeld::rows_by_token<float const>(rows.data(), 1, 1, 4), cache.ref(),
                                kvmeld::rows_by_token(rows.data(), 1, 1, 4), {}, {}, keys);
    });
  };
  CHECK(split({0, {}}) == "attention::attend: split.parts is 0; it must be at least 1");
  std::uint32_t const many = 0xffffffffu;
  CHECK(kvmeld::attention::split_floats({1, 1, many, 1, 4, 4, 4}, many, many, many) == std::size_t(-1));
  CHECK(split({3, few}) ==
        "attention::attend: number of floats of split.memory is 19; it must be at least 20, for 3 parts");
  CHECK(split({0x80000000u, few}) ==
        "attention::attend: split.parts is 2147483648; it must be at most 2147483647, for 1 tracks");
  std::vector<std::uint32_t> const none{0};
  CHECK(refused({0, one, none}).empty());
  CHECK(refused({0, one, one}) == "attention::attend: query.data is null; it must be the rows of the "
                                  "queries' heads (only lse may be empty)");
}
