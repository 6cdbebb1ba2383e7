// Numbers that wrap, that are none, or that no call checked: each is refused by name.
#include "refusal.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace refused_numbers_cases {

namespace {

using cache_test::check_text;
using cache_test::refusal_of;
using kvmeld::budget;

constexpr kvmeld::shape extent{2, 3, 2, 2, 12, 8, 64};
constexpr std::uint32_t max_tokens = 0x7fffffffu;

float infinity() { return kvmeld::bits_float(0x7f800000u); }
float not_a_number() { return kvmeld::bits_float(0x7fc00000u); }

auto streaming() { return kvmeld::preset::streaming_llm::with_sinks(2); }

}  // namespace

TEST_CASE("length_after refuses what compress refuses") {
  support::engine_memory<float> memory(extent);
  auto cache = support::make_cache(memory, streaming());
  cache.open(0, 40);
  auto const refuses = [&](budget b, char const* text) {
    check_text(refusal_of([&] { (void)cache.length_after(0, b); }), {"length_after: ", text});
    check_text(refusal_of([&] { cache.compress({0}, b); }), {"compress: ", text});
  };
  refuses(budget::per_track(nullptr), "per-track budget table is null");
  refuses(budget::per_layer(nullptr), "per-layer budget table is null");
  refuses(budget::ratio(-1.0), "budget ratio is -1; it must be above 0 and at most 1");
  refuses(budget::ratio(static_cast<double>(infinity())),
          "budget ratio is inf; it must be above 0 and at most 1");
  refuses(budget::ratio(static_cast<double>(not_a_number())),
          "budget ratio is nan; it must be above 0 and at most 1");
  refuses(budget::entries(10).over(kvmeld::budget_scope::layer),
          "scope of the budget is budget_scope::layer");
  refuses(budget::entries(0), "budget of track (layer 0, sequence 0, head 0) is 0; it must be at least 1");
  check_text(refusal_of([&] { (void)cache.length_after(1, budget::entries(10)); }),
             {"length_after: sequence is 1; it must be open"});
  CHECK(cache.length_after(0, budget::entries(10)) == 10);
}

TEST_CASE("a sequence has at most 2^31 - 1 tokens, so that positions do not wrap") {
  support::engine_memory<float> memory(extent);
  auto cache = support::make_cache(memory, streaming());
  cache.open(0, 10);
  cache.shift(0, static_cast<kvmeld::position_t>(max_tokens - 10 - 3));
  CHECK(cache.tokens(0) == max_tokens - 3);
  check_text(refusal_of([&] { cache.append({0}, {4}); }),
             {"append: counts[0] is 4; it must be at most 3, so that the tokens of a sequence are at most "
              "2147483647"});
  cache.append({0}, {3});
  check_text(refusal_of([&] { cache.append({0}, {1}); }), {"append: counts[0] is 1; it must be at most 0"});
  cache.commit({0}, {3});
  check_text(refusal_of([&] { cache.shift(0, 1); }), {"shift: offset is 1; it must be at most 0"});

  std::vector<float> degree(64, 1.0f);
  std::vector<std::int32_t> position(64, 0), table{0};
  kvmeld::page_metadata<> const notes{
      kvmeld::dense_places(kvmeld::table_rows(table.data(), 1), 16, {1, 1, 2, 1, 8, 8, 16}), degree.data(),
      position.data()};
  check_text(refusal_of([&] { cache.adopt(1, 4, max_tokens + 1, notes); }),
             {"adopt: tokens is 2147483648; it must be at most 2147483647"});
}

TEST_CASE("triggers whose sum leaves 32 bits are due when it is reached, which is never") {
  CHECK_FALSE(kvmeld::trigger{0xffffffffu, 64}.due(63));
  CHECK_FALSE(kvmeld::trigger{0xffffffffu, 64}.due(0xffffffffu));
  CHECK(kvmeld::trigger{64, 64}.due(128));
  CHECK_FALSE(kvmeld::trigger{64, 64}.due(127));
}

TEST_CASE("frequencies that are no numbers, where the host can look at them") {
  support::engine_memory<float> memory(extent);
  auto cache = support::make_cache(memory, kvmeld::preset::h2o::defaults());
  cache.open(0, 10);
  for (float bad : {not_a_number(), infinity()}) {
    std::vector<float> frequencies(6, 0.5f);
    frequencies[0] = bad;
    kvmeld::rope_params first;
    first.pairing = kvmeld::rope_pairing::half_split;
    first.frequencies = frequencies.data();
    check_text(refusal_of([&] { cache.shift(0, 1, first); }), {"shift: rope.frequencies[0] is "});
    frequencies[0] = 0.5f;
    frequencies[4] = bad;
    kvmeld::attention_params params;
    params.rope.pairing = kvmeld::rope_pairing::half_split;
    params.rope.frequencies = frequencies.data();
    std::vector<float> rows(std::size_t{4} * 64), out(std::size_t{4} * 64);
    auto const query = kvmeld::rows_by_head<float const>(rows.data(), 1, 4, 12);
    char const* const text =
        bad == bad ? "rope.frequencies[4] is " : "rope.frequencies[4] is nan; it must be a finite number";
    check_text(refusal_of([&] {
                 kvmeld::attention::attend(cache.executor(), {0, 0, 1}, query, cache.ref(),
                                           kvmeld::rows_by_head(out.data(), 1, 4, 8), {}, params);
               }),
               {"attention::attend: ", text});
    check_text(
        refusal_of([&] {
          cache.observe_rows({0, 0, 1}, kvmeld::rows_by_head<float const>(rows.data(), 1, 4, 64), params);
        }),
        {"observe: ", text});
    check_text(refusal_of([&] { cache.shift(0, 5, params.rope); }), {"shift: ", text});
    frequencies[4] = 0.5f;
    cache.shift(0, 0, params.rope);
  }
}

TEST_CASE("which rows are null is said") {
  support::engine_memory<float> memory(extent);
  auto cache = support::make_cache(memory, kvmeld::preset::h2o::defaults());
  cache.open(0, 10);
  std::vector<float> rows(std::size_t{4} * 64);
  auto const there = kvmeld::rows_by_head<float const>(rows.data(), 1, 4, 12);
  kvmeld::head_rows<float const> const none{};
  check_text(refusal_of([&] { cache.observe({0, 0, 1}, none, there); }), {"observe: query.data is null"});
  check_text(refusal_of([&] { cache.observe({0, 0, 1}, there, none); }), {"observe: lse.data is null"});
  check_text(refusal_of([&] { cache.observe_rows({0, 0, 1}, none); }), {"observe: rows.data is null"});
  check_text(refusal_of([&] {
               cache.observe_logits({0, 0, 1}, none, there);
             }),
             {"observe: logits.data is null"});
}

TEST_CASE("a cache that was moved from has no workspace") {
  support::engine_memory<float> memory(extent);
  auto cache = support::make_cache(memory, streaming());
  std::size_t const ledger = cache.ledger_bytes(), workspace = cache.workspace_bytes();
  auto other = std::move(cache);
  CHECK(other.ledger_bytes() == ledger);
  CHECK(other.workspace_bytes() == workspace);
  CHECK(cache.ledger_bytes() == 0);
  CHECK(cache.workspace_bytes() == 0);
  cache = std::move(other);
  CHECK(cache.workspace_bytes() == workspace);
  CHECK(other.workspace_bytes() == 0);
}

TEST_CASE("weights of plans that make rows infinite") {
  support::engine_memory<float> memory(extent);
  support::dice d(3);
  memory.fill_sequence(d, 0, 0, 20, support::texture::walk);
  auto cache = support::make_cache(memory, kvmeld::preset::chelsea::llama2(), support::with_plan());
  cache.open(0, 20);
  cache.plan({0}, budget::entries(20));
  kvmeld::plan_ref const& plan = cache.current_plan();
  std::size_t const i = plan.at(1, 4);
  auto const refuses = [&](float* weight, char const* name) {
    for (float bad : {3e38f, -3e38f, 1e38f, not_a_number()}) {
      weight[i] = bad;
      check_text(refusal_of([&] { cache.apply(); }),
                 {"apply: plan: ", name, " of slot 4 of track (layer 0, sequence 0, head 1) is ",
                  "it must be a number of magnitude at most 8.50706e+37"});
    }
    weight[i] = 1.0f;
  };
  refuses(plan.key_weight, "key_weight");
  refuses(plan.value_weight, "value_weight");
  refuses(plan.degree_weight, "degree_weight");
  // Weights that are fine one by one do not make degrees that leave floats.
  kvmeld::track const where = kvmeld::make_track(extent, 0, 0, 1);
  cache.ledger().degree[cache.ledger().at(where, 4)] = 2e9f;
  plan.degree_weight[i] = 1e9f;
  check_text(refusal_of([&] { cache.apply(); }),
             {"degree_weight * degree of slot 4", "at most 1152921504606846976"});
}

TEST_CASE("the most specific problem of a tensor comes first") {
  support::engine_memory<float> memory(extent);
  auto const text = [&](auto const& keys) {
    return refusal_of([&] {
      kvmeld::merged_cache{kvmeld::host_executor(1), streaming(), kvmeld::kv{keys, memory.tensors().values},
                           kvmeld::cache_options{extent}};
    });
  };
  kvmeld::strided<float> const rows(memory.keys.data(), "LSHTC", extent, 12);
  check_text(text(kvmeld::tiled(rows, 0)), {"merged_cache: keys: tiled: width is 0"});
  std::vector<std::uint8_t> bytes(64);
  kvmeld::strided<std::uint8_t> const blocks(bytes.data(), "LSHTC", extent, 33);
  check_text(text(kvmeld::q8_0_rows(blocks)),
             {"number of bytes of a row is 33; it must be a multiple of 34"});
}

}  // namespace refused_numbers_cases
