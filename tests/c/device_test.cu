// libkvmeld on a CUDA device, beside the same library on the host: the same life, through kvmeld.h.
#include <kvmeld/core/element.hpp>
#include <kvmeld/kvmeld.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include "cuda/device_array.cuh"

namespace {

using element = kvmeld::float16;
constexpr std::uint32_t layers = 2, sequences = 3, kv_heads = 2, group = 2, query_heads = kv_heads * group;
constexpr std::uint32_t dim = 16, capacity = 96, page = 16, pages = capacity / page;
constexpr std::size_t row_count = std::size_t{layers} * sequences * kv_heads * capacity;

float noise(std::uint64_t i) {
  i = (i + 1) * 0x9e3779b97f4a7c15u;
  i = (i ^ (i >> 29)) * 0xbf58476d1ce4e5b9u;
  return static_cast<float>((i ^ (i >> 32)) & 0xffffff) / 0x800000 - 1.0f;
}
float value_of(element x) { return kvmeld::element_traits<element>::to_float(x); }
element element_of(float x) { return kvmeld::element_traits<element>::from_float(x); }

using cuda_test::device_array;

enum class form { one_tensor, per_layer, in_pages };

kvmeld_options options_for(char const* policy) {
  kvmeld_options o;
  REQUIRE(kvmeld_options_init(&o, sizeof o) == KVMELD_OK);
  o.policy = policy;
  o.layers = layers, o.sequences = sequences, o.kv_heads = kv_heads, o.queries_per_kv_head = group;
  o.key_dim = o.value_dim = dim, o.capacity = capacity;
  o.element = KVMELD_FLOAT16;
  o.threads = 1;
  return o;
}

void ok(kvmeld_status status) { CHECK_MESSAGE(status == KVMELD_OK, std::string(kvmeld_problem())); }

/// A cache on the host and one on the device, over the same rows.
struct twins {
  std::vector<element> k, v;
  device_array<element> far_k, far_v;
  std::vector<std::int32_t> table;
  device_array<std::int32_t> far_table;
  form how;
  kvmeld_cache here{0}, there{0};

  static std::vector<element> rows(std::uint64_t seed) {
    std::vector<element> out(row_count * dim);
    for (std::size_t i = 0; i < out.size(); ++i) {
      // Neighbours resemble each other, so that there is something to merge.
      std::size_t const row = i / dim;
      out[i] = element_of(noise(seed + row / 3 * dim + i % dim) + 0.3f * noise(seed + 77777 + i));
    }
    return out;
  }
  static std::vector<std::int32_t> backwards() {
    std::vector<std::int32_t> out;
    for (std::uint32_t i = sequences * pages; i > 0; --i) out.push_back(static_cast<std::int32_t>(i - 1));
    return out;
  }

  twins(char const* policy, form f, void (*change)(kvmeld_options&) = nullptr)
      : k(rows(1)), v(rows(1000000)), far_k(k), far_v(v), table(backwards()), far_table(table), how(f) {
    kvmeld_options o = options_for(policy);
    if (change != nullptr) change(o);
    if (how == form::in_pages) {
      o.page_size = page;
      o.page_table_stride = pages;
    }
    auto const make = [&](int device, std::int32_t const* numbers, element* keys, element* values) {
      kvmeld_cache made{0};
      o.device = device;
      if (how == form::in_pages) o.page_table = numbers;
      auto const on_k = tensors(keys), on_v = tensors(values);
      kvmeld_status const status =
          kvmeld_create(&o, on_k.data(), on_v.data(), static_cast<std::uint32_t>(on_k.size()), &made);
      REQUIRE_MESSAGE(status == KVMELD_OK, std::string(kvmeld_problem()));
      return made;
    };
    here = make(-1, table.data(), k.data(), v.data());
    there = make(0, far_table.data(), far_k.data(), far_v.data());
  }
  twins(twins const&) = delete;
  ~twins() {
    ok(kvmeld_destroy(here));
    ok(kvmeld_destroy(there));
  }

  std::vector<kvmeld_tensor> tensors(element* data) const {
    constexpr std::int64_t token = dim, in_page = page * dim, head = capacity * dim,
                           layer = sequences * kv_heads * head;
    if (how == form::in_pages)
      return {{data, sequences * pages * kv_heads * in_page, kv_heads * in_page, in_page, token, 1}};
    if (how == form::one_tensor) return {{data, layer, kv_heads * head, head, token, 1}};
    return {{data, 0, kv_heads * head, head, token, 1}, {data + layer, 0, kv_heads * head, head, token, 1}};
  }

  template <class Call> void both(Call call) {
    ok(call(here));
    ok(call(there));
  }
  template <class T, class Ask> std::vector<T> same(std::size_t n, Ask ask) {
    std::vector<T> a(n), b(n);
    ok(ask(here, a.data()));
    ok(ask(there, b.data()));
    CHECK(a == b);
    return a;
  }
  void compress(std::uint32_t sequence, std::uint32_t entries) {
    both([&](kvmeld_cache c) {
      return kvmeld_compress(c, &sequence, 1, {entries, 0.0, KVMELD_HEAD, 0.0, 0});
    });
  }
  void compare(std::uint32_t sequence) {
    using number = std::uint32_t;
    same<number>(1, [&](kvmeld_cache c, number* to) { return kvmeld_tokens(c, sequence, to); });
    same<number>(1, [&](kvmeld_cache c, number* to) { return kvmeld_warnings(c, sequence, to); });
    number const longest =
        same<number>(1, [&](kvmeld_cache c, number* to) { return kvmeld_longest(c, sequence, to); })[0];
    auto const lengths = same<number>(
        layers * kv_heads, [&](kvmeld_cache c, number* to) { return kvmeld_lengths(c, sequence, to); });
    for (number l = 0; l < layers; ++l) {
      for (number h = 0; h < kv_heads; ++h) {
        number const n = lengths[l * kv_heads + h];
        same<float>(n, [&](kvmeld_cache c, float* to) { return kvmeld_degrees(c, l, sequence, h, to, n); });
        same<std::int32_t>(
            n, [&](kvmeld_cache c, std::int32_t* to) { return kvmeld_positions(c, l, sequence, h, to, n); });
      }
      number const columns = longest + 5;
      std::vector<float> bias(query_heads * columns);
      device_array<float> const far_bias(bias);
      ok(kvmeld_log_degrees(here, l, sequence, bias.data(), columns, columns));
      ok(kvmeld_log_degrees(there, l, sequence, far_bias.data(), columns, columns));
      std::vector<float> const got = far_bias.get();
      for (std::size_t i = 0; i < bias.size(); ++i) CHECK(got[i] == doctest::Approx(bias[i]).epsilon(1e-6));
    }
    compare_rows(k, far_k.get());
    compare_rows(v, far_v.get());
  }
  static void compare_rows(std::vector<element> const& a, std::vector<element> const& b) {
    float worst = 0.0f;
    for (std::size_t i = 0; i < a.size(); ++i)
      worst = std::fmax(worst, std::fabs(value_of(a[i]) - value_of(b[i])));
    CHECK(worst < 4e-3f);  // two units in the last place of 2
  }

  /// Queries of the last n tokens: the policy sees them, and attention reads them.
  void attend(std::uint32_t sequence, std::uint32_t n, bool own_lse) {
    std::vector<element> q(query_heads * n * dim);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = element_of(2.0f * noise(5000000 + i));
    device_array<element> const far_q(q);
    for (std::uint32_t l = 0; l < layers; ++l) {
      std::vector<float> out(q.size()), lse(query_heads * n);
      device_array<float> const far_out(out), far_lse(lse);
      auto const run = [&](kvmeld_cache c, element const* queries, float* to, float* sums) {
        ok(kvmeld_attend(c, l, sequence, n, KVMELD_FLOAT16, queries, n * dim, dim, KVMELD_FLOAT32, to,
                         n * dim, dim, sums, n, 0.0f));
        kvmeld_observation when = KVMELD_OBSERVE_NOTHING;
        ok(kvmeld_needs(c, &when, nullptr, nullptr));
        if (when == KVMELD_OBSERVE_NOTHING) return;
        ok(kvmeld_observe(c, l, sequence, n, KVMELD_FLOAT16, queries, n * dim, dim, own_lse ? sums : nullptr,
                          n, 0.0f));
      };
      run(here, q.data(), out.data(), lse.data());
      run(there, far_q.data(), far_out.data(), far_lse.data());
      std::vector<float> const got = far_out.get(), norms = far_lse.get();
      for (std::size_t i = 0; i < out.size(); ++i) CHECK(got[i] == doctest::Approx(out[i]).epsilon(2e-3));
      for (std::size_t i = 0; i < lse.size(); ++i) CHECK(norms[i] == doctest::Approx(lse[i]).epsilon(1e-4));
    }
  }
};

void life(char const* policy, form how) {
  CAPTURE(policy);
  CAPTURE(static_cast<int>(how));
  twins x(policy, how);
  x.both([](kvmeld_cache c) { return kvmeld_open(c, 0, 80, 4); });
  x.both([](kvmeld_cache c) { return kvmeld_open(c, 1, 60, 0); });
  for (std::uint32_t s : {0u, 1u}) {
    x.attend(s, 20, s == 0);
    x.compress(s, 40);
    x.compare(s);
  }
  std::uint32_t const both[] = {1, 0}, counts[] = {6, 3}, accepted[] = {4, 3};
  x.both([&](kvmeld_cache c) { return kvmeld_append(c, both, counts, 2); });
  x.both([&](kvmeld_cache c) { return kvmeld_commit(c, both, accepted, 2); });
  x.both([](kvmeld_cache c) { return kvmeld_fork(c, 1, 2); });
  x.both([](kvmeld_cache c) { return kvmeld_truncate(c, 2, 62); });
  for (std::uint32_t s : {0u, 1u, 2u}) x.compare(s);
  x.attend(2, 2, true);

  float frequencies[dim / 2];
  for (std::uint32_t i = 0; i < dim / 2; ++i) frequencies[i] = 1.0f / static_cast<float>(1 + i * i);
  kvmeld_rope const rope{KVMELD_ROPE_HALF_SPLIT, 0, 0.0, 0.0, frequencies};
  x.both([&](kvmeld_cache c) { return kvmeld_renumber(c, 1, &rope); });
  x.compare(1);
  x.both([&](kvmeld_cache c) { return kvmeld_shift(c, 1, 5, &rope, 0); });
  x.compare(1);
  x.both([&](kvmeld_cache c) { return kvmeld_drop_positions(c, 1, 9, 12); });
  x.compare(1);

  // What a device saved goes on here, and the other way round.
  std::size_t bytes = 0;
  ok(kvmeld_saved_bytes(x.there, 1, &bytes));
  std::vector<std::byte> there(bytes), here(bytes);
  ok(kvmeld_save(x.there, 1, there.data(), bytes));
  ok(kvmeld_save(x.here, 1, here.data(), bytes));
  x.both([](kvmeld_cache c) { return kvmeld_close(c, 1); });
  ok(kvmeld_resume(x.there, 1, here.data(), bytes));
  ok(kvmeld_resume(x.here, 1, there.data(), bytes));
  x.compare(1);

  // The same rows at another place.
  device_array<element> const moved_k(x.far_k.get()), moved_v(x.far_v.get());
  x.far_k.put(std::vector<element>(row_count * dim));
  auto const k = x.tensors(moved_k.data()), v = x.tensors(moved_v.data());
  ok(kvmeld_rebind(x.there, k.data(), v.data(), static_cast<std::uint32_t>(k.size())));
  x.attend(1, 3, true);
  auto const back_k = x.tensors(x.far_k.data());
  x.far_k.put(moved_k.get());
  ok(kvmeld_rebind(x.there, back_k.data(), x.tensors(x.far_v.data()).data(),
                   static_cast<std::uint32_t>(k.size())));
}

}  // namespace

TEST_CASE("libkvmeld on a device does what it does on the host: tensors") {
  for (char const* policy : {"h2o", "leverage_dropkv"}) life(policy, form::one_tensor);
  life("chelsea", form::per_layer);
}

TEST_CASE("libkvmeld on a device does what it does on the host: pages") {
  for (char const* policy : {"streaming_llm", "snapkv"}) life(policy, form::in_pages);
}

TEST_CASE("a device caps, hides and sinks as the host does") {
  static float const sinks[layers * query_heads] = {2.0f, -1.0f, 0.5f, 3.0f};
  static kvmeld_attention const told{1.5f, 30, 4, sinks};
  twins x("h2o", form::one_tensor, [](kvmeld_options& o) { o.attention = &told; });
  x.both([](kvmeld_cache c) { return kvmeld_open(c, 0, 80, 0); });
  x.attend(0, 20, false);
  x.compress(0, 40);
  x.compare(0);
}

TEST_CASE("scores and probabilities that the engine brings lie on the device") {
  std::vector<float> scores(kv_heads * capacity);
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = noise(i);
  device_array<float> const far_scores(scores);
  twins given("score=given select=top identify=evict_rest merge=drop", form::one_tensor);
  given.both([](kvmeld_cache c) { return kvmeld_open(c, 0, 50, 0); });
  for (std::uint32_t l = 0; l < layers; ++l) {
    ok(kvmeld_set_scores(given.here, l, 0, scores.data(), capacity));
    ok(kvmeld_set_scores(given.there, l, 0, far_scores.data(), capacity));
  }
  given.compress(0, 20);
  given.compare(0);

  std::vector<float> rows(query_heads * 2 * capacity);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = std::fabs(noise(i));
  device_array<float> const far_rows(rows);
  twins h2o("h2o", form::one_tensor);
  h2o.both([](kvmeld_cache c) { return kvmeld_open(c, 0, 50, 0); });
  for (std::uint32_t l = 0; l < layers; ++l) {
    ok(kvmeld_observe_rows(h2o.here, l, 0, 2, rows.data(), 2 * capacity, capacity));
    ok(kvmeld_observe_rows(h2o.there, l, 0, 2, far_rows.data(), 2 * capacity, capacity));
  }
  h2o.compress(0, 20);
  h2o.compare(0);
}

namespace {

/// A cache on a stream of the program's own, which does not wait for the default stream.
struct on_own_stream {
  twins const rows{"streaming_llm", form::one_tensor};
  std::vector<kvmeld_tensor> const k = rows.tensors(rows.far_k.data()), v = rows.tensors(rows.far_v.data());
  cudaStream_t stream = nullptr;
  kvmeld_options o = options_for("streaming_llm");
  kvmeld_cache cache{0};

  on_own_stream() {
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    o.device = 0;
    o.stream = stream;
    REQUIRE(kvmeld_create(&o, k.data(), v.data(), 1, &cache) == KVMELD_OK);
  }
  on_own_stream(on_own_stream const&) = delete;
  ~on_own_stream() {
    ok(kvmeld_destroy(cache));
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  }
};

}  // namespace

TEST_CASE("a stream of the program's own, and lengths that the host knows without waiting") {
  on_own_stream const x;
  kvmeld_cache const cache = x.cache;
  ok(kvmeld_open(cache, 2, 90, 0));
  std::uint32_t const sequence = 2;
  ok(kvmeld_compress(cache, &sequence, 1, {30, 0.0, KVMELD_HEAD, 0.0, 0}));
  std::uint32_t longest = 0;
  ok(kvmeld_longest(cache, 2, &longest));
  CHECK(longest == 30);
}

TEST_CASE("memory of the program: as much as kvmeld_bytes says, and all of it comes back") {
  struct counter {
    std::size_t taken = 0, held = 0;
    bool empty = false;
  } count;
  kvmeld_options o = options_for("leverage_dropkv");
  o.device = 0;
  std::size_t bytes = 0;
  o.allocator.context = &count;
  o.allocator.allocate = [](void* context, std::size_t n, std::size_t alignment) -> void* {
    auto& c = *static_cast<counter*>(context);
    void* p = nullptr;
    CHECK(alignment == 256);
    if (c.empty || cudaMalloc(&p, n) != cudaSuccess) return nullptr;
    c.taken += n;
    c.held += n;
    return p;
  };
  o.allocator.release = [](void* context, void* p, std::size_t n) {
    static_cast<counter*>(context)->held -= n;
    cudaFree(p);
  };
  ok(kvmeld_bytes(&o, &bytes));
  CHECK(count.taken == 0);
  twins const rows("streaming_llm", form::one_tensor);
  auto const k = rows.tensors(rows.far_k.data()), v = rows.tensors(rows.far_v.data());
  kvmeld_cache cache{0};
  REQUIRE(kvmeld_create(&o, k.data(), v.data(), 1, &cache) == KVMELD_OK);
  CHECK(count.taken == bytes);
  CHECK(count.held == bytes);
  ok(kvmeld_open(cache, 0, 64, 0));
  ok(kvmeld_destroy(cache));
  CHECK(count.held == 0);

  count.empty = true;
  CHECK(kvmeld_create(&o, k.data(), v.data(), 1, &cache) == KVMELD_NO_MEMORY);
  o.allocator.release = nullptr;
  CHECK(kvmeld_create(&o, k.data(), v.data(), 1, &cache) == KVMELD_INVALID_ARGUMENT);
}

TEST_CASE("what the host has only a bound of is looked up before it refuses") {
  twins x("score=key_difference select=top identify=chunked_bipartite merge=degree_weighted chunk=8 sinks=0 "
          "recents=0",
          form::one_tensor);
  std::uint32_t const sequence = 0, room = 20;
  x.both([](kvmeld_cache c) { return kvmeld_open(c, 0, capacity, 0); });
  x.both([&](kvmeld_cache c) { return kvmeld_compress(c, &sequence, 1, {40, 0.0, KVMELD_HEAD, 0.0, 1}); });
  x.both([&](kvmeld_cache c) { return kvmeld_append(c, &sequence, &room, 1); });
  x.both([&](kvmeld_cache c) { return kvmeld_commit(c, &sequence, &room, 1); });
  x.compare(0);
}

TEST_CASE("a stream that is being captured") {
  on_own_stream const x;
  kvmeld_cache const cache = x.cache;
  kvmeld_cache another{0};
  ok(kvmeld_open(cache, 0, 40, 0));
  REQUIRE(cudaStreamBeginCapture(x.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  std::uint32_t const sequence = 0, one = 1;
  CHECK(kvmeld_append(cache, &sequence, &one, 1) == KVMELD_INVALID_ARGUMENT);
  CHECK(std::string(kvmeld_problem()) ==
        "kvmeld_append: options.stream is being captured; it must be a stream outside of a capture");
  CHECK(kvmeld_create(&x.o, x.k.data(), x.v.data(), 1, &another) == KVMELD_INVALID_ARGUMENT);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(x.stream, &graph) == cudaSuccess);
  cudaGraphDestroy(graph);
  ok(kvmeld_append(cache, &sequence, &one, 1));
  std::uint32_t longest = 0;
  ok(kvmeld_longest(cache, 0, &longest));
  CHECK(longest == 41);
}

TEST_CASE("what a library with CUDA refuses") {
  twins const rows("h2o", form::one_tensor);
  auto const k = rows.tensors(rows.far_k.data());
  kvmeld_options o = options_for("h2o");
  kvmeld_cache made{0};
  std::size_t bytes = 0;
  int count = 0;
  REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
  auto const refused = [&](kvmeld_status wanted, std::string const& text) {
    CHECK(kvmeld_create(&o, k.data(), k.data(), 1, &made) == wanted);
    CHECK(kvmeld_problem() == "kvmeld_create: " + text);
    CHECK(kvmeld_bytes(&o, &bytes) == wanted);
    CHECK(kvmeld_problem() == "kvmeld_bytes: " + text);
  };
  o.device = count;
  refused(KVMELD_INVALID_ARGUMENT, "options.device is " + std::to_string(count) + "; it must be below " +
                                       std::to_string(count) + ", the number of CUDA devices, or -1");
  o.device = -2;
  refused(KVMELD_INVALID_ARGUMENT, "options.device is -2; it must be -1, or the number of a device");
  o.device = -1;
  o.stream = &o;
  refused(KVMELD_INVALID_ARGUMENT, "options.stream is given; it must be null for host memory");
  o.stream = nullptr;
  o.device = 0;
  o.policy = "chelsea";
  o.bias = KVMELD_BIAS_SHARED;  // with a plan for each head: the cache itself refuses it
  CHECK(kvmeld_create(&o, k.data(), k.data(), 1, &made) == KVMELD_INVALID_ARGUMENT);
  CHECK(kvmeld_bytes(&o, &bytes) == KVMELD_INVALID_ARGUMENT);
  o.bias = KVMELD_BIAS_PER_HEAD;
  o.policy = "h2o";
  o.device = -1;
  o.element = KVMELD_FLOAT32 + 9;
  refused(KVMELD_INVALID_ARGUMENT, "options.element is 9; it must be 0 to 2 (float32, float16, bfloat16)");

  o.element = KVMELD_FLOAT32;  // a type that this build may lack (KVMELD_C_ELEMENTS)
  if (kvmeld_status const status = kvmeld_create(&o, k.data(), k.data(), 1, &made); status == KVMELD_OK) {
    ok(kvmeld_destroy(made));
  } else {
    CHECK(status == KVMELD_UNSUPPORTED);
    std::string const told = kvmeld_problem(),
                      end = ", because this library was built without the other types";
    CHECK(told.rfind("kvmeld_create: options.element is 0 (float32); it must be ", 0) == 0);
    CHECK(told.find("float32", 45) == std::string::npos);
    CHECK((told.size() > end.size() && told.substr(told.size() - end.size()) == end));
  }

  // Frequencies lie on the host, and are checked there.
  float const odd[dim / 2] = {1.0f, std::nanf("")};
  kvmeld_rope const rope{KVMELD_ROPE_HALF_SPLIT, 0, 0.0, 0.0, odd};
  ok(kvmeld_open(rows.there, 0, 20, 0));
  CHECK(kvmeld_renumber(rows.there, 0, &rope) == KVMELD_INVALID_ARGUMENT);
  CHECK(std::string(kvmeld_problem()).find("rope.frequencies[1]") != std::string::npos);
}
