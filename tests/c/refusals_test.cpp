// Every function's refusals: the status, and the text.
#include "engine.hpp"

#include <kvmeld/core/size_limits.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace {

using c_test::engine;
using c_test::entries;
using c_test::invalid;
using c_test::options;
using c_test::refused;

/// What kvmeld_create says of changed options.
template <class Change> void refuses_options(kvmeld_status status, std::string const& text, Change change) {
  CAPTURE(text);
  kvmeld_options o = options();
  change(o);
  engine e;
  kvmeld_cache made{77};
  refused(kvmeld_create(&o, &e.keys, &e.values, 1, &made), status, "kvmeld_create: " + text);
  CHECK(made.id == 77);
  std::size_t bytes = 77;
  refused(kvmeld_bytes(&o, &bytes), status, "kvmeld_bytes: " + text);
  CHECK(bytes == 77);
  std::uint32_t least = 77;
  refused(kvmeld_check(&o, nullptr, 10, &least), status, "kvmeld_check: " + text);
  CHECK(least == 77);
}

}  // namespace

TEST_CASE("the text is empty after a call that went well") {
  engine e("h2o");
  CHECK(std::string(kvmeld_problem()).empty());
  CHECK(kvmeld_open(e.cache, 9, 0, 0) == KVMELD_INVALID_ARGUMENT);
  CHECK(std::string(kvmeld_problem()) == "open: sequence is 9; it must be 0 to 2");
  CHECK(kvmeld_abi() == KVMELD_C_ABI);  // asks no cache, and leaves the text
  CHECK(!std::string(kvmeld_version()).empty());
  CHECK(std::string(kvmeld_problem()) == "open: sequence is 9; it must be 0 to 2");
  CHECK(kvmeld_open(e.cache, 0, 0, 0) == KVMELD_OK);
  CHECK(std::string(kvmeld_problem()).empty());
}

TEST_CASE("options that make no cache") {
  auto const invalid_options = [](std::string const& text, auto change) {
    refuses_options(KVMELD_INVALID_ARGUMENT, text, change);
  };
  std::string const sizes = "a multiple of 8 from 48 to " + std::to_string(sizeof(kvmeld_options)) +
                            ", as kvmeld_options_init sets it";
  invalid_options("options.bytes is 40; it must be " + sizes, [](auto& o) { o.bytes = 40; });
  invalid_options("options.bytes is 52; it must be " + sizes, [](auto& o) { o.bytes = 52; });
  invalid_options("options.bytes is 0; it must be " + sizes, [](auto& o) { o.bytes = 0; });
  invalid_options("options.bytes is " + std::to_string(sizeof(kvmeld_options) + 8) + "; it must be " + sizes,
                  [](auto& o) { o.bytes += 8; });
  invalid_options("options.policy is null; it must be the name of a preset, or parts",
                  [](auto& o) { o.policy = nullptr; });
  invalid_options("options.element is 3; it must be 0 to 2 (float32, float16, bfloat16)",
                  [](auto& o) { o.element = 3; });
  invalid_options("options.element is -1; it must be 0 to 2 (float32, float16, bfloat16)",
                  [](auto& o) { o.element = -1; });
  invalid_options("options.scope is 3; it must be 0 to 2 (head, layer, all_layers)",
                  [](auto& o) { o.scope = 3; });
  invalid_options("options.scope is -2; it must be 0 to 2 (head, layer, all_layers)",
                  [](auto& o) { o.scope = -2; });
  invalid_options("options.budgets_over is 5; it must be 0 to 2 (head, layer, all_layers)",
                  [](auto& o) { o.budgets_over = 5; });
  invalid_options("options.bias is 3; it must be 0 to 2 (per_head, shared, none)",
                  [](auto& o) { o.bias = 3; });
  invalid_options("options.device is -2; it must be -1, or the number of a device",
                  [](auto& o) { o.device = -2; });
  invalid_options("options.stream is given; it must be null for host memory", [](auto& o) { o.stream = &o; });
  invalid_options("options.page_table is null; it must be the table of the sequences' pages",
                  [](auto& o) { o.page_size = 16; });
  invalid_options("options.allocator.release is null; it must be a function, because the other one is given",
                  [](auto& o) {
                    o.allocator.allocate = [](void*, std::size_t, std::size_t) -> void* { return nullptr; };
                  });
  invalid_options("options.allocator.allocate is null; it must be a function, because the other one is given",
                  [](auto& o) { o.allocator.release = [](void*, void*, std::size_t) {}; });
  invalid_options("shape: layers is 0; it must be 1 to " + std::to_string(kvmeld::largest::tracks),
                  [](auto& o) { o.layers = 0; });
  invalid_options("shape: capacity is 0; it must be 1 to " + std::to_string(kvmeld::largest::capacity),
                  [](auto& o) { o.capacity = 0; });
  refuses_options(KVMELD_UNSUPPORTED,
                  "options.device is 0; it must be -1, because this library was built without CUDA",
                  [](auto& o) { o.device = 0; });
}

TEST_CASE("what kvmeld itself refuses of options, in its own words") {
  kvmeld_options o = options("chelsea");
  engine e;
  kvmeld_cache made{0};
  o.bias = KVMELD_BIAS_NONE;
  std::string const bias =
      "merged_cache: options: bias is bias_support::none; it must be per_head, or shared with options.scope "
      "layer or all_layers, because merged entries stand for several tokens (or set options.ignore_degree)";
  invalid(kvmeld_create(&o, &e.keys, &e.values, 1, &made), bias);
  std::size_t bytes = 0;
  invalid(kvmeld_bytes(&o, &bytes), bias);
  o = options("nothing");
  CHECK(kvmeld_create(&o, &e.keys, &e.values, 1, &made) == KVMELD_INVALID_ARGUMENT);
  CHECK(std::string(kvmeld_problem())
            .rfind("policy: name is \"nothing\"; it must be one of streaming_llm, ", 0) == 0);
  o = options();
  o.threads = 1u << 20;
  CHECK(kvmeld_create(&o, &e.keys, &e.values, 1, &made) == KVMELD_INVALID_ARGUMENT);
  CHECK(std::string(kvmeld_problem()).rfind("host_executor: threads is 1048576; it must be 1 to ", 0) == 0);
}

TEST_CASE("null pointers and numbers of kvmeld_options_init, kvmeld_bytes and kvmeld_create") {
  kvmeld_options o = options();
  engine e;
  std::size_t bytes = 0;
  kvmeld_cache made{0};
  invalid(kvmeld_options_init(nullptr, sizeof o),
          "kvmeld_options_init: options is null; it must be the options to set");
  invalid(kvmeld_options_init(&o, 3), "kvmeld_options_init: bytes is 3; it must be sizeof(kvmeld_options)");
  invalid(kvmeld_bytes(nullptr, &bytes), "kvmeld_bytes: options is null; it must be the options of a cache");
  invalid(kvmeld_bytes(&o, nullptr), "kvmeld_bytes: bytes is null; it must be where to write the number");
  invalid(kvmeld_create(nullptr, &e.keys, &e.values, 1, &made),
          "kvmeld_create: options is null; it must be the options of a cache");
  invalid(kvmeld_create(&o, nullptr, &e.values, 1, &made),
          "kvmeld_create: keys is null; it must be an array of as many tensors as `tensors` says");
  invalid(kvmeld_create(&o, &e.keys, nullptr, 1, &made),
          "kvmeld_create: values is null; it must be an array of as many tensors as `tensors` says");
  invalid(kvmeld_create(&o, &e.keys, &e.values, 1, nullptr),
          "kvmeld_create: made is null; it must be where to write the handle");
  for (std::uint32_t const tensors : {0u, 3u}) {
    invalid(kvmeld_create(&o, &e.keys, &e.values, tensors, &made),
            "kvmeld_create: tensors is " + std::to_string(tensors) +
                "; it must be 1, or 2, the number of layers");
  }
}

TEST_CASE("tensors that cannot be right, of kvmeld_create and kvmeld_rebind") {
  kvmeld_options const o = options();
  engine e(o);
  kvmeld_cache made{0};
  kvmeld_tensor const good = e.keys;
  auto const refuses = [&](std::string const& text) {
    invalid(kvmeld_create(&o, &e.keys, &e.values, 1, &made), "kvmeld_create: " + text);
    invalid(kvmeld_rebind(e.cache, &e.keys, &e.values, 1), "kvmeld_rebind: " + text);
    e.keys = good;
  };
  e.keys.data = nullptr;
  refuses("keys: base pointer is null; it must be that of the engine's tensor");
  e.keys.data = reinterpret_cast<char*>(e.k.data()) + 2;
  refuses("keys: address modulo 4 is 2; it must be 0, the alignment of an element");
  e.keys.head_stride = 0;
  refuses("keys: head stride is 0; it must be another number, because there are 2 of them");
  e.keys.channel_stride = std::int64_t{1} << 61;
  refuses("keys: channel stride is 2305843009213693952; it must be so small that all elements lie within " +
          std::to_string(kvmeld::largest::tensor_bytes) + " bytes");
  e.keys = e.values;
  CHECK(kvmeld_create(&o, &e.keys, &e.values, 1, &made) == KVMELD_INVALID_ARGUMENT);
  CHECK(std::string(kvmeld_problem()).rfind("kvmeld_create: values: address of the values minus", 0) == 0);
  e.keys = good;

  kvmeld_tensor keys[2] = {e.keys, e.keys}, values[2] = {e.values, e.values};
  keys[1].data = e.k.data() + engine::layer;
  values[1].data = e.v.data() + engine::layer;
  CHECK(kvmeld_rebind(e.cache, keys, values, 2) == KVMELD_OK);
  values[1].token_stride = 0;
  invalid(
      kvmeld_rebind(e.cache, keys, values, 2),
      "kvmeld_rebind: tensors[1]: values: slot stride is 0; it must be another number (a dense order is a "
      "permutation of the letters L, S, H, T, C)");
  invalid(kvmeld_rebind(e.cache, nullptr, values, 2),
          "kvmeld_rebind: keys is null; it must be an array of as many tensors as `tensors` says");
  invalid(kvmeld_rebind(e.cache, keys, nullptr, 2),
          "kvmeld_rebind: values is null; it must be an array of as many tensors as `tensors` says");
  invalid(kvmeld_rebind(e.cache, keys, values, 3),
          "kvmeld_rebind: tensors is 3; it must be 1, or 2, the number of layers");
  // A refused rebind has changed nothing: the cache still reads the tensors of before.
  CHECK(kvmeld_open(e.cache, 0, 4, 0) == KVMELD_OK);
  CHECK(kvmeld_fork(e.cache, 0, 1) == KVMELD_OK);
  CHECK(std::memcmp(e.k.data(), e.k.data() + engine::sequence, 4 * 8 * sizeof(float)) == 0);
}

TEST_CASE("a ledger in pages: its bytes, a page that moves, and what is refused") {
  kvmeld_options o = options("h2o");
  o.pool_pages = 9;
  std::size_t dense = 0, paged = 0;
  invalid(kvmeld_bytes(&o, &dense),
          "kvmeld_bytes: options.pool_pages is 9; it must be 0, because options.page_size is 0");
  std::vector<std::int32_t> table{4, 8, 1, 2, 0, 7, 5, 3, 6, 6, 6, 6};
  o.page_size = 16;
  o.page_table = table.data();
  o.page_table_stride = 4;
  o.pool_pages = 0;
  REQUIRE(kvmeld_bytes(&o, &dense) == KVMELD_OK);
  engine e;
  std::vector<float> k(9 * 2 * 2 * 16 * 8), v(k.size());
  e.keys = {k.data(), 2 * 2 * 16 * 8, 2 * 16 * 8, 16 * 8, 8, 1};
  e.values = {v.data(), 2 * 2 * 16 * 8, 2 * 16 * 8, 16 * 8, 8, 1};
  e.keys.layer_stride = e.values.layer_stride = 2 * 16 * 8;
  e.keys.sequence_stride = e.values.sequence_stride = 2 * 2 * 16 * 8;
  {
    kvmeld_cache made{0};
    REQUIRE(kvmeld_create(&o, &e.keys, &e.values, 1, &made) == KVMELD_OK);
    invalid(kvmeld_copy_page(made, 0, 1),
            "copy_page: options.ledger_pages.count is 0; it must be at least 1");
    REQUIRE(kvmeld_destroy(made) == KVMELD_OK);
  }
  o.pool_pages = 9;
  REQUIRE(kvmeld_bytes(&o, &paged) == KVMELD_OK);
  CHECK(paged < dense);
  REQUIRE(kvmeld_create(&o, &e.keys, &e.values, 1, &e.cache) == KVMELD_OK);
  invalid(kvmeld_copy_page(e.cache, 9, 1), "copy_page: from is 9; it must be 0 to 8, the pages of the pool");
  invalid(kvmeld_copy_page(e.cache, 1, 9), "copy_page: into is 9; it must be 0 to 8, the pages of the pool");
  REQUIRE(kvmeld_open(e.cache, 1, 40, 0) == KVMELD_OK);
  auto const positions = [&] {
    std::vector<std::int32_t> out(40);
    REQUIRE(kvmeld_positions(e.cache, 1, 1, 1, out.data(), 40) == KVMELD_OK);
    return out;
  };
  std::vector<std::int32_t> const before = positions();
  for (std::int32_t s = 0; s < 40; ++s) CHECK(before[static_cast<std::size_t>(s)] == s);
  REQUIRE(kvmeld_copy_page(e.cache, 7, 6) == KVMELD_OK);
  table[5] = 6;
  CHECK(positions() == before);
}

TEST_CASE("pages that cannot be right") {
  kvmeld_options o = options();
  std::vector<std::int32_t> const table(3 * 4);
  o.page_size = 16;
  o.page_table = table.data();
  engine e;
  kvmeld_cache made{0};
  e.keys = {e.k.data(), 0, 2 * 16 * 8, 16 * 8, 8, 1};
  e.values = {e.v.data(), 0, 2 * 16 * 8, 16 * 8, 8, 1};
  for (std::int64_t const stride : {0, 3, -3}) {
    o.page_table_stride = stride;
    std::size_t bytes = 0;
    invalid(kvmeld_create(&o, &e.keys, &e.values, 1, &made),
            "kvmeld_create: options.page_table_stride is " + std::to_string(stride) +
                "; it must be at least 4, the pages of a sequence of options.capacity entries");
    invalid(kvmeld_bytes(&o, &bytes),
            "kvmeld_bytes: options.page_table_stride is " + std::to_string(stride) +
                "; it must be at least 4, the pages of a sequence of options.capacity entries");
  }
  o.page_table_stride = 4;
  invalid(kvmeld_create(&o, &e.keys, &e.values, 1, &made),
          "kvmeld_create: keys: paged: layer stride is 0; it must be another number, because there are 2 of "
          "them");
  e.keys.layer_stride = e.values.layer_stride = 12 * 2 * 16 * 8;
  e.keys.data = nullptr;
  invalid(kvmeld_create(&o, &e.keys, &e.values, 1, &made),
          "kvmeld_create: keys: paged: pool is null; it must be page 0 of the pool");
}

TEST_CASE("sequences, counts and lists") {
  engine e("h2o");
  std::uint32_t const zero = 0, nine = 9, two[2] = {0, 1};
  std::uint32_t const counts[2] = {1, 1};
  REQUIRE(kvmeld_open(e.cache, 0, 60, 0) == KVMELD_OK);
  invalid(kvmeld_open(e.cache, 0, 0, 0), "open: sequence is 0; it must be closed (call close first)");
  invalid(kvmeld_open(e.cache, 1, 65, 0), "open: tokens_cached is 65; it must be at most 64, the capacity");
  invalid(kvmeld_open(e.cache, 1, 4, 5), "open: frozen is 5; it must be at most 4, the tokens_cached");
  invalid(kvmeld_close(e.cache, 1), "close: sequence is 1; it must be open (call open first)");
  invalid(kvmeld_append(e.cache, nullptr, counts, 1),
          "kvmeld_append: sequences is null; it must be an array of n numbers");
  invalid(kvmeld_append(e.cache, &zero, nullptr, 1),
          "kvmeld_append: counts is null; it must be an array of n numbers");
  invalid(kvmeld_append(e.cache, two, counts, 2), "append: sequence is 1; it must be open (call open first)");
  invalid(kvmeld_append(e.cache, &zero, &nine, 1), "append: counts[0] is 9; it must be at most 4, the free "
                                                   "entries of track (layer 0, sequence 0, head 0), "
                                                   "which holds 60 of 64");
  invalid(kvmeld_commit(e.cache, nullptr, counts, 1),
          "kvmeld_commit: sequences is null; it must be an array of n numbers");
  invalid(kvmeld_commit(e.cache, &zero, nullptr, 1),
          "kvmeld_commit: accepted is null; it must be an array of n numbers");
  invalid(kvmeld_commit(e.cache, &zero, &nine, 1),
          "commit: accepted[0] is 9; it must be at most 0, the pending entries of sequence 0");
  CHECK(kvmeld_append(e.cache, nullptr, nullptr, 0) == KVMELD_OK);
  CHECK(kvmeld_commit(e.cache, nullptr, nullptr, 0) == KVMELD_OK);
  invalid(kvmeld_fork(e.cache, 0, 0), "fork: sequence is 0; it must be closed (call close first)");
  invalid(kvmeld_fork(e.cache, 1, 2), "fork: sequence is 1; it must be open (call open first)");
  invalid(kvmeld_truncate(e.cache, 0, 61),
          "truncate: tokens is 61; it must be 0 to 60, the tokens of sequence 0 that are seen");
  kvmeld_rope rope{};
  invalid(kvmeld_renumber(e.cache, 1, &rope), "renumber: sequence is 1; it must be open (call open first)");
  rope.pairing = 3;
  invalid(kvmeld_renumber(e.cache, 0, &rope),
          "kvmeld_renumber: rope.pairing is 3; it must be 0 to 2 (none, half_split, interleaved)");
  rope.pairing = KVMELD_ROPE_HALF_SPLIT;
  rope.base = -1.0;
  invalid(kvmeld_renumber(e.cache, 0, &rope),
          "renumber: rope.base is -1; it must be above 0 and below 10^30");
  invalid(kvmeld_shift(e.cache, 0, 1, &rope, 0),
          "shift: rope.base is -1; it must be above 0 and below 10^30");
  rope.pairing = -1;
  invalid(kvmeld_shift(e.cache, 0, 1, &rope, 0),
          "kvmeld_shift: rope.pairing is -1; it must be 0 to 2 (none, half_split, interleaved)");
  invalid(kvmeld_shift(e.cache, 1, 1, nullptr, 0), "shift: sequence is 1; it must be open (call open first)");
  invalid(kvmeld_shift(e.cache, 0, 1, nullptr, 61),
          "shift: first is 61; it must be 0 to 60, the tokens seen");
  invalid(kvmeld_shift(e.cache, 0, -1, nullptr, 0),
          "shift: offset is -1; it must be at least 0, because track (layer 0, sequence 0, head 0) holds "
          "position 0");
  invalid(kvmeld_drop_positions(e.cache, 1, 0, 0),
          "drop_positions: sequence is 1; it must be open (call open first)");
  invalid(kvmeld_drop_positions(e.cache, 0, 0, 61),
          "drop_positions: last is 61; it must be 0 to 60, the tokens seen");
  invalid(kvmeld_drop_positions(e.cache, 0, -1, 60),
          "drop_positions: first is -1; it must be 0 to last, which is 60");
  invalid(kvmeld_drop_positions(e.cache, 0, 7, 6),
          "drop_positions: first is 7; it must be 0 to last, which is 6");
}

TEST_CASE("observing, scores and compressing") {
  engine e("h2o");
  std::uint32_t const zero = 0;
  std::vector<float> const rows(4 * 64);
  REQUIRE(kvmeld_open(e.cache, 0, 40, 0) == KVMELD_OK);
  invalid(kvmeld_observe(e.cache, 0, 0, 1, 7, rows.data(), 8, 8, nullptr, 0, 0.0f),
          "kvmeld_observe: element is 7; it must be 0 to 2 (float32, float16, bfloat16)");
  invalid(kvmeld_observe(e.cache, 2, 0, 1, KVMELD_FLOAT32, rows.data(), 8, 8, nullptr, 0, 0.0f),
          "kvmeld_observe: layer is 2; it must be 0 to 1");
  invalid(kvmeld_observe(e.cache, 0, 3, 1, KVMELD_FLOAT32, rows.data(), 8, 8, nullptr, 0, 0.0f),
          "kvmeld_observe: sequence is 3; it must be 0 to 2");
  invalid(kvmeld_observe(e.cache, 0, 0, 41, KVMELD_FLOAT32, rows.data(), 8, 8, nullptr, 0, 0.0f),
          "kvmeld_observe: n is 41; it must be at most 40, the tokens seen");
  invalid(kvmeld_observe(e.cache, 0, 0, 1, KVMELD_FLOAT32, nullptr, 8, 8, rows.data(), 0, 0.0f),
          "observe: query.data is null; it must be the rows of the attention that is observed");
  invalid(kvmeld_observe_rows(e.cache, 0, 0, 1, nullptr, 64, 64),
          "observe: rows.data is null; it must be the rows of the attention that is observed");
  invalid(kvmeld_set_scores(e.cache, 0, 0, rows.data(), 64),
          "set_scores: score of the policy is global; it must be score::given");
  CHECK(kvmeld_compress(e.cache, &zero, 1, entries(10)) == KVMELD_INVALID_ARGUMENT);
  CHECK(std::string(kvmeld_problem()).rfind("compress: ", 0) == 0);  // nothing was observed
  for (std::uint32_t layer = 0; layer < 2; ++layer)
    REQUIRE(kvmeld_observe_rows(e.cache, layer, 0, 1, rows.data(), 64, 64) == KVMELD_OK);
  invalid(kvmeld_compress(e.cache, nullptr, 1, entries(10)),
          "kvmeld_compress: sequences is null; it must be an array of n numbers");
  invalid(kvmeld_compress(e.cache, &zero, 1, entries(0)),
          "kvmeld_compress: budget.ratio is 0; it must be above 0, because budget.entries is 0");
  invalid(kvmeld_compress(e.cache, &zero, 1, {4, 0.5, KVMELD_HEAD, 0.0, 0}),
          "kvmeld_compress: budget.ratio is 0.5; it must be 0, because budget.entries is given");
  invalid(kvmeld_compress(e.cache, &zero, 1, {4, 0.0, 3, 0.0, 0}),
          "kvmeld_compress: budget.over is 3; it must be 0 to 2 (head, layer, all_layers)");
  struct {
    double ratio;
    char const* text;
  } const wrong[] = {{-0.5, "-0.5"}, {1.5, "1.5"}, {std::nan(""), "nan"}};
  for (auto const& w : wrong) {
    invalid(kvmeld_compress(e.cache, &zero, 1, {0, w.ratio, KVMELD_HEAD, 0.0, 0}),
            "compress: budget ratio is " + std::string(w.text) + "; it must be above 0 and at most 1");
  }
  invalid(
      kvmeld_compress(e.cache, &zero, 1, {4, 0.0, KVMELD_LAYER, 0.0, 0}),
      "compress: scope of the budget is budget_scope::layer; it must be no wider than options.budgets_over, "
      "which is budget_scope::head");
  CHECK(kvmeld_compress(e.cache, &zero, 1, entries(10)) == KVMELD_OK);
}

TEST_CASE("policies that need queries, or have none to show") {
  engine e("leverage_dropkv");
  kvmeld_observation when = -1;
  std::uint32_t rows = 0;
  std::int32_t queries = 0;
  CHECK(kvmeld_needs(e.cache, &when, &rows, &queries) == KVMELD_OK);
  CHECK(when == KVMELD_OBSERVE_LAST_QUERIES);
  CHECK(rows == 8);
  CHECK(queries == 1);
  CHECK(kvmeld_needs(e.cache, nullptr, nullptr, nullptr) == KVMELD_OK);
  std::vector<float> const probabilities(4 * 64);
  REQUIRE(kvmeld_open(e.cache, 0, 40, 0) == KVMELD_OK);
  invalid(
      kvmeld_observe_rows(e.cache, 0, 0, 1, probabilities.data(), 64, 64),
      "observe_rows: policy is one whose score absorbs queries; it must be one that needs attention only, "
      "because attention does not contain the queries (call observe)");
}

TEST_CASE("what a cache holds") {
  engine e("h2o");
  REQUIRE(kvmeld_open(e.cache, 0, 10, 0) == KVMELD_OK);
  std::vector<float> numbers(4 * 64);
  std::vector<std::int32_t> positions(64);
  std::vector<std::uint32_t> lengths(4, 99);
  std::uint32_t n = 99;
  char const* name = nullptr;
  invalid(kvmeld_policy(e.cache, nullptr),
          "kvmeld_policy: name is null; it must be where to write the address of the name");
  CHECK(kvmeld_policy(e.cache, &name) == KVMELD_OK);
  CHECK(std::string(name) == "global x top x evict_rest x drop");
  invalid(kvmeld_tokens(e.cache, 0, nullptr),
          "kvmeld_tokens: tokens is null; it must be where to write the number");
  invalid(kvmeld_tokens(e.cache, 3, &n), "tokens: sequence is 3; it must be 0 to 2");
  invalid(kvmeld_longest(e.cache, 0, nullptr),
          "kvmeld_longest: entries is null; it must be where to write the number");
  invalid(kvmeld_longest(e.cache, 3, &n), "longest: sequence is 3; it must be 0 to 2");
  invalid(kvmeld_warnings(e.cache, 0, nullptr),
          "kvmeld_warnings: warnings is null; it must be where to write the bits");
  invalid(kvmeld_warnings(e.cache, 3, &n), "warnings: sequence is 3; it must be 0 to 2");
  CHECK(n == 99);
  invalid(kvmeld_lengths(e.cache, 0, nullptr),
          "kvmeld_lengths: lengths is null; it must be an array of layers * kv_heads numbers");
  invalid(kvmeld_lengths(e.cache, 3, lengths.data()), "kvmeld_lengths: sequence is 3; it must be 0 to 2");
  CHECK(lengths == std::vector<std::uint32_t>(4, 99));
  invalid(kvmeld_degrees(e.cache, 2, 0, 0, numbers.data(), 64),
          "kvmeld_degrees: layer is 2; it must be 0 to 1");
  invalid(kvmeld_degrees(e.cache, 0, 3, 0, numbers.data(), 64),
          "kvmeld_degrees: sequence is 3; it must be 0 to 2");
  invalid(kvmeld_degrees(e.cache, 0, 0, 2, numbers.data(), 64),
          "kvmeld_degrees: kv_head is 2; it must be 0 to 1");
  invalid(
      kvmeld_degrees(e.cache, 0, 0, 0, nullptr, 64),
      "kvmeld_degrees: degrees is null; it must be an array for as many numbers as the track has entries");
  invalid(kvmeld_degrees(e.cache, 0, 0, 0, numbers.data(), 9),
          "kvmeld_degrees: capacity is 9; it must be at least 10, the entries of the track");
  invalid(kvmeld_positions(e.cache, 0, 0, 0, nullptr, 64),
          "kvmeld_positions: positions is null; it must be an array for as many numbers as the track has "
          "entries");
  invalid(kvmeld_positions(e.cache, 0, 0, 0, positions.data(), 0),
          "kvmeld_positions: capacity is 0; it must be at least 10, the entries of the track");
  CHECK(kvmeld_positions(e.cache, 0, 1, 0, nullptr, 0) == KVMELD_OK);  // a track without entries
  CHECK(kvmeld_positions(e.cache, 0, 0, 1, positions.data(), 10) == KVMELD_OK);
  CHECK(positions[9] == 9);
  invalid(kvmeld_log_degrees(e.cache, 2, 0, numbers.data(), 64, 64),
          "kvmeld_log_degrees: layer is 2; it must be 0 to 1");
  invalid(kvmeld_log_degrees(e.cache, 0, 0, nullptr, 64, 64),
          "kvmeld_log_degrees: bias is null; it must be rows of `columns` numbers for each query head");
  invalid(kvmeld_log_degrees(e.cache, 0, 0, numbers.data(), 64, 9),
          "kvmeld_log_degrees: columns is 9; it must be at least 10, the entries of KV head 0");
  CHECK(kvmeld_log_degrees(e.cache, 0, 0, numbers.data(), 64, 12) == KVMELD_OK);
  CHECK(numbers[9] == 0.0f);
  CHECK(numbers[10] < -1e38f);
  CHECK(numbers[12] == 0.0f);  // behind the columns
}

TEST_CASE("attention and saving") {
  engine e("h2o");
  REQUIRE(kvmeld_open(e.cache, 0, 10, 0) == KVMELD_OK);
  std::vector<float> q(4 * 8), out(4 * 8);
  auto const attend = [&](std::uint32_t layer, std::uint32_t n, kvmeld_element element,
                          kvmeld_element out_element, void const* from, void* to) {
    return kvmeld_attend(e.cache, layer, 0, n, element, from, 8, 8, out_element, to, 8, 8, nullptr, 0, 0.0f);
  };
  CHECK(attend(0, 1, KVMELD_FLOAT32, KVMELD_FLOAT32, q.data(), out.data()) == KVMELD_OK);
  invalid(attend(0, 1, 9, KVMELD_FLOAT32, q.data(), out.data()),
          "kvmeld_attend: element is 9; it must be 0 to 2 (float32, float16, bfloat16)");
  invalid(attend(0, 1, KVMELD_FLOAT16, KVMELD_BFLOAT16, q.data(), out.data()),
          "kvmeld_attend: out_element is 2 (bfloat16); it must be 1 (float16), the element type of the "
          "queries, or 0 "
          "(float32)");
  invalid(attend(2, 1, KVMELD_FLOAT32, KVMELD_FLOAT32, q.data(), out.data()),
          "attention::attend: layer is 2; it must be 0 to 1");
  invalid(kvmeld_attend(e.cache, 0, 1, 1, KVMELD_FLOAT32, q.data(), 8, 8, KVMELD_FLOAT32, out.data(), 8, 8,
                        nullptr, 0, 0.0f),
          "kvmeld_attend: sequence is 1; it must be open (call kvmeld_open first)");
  CHECK(attend(0, 1, KVMELD_FLOAT32, KVMELD_FLOAT32, nullptr, out.data()) == KVMELD_INVALID_ARGUMENT);
  CHECK(attend(0, 1, KVMELD_FLOAT32, KVMELD_FLOAT32, q.data(), nullptr) == KVMELD_INVALID_ARGUMENT);

  std::size_t bytes = 0;
  invalid(kvmeld_saved_bytes(e.cache, 0, nullptr),
          "kvmeld_saved_bytes: bytes is null; it must be where to write the number");
  invalid(kvmeld_saved_bytes(e.cache, 1, &bytes), "save: sequence is 1; it must be open (call open first)");
  REQUIRE(kvmeld_saved_bytes(e.cache, 0, &bytes) == KVMELD_OK);
  std::vector<unsigned char> saved(bytes);
  invalid(kvmeld_save(e.cache, 0, nullptr, bytes),
          "kvmeld_save: out is null; it must be memory for as many bytes as kvmeld_saved_bytes says");
  CHECK(kvmeld_save(e.cache, 0, saved.data(), bytes - 1) == KVMELD_INVALID_ARGUMENT);
  CHECK(std::string(kvmeld_problem()).rfind("save: ", 0) == 0);
  REQUIRE(kvmeld_save(e.cache, 0, saved.data(), bytes) == KVMELD_OK);
  invalid(kvmeld_resume(e.cache, 1, nullptr, bytes),
          "kvmeld_resume: from is null; it must be the bytes that kvmeld_save wrote");
  CHECK(kvmeld_resume(e.cache, 0, saved.data(), bytes) == KVMELD_INVALID_ARGUMENT);  // it is open
  saved[bytes / 2] ^= 1;
  CHECK(kvmeld_resume(e.cache, 1, saved.data(), bytes) == KVMELD_INVALID_ARGUMENT);  // the checksum
  saved[bytes / 2] ^= 1;
  CHECK(kvmeld_resume(e.cache, 1, saved.data(), bytes) == KVMELD_OK);
}
