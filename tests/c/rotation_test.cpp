// How a model rotates keys, told through C: by options, by the policy's text, and the refusals; what
// kvmeld_check says before there is a cache.
#include "engine.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace {

using c_test::engine;
using c_test::entries;
using c_test::invalid;
using c_test::options;

/// Positions that a policy keeps of 40 tokens in each track, after it saw queries.
std::vector<std::int32_t> kept(char const* policy, kvmeld_rope const* rope) {
  kvmeld_options o = options(policy);
  o.rope = rope;
  engine e(o);
  REQUIRE(kvmeld_open(e.cache, 0, 40, 0) == KVMELD_OK);
  std::vector<float> queries(4 * 40 * 8);
  for (std::size_t i = 0; i < queries.size(); ++i)
    queries[i] = static_cast<float>(i * 48271 % 1013) / 500.0f - 1.0f;
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    REQUIRE(kvmeld_observe(e.cache, layer, 0, 40, KVMELD_FLOAT32, queries.data(), 40 * 8, 8, nullptr, 0,
                           0.0f) == KVMELD_OK);
  }
  std::uint32_t const sequence = 0;
  REQUIRE(kvmeld_compress(e.cache, &sequence, 1, entries(12)) == KVMELD_OK);
  std::vector<std::int32_t> out;
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    for (std::uint32_t head = 0; head < 2; ++head) {
      std::vector<std::int32_t> positions(12);
      REQUIRE(kvmeld_positions(e.cache, layer, 0, head, positions.data(), 12) == KVMELD_OK);
      out.insert(out.end(), positions.begin(), positions.end());
    }
  }
  return out;
}

constexpr char const* turning[] = {"compactor", "expected_attention", "triattention", "triattention_merging"};

}  // namespace

TEST_CASE("a rotation is the same by options, by numbers and by words") {
  kvmeld_rope rope{KVMELD_ROPE_INTERLEAVED, 0, 16.0, 2.0, nullptr};
  float const table[] = {0.5f, 0.25f, 0.125f, 0.0625f};  // 16^(-i / 4) / 2
  kvmeld_rope const by_table{KVMELD_ROPE_INTERLEAVED, 0, 0.0, 0.0, table};
  kvmeld_rope const other{KVMELD_ROPE_HALF_SPLIT, 0, 16.0, 2.0, nullptr};
  kvmeld_rope const part{KVMELD_ROPE_INTERLEAVED, 4, 16.0, 2.0, nullptr};
  for (std::string const policy : turning) {
    CAPTURE(policy);
    std::vector<std::int32_t> const by_options = kept(policy.c_str(), &rope);
    CHECK(kept(policy.c_str(), &by_table) == by_options);
    CHECK(kept((policy + " rope=interleaved rope_base=16 rope_factor=2").c_str(), nullptr) == by_options);
    CHECK(kept((policy + " rope=interleaved frequencies=0.5,0.25,0.125,0.0625").c_str(), nullptr) ==
          by_options);
    CHECK(kept((policy + " rope=interleaved").c_str(), &other) == by_options);  // words come first
    std::string const narrow = policy + " rope=interleaved rope_base=16 rope_factor=2 rotary_dim=4";
    CHECK(kept(narrow.c_str(), nullptr) == kept(policy.c_str(), &part));
    CHECK(kept((policy + " rotary_dim=4").c_str(), &rope) == kept(policy.c_str(), &part));
  }
  char const* const by_score = "triattention sinks=0 recents=0";
  CHECK(kept(by_score, &other) != kept(by_score, &rope));
  CHECK(kept(by_score, &part) != kept(by_score, &rope));
}

TEST_CASE("the numbers of a rotation are copied") {
  std::vector<float> table{0.5f, 0.25f, 0.125f, 0.0625f};
  kvmeld_rope rope{KVMELD_ROPE_HALF_SPLIT, 0, 0.0, 0.0, table.data()};
  kvmeld_options o = options("triattention");
  o.rope = &rope;
  engine e(o);
  table.assign(4, std::numeric_limits<float>::quiet_NaN());
  rope = {};
  std::vector<float> queries(4 * 40 * 8, 0.25f);
  REQUIRE(kvmeld_open(e.cache, 0, 40, 0) == KVMELD_OK);
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    REQUIRE(kvmeld_observe(e.cache, layer, 0, 40, KVMELD_FLOAT32, queries.data(), 320, 8, nullptr, 0, 0.0f) ==
            KVMELD_OK);
  }
  std::uint32_t const sequence = 0;
  REQUIRE(kvmeld_compress(e.cache, &sequence, 1, entries(12)) == KVMELD_OK);
  std::uint32_t warnings = 0;
  REQUIRE(kvmeld_warnings(e.cache, 0, &warnings) == KVMELD_OK);
  CHECK(warnings == 0);
}

TEST_CASE("policies that turn keys are told how, or refused; kvmeld_asks tells which") {
  for (std::string const policy : turning) {
    kvmeld_options const o = options(policy.c_str());
    engine e;
    kvmeld_cache made{7};
    CHECK(kvmeld_create(&o, &e.keys, &e.values, 1, &made) == KVMELD_INVALID_ARGUMENT);
    CHECK(std::string(kvmeld_problem()).find("policy: rope is not given; it must be half_split") == 0);
    CHECK(made.id == 7);
    std::int32_t rope = 7, learned = 7;
    CHECK(kvmeld_asks(policy.c_str(), &rope, &learned) == KVMELD_OK);
    CHECK(rope == 1);
    CHECK(learned == 0);
    CHECK(kvmeld_asks((policy + " rope=half_split rope_base=9").c_str(), &rope, nullptr) == KVMELD_OK);
    CHECK(rope == 0);
  }
  std::int32_t rope = 7, learned = 7;
  CHECK(kvmeld_asks("leverage_dropkv", &rope, &learned) == KVMELD_OK);
  CHECK(rope == 0);
  CHECK(learned == 0);
  CHECK(kvmeld_asks("learned_centroids heavy=50%", &rope, &learned) == KVMELD_OK);
  CHECK(rope == 1);
  CHECK(learned == 1);
  CHECK(kvmeld_asks("score=learned rope=none", nullptr, nullptr) == KVMELD_OK);
  CHECK(kvmeld_asks("nothing such", &rope, &learned) == KVMELD_INVALID_ARGUMENT);
  CHECK(rope == 1);
  CHECK(learned == 1);
  invalid(kvmeld_asks(nullptr, &rope, &learned),
          "kvmeld_asks: policy is null; it must be the name of a preset, or parts");
}

TEST_CASE("rotations that are none") {
  float const wrong[] = {1.0f, std::numeric_limits<float>::infinity(), 1.0f, 1.0f};
  struct {
    kvmeld_rope rope;
    char const* text;
  } const cases[] = {
      {{3, 0, 0, 0, nullptr}, "rope.pairing is 3; it must be 0 to 2 (none, half_split, interleaved)"},
      {{KVMELD_ROPE_HALF_SPLIT, 3, 0, 0, nullptr},
       "rope.rotary_dim is 3; it must be 0, which means all, or an even number of at most 8, the key_dim"},
      {{KVMELD_ROPE_HALF_SPLIT, 10, 0, 0, nullptr},
       "rope.rotary_dim is 10; it must be 0, which means all, or an even number of at most 8, the key_dim"},
      {{KVMELD_ROPE_HALF_SPLIT, 0, -1, 0, nullptr}, "rope.base is -1; it must be above 0 and below 10^30"},
      {{KVMELD_ROPE_HALF_SPLIT, 0, 0, -1, nullptr}, "rope.factor is -1; it must be above 0 and below 10^30"},
      {{KVMELD_ROPE_HALF_SPLIT, 0, 0, 0, wrong}, "rope.frequencies[1] is inf; it must be a finite number"}};
  for (auto const& c : cases) {
    kvmeld_options o = options("triattention");
    o.rope = &c.rope;
    engine e;
    kvmeld_cache made{7};
    invalid(kvmeld_create(&o, &e.keys, &e.values, 1, &made), std::string("kvmeld_create: ") + c.text);
    CHECK(made.id == 7);
  }
  kvmeld_options const o = options("triattention rope=half_split frequencies=1,2,3,4,5");
  engine e;
  kvmeld_cache made{7};
  invalid(
      kvmeld_create(&o, &e.keys, &e.values, 1, &made),
      "kvmeld_create: rope.rotary_dim is 10; it must be 0, which means all, or an even number of at most 8, "
      "the key_dim");
}

TEST_CASE("kvmeld_check says of a budget what kvmeld_compress says") {
  for (char const* policy : {"h2o", "snapkv", "streaming_llm sinks=9 recents=11", "chelsea",
                             "keydiff_merging", "d2o", "leverage_dropkv sinks=5 recents=7", "tova"}) {
    CAPTURE(policy);
    kvmeld_options const o = options(policy);
    std::uint32_t least = 0;
    REQUIRE(kvmeld_check(&o, nullptr, 60, &least) == KVMELD_OK);
    for (std::uint32_t n = 1; n <= 60; ++n) {
      engine e(o);
      REQUIRE(kvmeld_open(e.cache, 0, 60, 0) == KVMELD_OK);
      std::vector<float> const rows(4 * 60 * 64, 0.01f), queries(4 * 60 * 8, 0.25f);
      std::int32_t by_queries = 0;
      REQUIRE(kvmeld_needs(e.cache, nullptr, nullptr, &by_queries) == KVMELD_OK);
      for (std::uint32_t layer = 0; layer < 2; ++layer) {
        if (by_queries != 0) {
          REQUIRE(kvmeld_observe(e.cache, layer, 0, 60, KVMELD_FLOAT32, queries.data(), 480, 8, nullptr, 0,
                                 0.0f) == KVMELD_OK);
        } else {
          REQUIRE(kvmeld_observe_rows(e.cache, layer, 0, 60, rows.data(), 60 * 64, 64) == KVMELD_OK);
        }
      }
      std::uint32_t const sequence = 0;
      kvmeld_budget const budget = entries(n);
      bool const fits = kvmeld_compress(e.cache, &sequence, 1, budget) == KVMELD_OK;
      CHECK((kvmeld_check(&o, &budget, 60, nullptr) == KVMELD_OK) == fits);
      CHECK((n >= least) == fits);
    }
  }
}

TEST_CASE("what kvmeld_check refuses of budgets") {
  kvmeld_options o = options("snapkv window=16 recents=16");
  std::uint32_t least = 7;
  kvmeld_budget const few = entries(10), none{0, 0.0, KVMELD_HEAD, 0.0, 0},
                      share{0, 1.5, KVMELD_HEAD, 0.0, 0}, layer{0, 0.5, KVMELD_LAYER, 0.2, 0},
                      shared{40, 0.0, KVMELD_HEAD, 0.0, 0};
  invalid(kvmeld_check(&o, &few, 60, &least), "kvmeld_check: budget of 60 tokens is 10; it must be at least "
                                              "16, because 16 of the 60 entries are pinned (0 "
                                              "sinks or frozen, 16 recents, 0 by score)");
  invalid(kvmeld_check(&o, &none, 60, &least),
          "kvmeld_check: budget.ratio is 0; it must be above 0, because budget.entries is 0");
  invalid(kvmeld_check(&o, &share, 60, &least),
          "kvmeld_check: budget ratio is 1.5; it must be above 0 and at most 1");
  invalid(kvmeld_check(&o, &layer, 60, &least), "kvmeld_check: scope of the budget is budget_scope::layer; "
                                                "it must be no wider than options.budgets_over, "
                                                "which is budget_scope::head");
  CHECK(least == 7);
  CHECK(kvmeld_check(&o, &few, 10, &least) == KVMELD_OK);  // nothing has to go
  CHECK(kvmeld_check(&o, &shared, 60, nullptr) == KVMELD_OK);
  o.budgets_over = KVMELD_LAYER;
  CHECK(kvmeld_check(&o, &layer, 60, nullptr) == KVMELD_OK);
  invalid(kvmeld_check(nullptr, nullptr, 0, nullptr),
          "kvmeld_check: options is null; it must be the options of a cache");
}
