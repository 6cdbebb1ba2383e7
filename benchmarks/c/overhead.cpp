// What the C interface costs beside the template: the same work through kvmeld.h and through merged_cache
// with a policy that is fixed at compile time. One thread, 8 tracks of 4,096 entries of 128 channels. Prints
// the least times of runs in turn, which other work disturbs least. Usage: kvmeld_c_overhead [runs]
#include <all_printed.h>
#include <count_argument.hpp>

#include <kvmeld/kvmeld.h>
#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr std::uint32_t dim = 128, tokens = 4096, window = 32;
kvmeld::shape const extent{2, 1, 4, 4, dim, dim, tokens};

struct tensors {
  std::vector<float> k = std::vector<float>(extent.slots() * dim), v = k,
                     q = std::vector<float>(16 * window * dim), lse = std::vector<float>(16 * window, 8.0f);
  void fill() {
    std::uint32_t x = 1;
    auto const next = [&] {
      return static_cast<float>((x = x * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1.0f;
    };
    for (float& f : k) f = next();
    for (float& f : v) f = next();
    for (float& f : q) f = next();
  }
};

/// Seconds of one run of f.
template <class F> double seconds(F f) {
  auto const begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
void check(kvmeld_status status) {
  if (status == KVMELD_OK) return;
  std::fprintf(stderr, "%s\n", kvmeld_problem());
  std::exit(1);
}

/// A prompt's life: opened, the last queries shown, compressed to a fifth.
template <class Cache> void live(Cache& cache, tensors const& t) {
  cache.open(0, tokens);
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
    kvmeld::log_sums<float const> const lse(kvmeld::rows_by_head(t.lse.data(), window, 16, 1));
    cache.observe({layer, 0, window}, kvmeld::rows_by_head(t.q.data(), window, 16, dim), lse);
  }
  cache.compress({0}, kvmeld::budget::ratio(0.2));
  cache.close(0);
}
void live(kvmeld_cache cache, tensors const& t) {
  std::uint32_t const zero = 0;
  check(kvmeld_open(cache, 0, tokens, 0));
  for (std::uint32_t layer = 0; layer < extent.layers; ++layer) {
    check(kvmeld_observe(cache, layer, 0, window, KVMELD_FLOAT32, t.q.data(), window * dim, dim, t.lse.data(),
                         window, 0.0f));
  }
  check(kvmeld_compress(cache, &zero, 1, {0, 0.2, KVMELD_HEAD, 0.0, 0}));
  check(kvmeld_close(cache, 0));
}

template <class Policy> void compare(char const* name, char const* text, Policy const& policy, int pairs) {
  tensors a, b;
  kvmeld::merged_cache cache{kvmeld::host_executor{1}, policy,
                             kvmeld::kv{kvmeld::strided<float>(a.k.data(), "LSHTC", extent, dim),
                                        kvmeld::strided<float>(a.v.data(), "LSHTC", extent, dim)},
                             kvmeld::cache_options{extent}};
  kvmeld_options o;
  check(kvmeld_options_init(&o, sizeof o));
  o.policy = text;
  o.layers = extent.layers, o.sequences = 1, o.kv_heads = extent.kv_heads;
  o.queries_per_kv_head = extent.queries_per_kv_head;
  o.key_dim = o.value_dim = dim, o.capacity = tokens, o.threads = 1;
  std::int64_t const head = std::int64_t{tokens} * dim, layer = head * extent.kv_heads;
  kvmeld_tensor const keys{b.k.data(), layer, layer, head, dim, 1},
      values{b.v.data(), layer, layer, head, dim, 1};
  kvmeld_cache handle{0};
  check(kvmeld_create(&o, &keys, &values, 1, &handle));

  double cpp = 1e9, c = 1e9;
  for (int i = 0; i < pairs + 2; ++i) {
    a.fill();
    b.fill();
    double first = 0, second = 0;
    if (i % 2 == 0) first = seconds([&] { live(cache, a); });
    second = seconds([&] { live(handle, b); });
    if (i % 2 != 0) first = seconds([&] { live(cache, a); });
    if (i < 2) continue;  // scratch grows, pages come
    cpp = std::min(cpp, first);
    c = std::min(c, second);
  }
  if (a.k != b.k || a.v != b.v) {
    std::fprintf(stderr, "%s: the rows differ\n", name);
    std::exit(1);
  }
  std::printf("%-16s %12.3f %12.3f %9.1f%%\n", name, cpp * 1e3, c * 1e3, (c / cpp - 1) * 100);
  check(kvmeld_destroy(handle));
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kvmeld;
  int const pairs = static_cast<int>(count_argument(argc, argv, 1, 15, 1, 100000));
  std::printf("%-16s %12s %12s %10s\n", "policy", "template ms", "kvmeld.h ms", "overhead");
  compare("snapkv", "snapkv", preset::snapkv::with_window(), pairs);
  compare("chelsea", "chelsea",
          preset::chelsea::with_schedule({}, quantity::at_most(16, 0.25), quantity::at_most(64, 1.0 / 3)),
          pairs);
  compare("leverage_dropkv", "leverage_dropkv", preset::leverage_dropkv::for_budget(), pairs);
  compare("streaming_llm", "streaming_llm", preset::streaming_llm::with_sinks(), pairs);

  tensors t;
  t.fill();
  kvmeld_options o;
  check(kvmeld_options_init(&o, sizeof o));
  o.policy = "streaming_llm";
  o.layers = extent.layers, o.sequences = 1, o.kv_heads = extent.kv_heads;
  o.queries_per_kv_head = 1, o.key_dim = o.value_dim = dim, o.capacity = tokens, o.threads = 1;
  std::int64_t const head = std::int64_t{tokens} * dim, layer = head * extent.kv_heads;
  kvmeld_tensor const keys{t.k.data(), layer, layer, head, dim, 1},
      values{t.v.data(), layer, layer, head, dim, 1};
  kvmeld_cache handle{0};
  check(kvmeld_create(&o, &keys, &values, 1, &handle));
  constexpr int calls = 100000;
  std::uint32_t n = 0;
  double const took = seconds([&] {
    for (int i = 0; i < calls; ++i) check(kvmeld_tokens(handle, 0, &n));
  });
  std::printf("a call that does nothing else: %.0f ns\n", took / calls * 1e9);
  check(kvmeld_destroy(handle));
  return all_printed() ? 0 : 1;
}
