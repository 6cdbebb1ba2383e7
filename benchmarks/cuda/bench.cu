// Compressions, decode steps and attention on a device, beside a copy on the device of the bytes that must
// move at least.
//   kvmeld_cuda_bench [--most ENTRIES] [--only TEXT] [--profile]
// --only: rows whose name holds the text. --profile: one compression of 65,536 entries by each preset, marked
// for a profiler.
#include "bench.cuh"

#include <tiny_llama/program.hpp>

#include <cuda_profiler_api.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using namespace cuda_bench;
using element = __nv_bfloat16;

constexpr std::uint32_t heads = 8, group = 4, page = 16;
constexpr double kept_share = 0.2;

struct options {
  std::uint32_t most = 262144;
  char const* only = "";
  bool profile = false;
  bool wants(std::string const& name) const { return name.find(only) != std::string::npos; }
};

/// Tensors of all layers, and what they were at first.
struct tensors {
  explicit tensors(kvmeld::shape const& s, bool keeps = true)
      : extent(s),
        count(s.slots() * s.key_dim),
        keys(count),
        values(count),
        keys_before(keeps ? count : 0),
        values_before(keeps ? count : 0),
        numbers(kvmeld::ceil_div(s.capacity, page) * s.sequences) {
    if (!there()) return;
    fill(keys.data(), count, 1u, s.key_dim);
    fill(values.data(), count, 2u);
    if (keeps) copy_on_device(keys_before.data(), keys.data(), count * sizeof(element));
    if (keeps) copy_on_device(values_before.data(), values.data(), count * sizeof(element));
    // Pages that follow each other in a sequence lie apart.
    std::uint32_t const pages = kvmeld::ceil_div(s.capacity, page) * s.sequences;
    std::vector<std::int32_t> places(pages);
    for (std::uint32_t i = 0; i < pages; ++i) places[i] = static_cast<std::int32_t>(i);
    for (std::uint32_t i = pages - 1, x = 1; i > 0; --i) {
      x = x * 1664525u + 1013904223u;
      std::swap(places[i], places[(x >> 8) % (i + 1)]);
    }
    cudaMemcpy(numbers.data(), places.data(), pages * sizeof(std::int32_t), cudaMemcpyHostToDevice);
  }
  bool there() const { return keys.data() && values.data() && numbers.data(); }
  void restore(cudaStream_t stream) {
    copy_on_device(keys.data(), keys_before.data(), count * sizeof(element), stream);
    copy_on_device(values.data(), values_before.data(), count * sizeof(element), stream);
  }
  auto strided() const {
    return kvmeld::kv{kvmeld::strided<element>{keys.data(), "LSHTC", extent, extent.key_dim},
                      kvmeld::strided<element>{values.data(), "LSHTC", extent, extent.value_dim}};
  }
  /// 8-bit floats in the same memory, all of them 1.
  auto codes() const {
    auto const rows = [&](element* data) {
      cudaMemset(data, 0x38, extent.slots() * extent.key_dim);
      auto* const ones = reinterpret_cast<kvmeld::fp8_e4m3*>(data);
      return kvmeld::strided<kvmeld::fp8_e4m3>{ones, "LSTHC", extent, extent.key_dim};
    };
    return kvmeld::kv{rows(keys.data()), rows(values.data())};
  }
  /// Tensors per layer, pages of 16 tokens.
  auto paged() const {
    auto const rows = [&](element* data) {
      std::uint32_t const most = kvmeld::ceil_div(extent.capacity, page), pages = most * extent.sequences;
      std::int32_t const* const table = numbers.data();
      return kvmeld::paged(kvmeld::pool_pages(data, kvmeld::table_rows(table, most)), page,
                           kvmeld::dense_pages("LPHTC", pages, page, extent, extent.key_dim), extent,
                           extent.key_dim);
    };
    return kvmeld::kv{rows(keys.data()), rows(values.data())};
  }

  kvmeld::shape extent;
  std::size_t count;
  device_array<element> keys, values, keys_before, values_before;
  device_array<std::int32_t> numbers;
};

/// A stream that can be captured.
struct own_stream {
  own_stream() { cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }
  own_stream(own_stream const&) = delete;
  own_stream& operator=(own_stream const&) = delete;
  ~own_stream() { cudaStreamDestroy(stream); }
  cudaStream_t stream = nullptr;
};

/// What a profiler looks at.
template <class Calls> void profiled(Calls calls) {
  cudaDeviceSynchronize();
  cudaProfilerStart();
  calls();
  cudaDeviceSynchronize();
  cudaProfilerStop();
}

/// All sequences to `budget` entries; 0: to a fifth. With `dense`, nothing is written where entries have
/// gone.
template <class Rows, class Policy>
void compressions(options const& o, std::string const& name, tensors& x, Rows const& rows,
                  Policy const& policy, double bandwidth, std::uint32_t budget = 0, bool dense = false) {
  if (!o.wants(name)) return;
  kvmeld::shape const s = x.extent;
  kvmeld::cache_options options{s};
  options.zero_emptied = !dense;
  bool const shares = kvmeld::shares_entries<typename Policy::merge_type>::value;
  if (budget == 0) budget = kvmeld::floor_share(kept_share, s.capacity);
  if (shares) budget = kvmeld::min_of(768u, budget);
  if (shares) options.members = 3 * budget;
  own_stream const on;
  kvmeld::merged_cache cache{kvmeld::cuda_executor<>(on.stream), policy, rows, options};
  device_array<float> probabilities(std::size_t{s.query_heads()} * s.capacity);
  if (probabilities.data() == nullptr) return print_row(name, s, "too little memory");
  fill(probabilities.data(), std::size_t{s.query_heads()} * s.capacity, 3u);
  cudaDeviceSynchronize();
  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < s.sequences; ++i) all.push_back(i);
  auto const begin_again = [&] {
    x.restore(on.stream);
    for (std::uint32_t i : all) {
      if (cache.tokens(i) != 0) cache.close(i);
      cache.open(i, s.capacity);
      for (std::uint32_t layer = 0; layer < s.layers; ++layer)
        cache.observe_rows({layer, i, 1}, kvmeld::rows_by_head<float const>(probabilities.data(), 1,
                                                                            s.query_heads(), s.capacity));
    }
  };
  std::size_t launches = 0;
  auto const calls = [&] { cache.compress(all, kvmeld::budget::entries(budget)); };
  auto const compress = [&] {
    launches = cache.executor().launches();
    calls();
    launches = cache.executor().launches() - launches;
  };
  auto const problem = [&]() -> std::string {
    cache.sync_lengths(0);
    if (cache.executor().error() == cudaSuccess && cache.longest(0) == budget) return {};
    return message_of(cache.executor().error(), cache.longest(0), budget);
  };
  if (o.profile) {
    begin_again();
    calls();
    begin_again();
    profiled(calls);
    return;
  }
  double const eager = median_of(5, on.stream, begin_again, compress);
  if (std::string const why = problem(); !why.empty()) return print_row(name, s, why);
  double replayed = 0.0;
  {
    kvmeld::call_graph<kvmeld::cuda_executor<>> graph(cache.executor());
    begin_again();
    graph.record(calls);
    replayed = median_of(5, on.stream, begin_again, [&] { graph.replay(calls); });
  }
  if (std::string const why = problem(); !why.empty()) return print_row(name + " in a graph", s, why);
  print_row(name, s, eager, replayed, bytes_to_move<element>(s, budget, options.zero_emptied), bandwidth,
            launches);
}

/// What a decode step costs beside the engine's own kernels: entries appended to all sequences and committed.
void bookkeeping(options const& o, std::uint32_t sequences, double bandwidth) {
  std::string const name = "append and commit";
  if (!o.wants(name)) return;
  kvmeld::shape const s{32, sequences, heads, group, 16, 16, 512};
  tensors x(s, false);
  if (!x.there()) return print_row(name, s, "too little memory");
  own_stream const on;
  cudaDeviceSynchronize();
  kvmeld::merged_cache cache{kvmeld::cuda_executor<>(on.stream), kvmeld::preset::h2o::defaults(), x.strided(),
                             kvmeld::cache_options{s}};
  std::vector<std::uint32_t> all, one(sequences, 1);
  for (std::uint32_t i = 0; i < sequences; ++i) {
    all.push_back(i);
    cache.open(i, 100);
  }
  auto const calls = [&] {
    cache.append(all, one);
    cache.commit(all, one);
  };
  std::size_t launches = cache.executor().launches();
  calls();
  launches = cache.executor().launches() - launches;
  double const eager = median_of(
      50, on.stream, [] {}, calls);
  kvmeld::call_graph<kvmeld::cuda_executor<>> graph(cache.executor());
  graph.record(calls);
  double const replayed = median_of(
      50, on.stream, [] {}, [&] { graph.replay(calls); });
  print_row(name, s, eager, replayed, 0.0, bandwidth, launches);
}

/// One decode step of attention, layer after layer: by the time a layer comes round again, others have taken
/// its place in the caches. `ragged`: lengths from an eighth of the capacity to all of it.
template <class Rows>
void attention(options const& o, std::string const& name, tensors const& x, Rows const& rows, bool ragged,
               double bandwidth) {
  if (!o.wants(name)) return;
  using stored = typename decltype(rows.keys)::element_type;
  kvmeld::shape const s = x.extent;
  own_stream const on;
  kvmeld::merged_cache cache{kvmeld::cuda_executor<>(on.stream), kvmeld::preset::h2o::defaults(), rows,
                             kvmeld::cache_options{s}};
  std::vector<std::uint32_t> all, one(s.sequences, 1);
  double entries = 0.0;
  for (std::uint32_t i = 0, r = 7; i < s.sequences; ++i) {
    r = r * 1664525u + 1013904223u;
    std::uint32_t const most = s.capacity / 8 * 7;
    std::uint32_t const length = !ragged || i == 0 ? s.capacity : s.capacity - (r >> 4) % most;
    all.push_back(i);
    cache.open(i, length);
    entries += length;
  }
  // Two blocks share a multiprocessor. Without a split, the longest track would hold up all others.
  std::uint32_t const parts = kvmeld::max_of(ragged ? 2u : 1u, 2 * multiprocessors() / (heads * s.sequences));
  std::size_t const floats = kvmeld::attention::split_floats(s, parts, s.sequences, 1);
  device_array<float> memory(floats);
  std::size_t const rows_of = std::size_t{s.sequences} * s.query_heads();
  device_array<element> q(rows_of * s.key_dim), out(rows_of * s.value_dim);
  fill(q.data(), rows_of * s.key_dim, 4u);
  cudaDeviceSynchronize();
  auto const queries = kvmeld::rows_by_token<element const>(q.data(), 1, s.query_heads(), s.key_dim);
  auto const outputs = kvmeld::rows_by_token(out.data(), 1, s.query_heads(), s.value_dim);
  auto const calls = [&] {
    for (std::uint32_t layer = 0; layer < s.layers; ++layer)
      kvmeld::attention::attend(cache.executor(), {layer, all, one}, queries, cache.ref(), outputs, {}, {},
                                {parts, {memory.data(), floats}});
  };
  std::size_t launches = cache.executor().launches();
  calls();
  launches = (cache.executor().launches() - launches) / s.layers;
  if (o.profile) return profiled(calls);
  double const eager = median_of(
                           9, on.stream, [] {}, calls) /
                       s.layers;
  kvmeld::call_graph<kvmeld::cuda_executor<>> graph(cache.executor());
  graph.record(calls);
  double const replayed = median_of(
                              9, on.stream, [] {}, [&] { graph.replay(calls); }) /
                          s.layers;
  if (cache.executor().error() != cudaSuccess)
    return print_row(name, s, cudaGetErrorString(cache.executor().error()));
  print_row(name + (ragged ? ", ragged" : ""), s, eager, replayed,
            heads * entries * (2 * s.key_dim * sizeof(stored) + 4), bandwidth, launches);
}

void presets(options const& o, kvmeld::shape s, double bandwidth, std::uint32_t budget = 0) {
  while (s.layers > 1 && 8 * s.slots() * s.key_dim * sizeof(element) > free_memory() * 8 / 10) s.layers /= 2;
  tensors x(s);
  if (!x.there() || x.values_before.data() == nullptr) return print_row("-", s, "too little memory");
  std::string const of = s.sequences > 1 ? ", " + std::to_string(s.sequences) + " sequences" : "";
  compressions(o, "streaming_llm" + of, x, x.strided(), kvmeld::preset::streaming_llm::with_sinks(),
               bandwidth, budget);
  compressions(o, "h2o" + of, x, x.strided(), kvmeld::preset::h2o::defaults(), bandwidth, budget);
  if (s.capacity > 8192 && !o.profile) {
    compressions(o, "h2o to 4,096" + of, x, x.strided(), kvmeld::preset::h2o::defaults(), bandwidth, 4096,
                 true);
    compressions(o, "h2o, pages" + of, x, x.paged(), kvmeld::preset::h2o::defaults(), bandwidth, budget);
    compressions(o, "chelsea, pages" + of, x, x.paged(), kvmeld::preset::chelsea::llama3(), bandwidth,
                 budget);
  }
  compressions(o, "kvmerger" + of, x, x.strided(), kvmeld::preset::kvmerger::for_budget(), bandwidth, budget);
  compressions(o, "chelsea" + of, x, x.strided(), kvmeld::preset::chelsea::llama3(), bandwidth, budget);
  compressions(o, "ems" + of, x, x.strided(), kvmeld::preset::ems::shared(), bandwidth, budget);
}

void attentions(options const& o, std::uint32_t n, std::uint32_t sequences, double bandwidth) {
  kvmeld::shape s{1, sequences, heads, group, 128, 128, n};
  // More than the caches of a device hold.
  while (s.layers < 32 && 2 * s.slots() * s.key_dim * sizeof(element) < (std::size_t{1} << 30)) s.layers *= 2;
  if (4 * s.slots() * s.key_dim * sizeof(element) > free_memory() * 9 / 10)
    return print_row("attention", s, "too little memory");
  tensors const x(s, false);
  if (!x.there()) return print_row("attention", s, "too little memory");
  attention(o, "attention", x, x.strided(), false, bandwidth);
  if (sequences > 1) attention(o, "attention", x, x.strided(), true, bandwidth);
  attention(o, "attention, pages", x, x.paged(), sequences > 1, bandwidth);
  attention(o, "attention, fp8", x, x.codes(), sequences > 1, bandwidth);
}

}  // namespace

int main(int count, char** arguments) {
  return tiny_llama::run_program("kvmeld_cuda_bench", [&] {
    options o;
    for (int i = 1; i < count; ++i) {
      bool const more = i + 1 < count;
      if (more && std::strcmp(arguments[i], "--most") == 0) {
        o.most = count_argument(count, arguments, ++i, 0, 1, 1u << 20);
      } else if (more && std::strcmp(arguments[i], "--only") == 0) {
        o.only = arguments[++i];
      } else if (std::strcmp(arguments[i], "--profile") == 0) {
        o.profile = true;
      } else {
        std::fprintf(stderr, "usage: kvmeld_cuda_bench [--most ENTRIES] [--only TEXT] [--profile]\n");
        return 2;
      }
    }
    if (!has_device()) return 77;
    double const bandwidth = copy_bandwidth();
    print_head(bandwidth);
    auto const of = [&](std::uint32_t layers, std::uint32_t sequences, std::uint32_t dim, std::uint32_t n) {
      return kvmeld::shape{layers, sequences, heads, group, dim, dim, n};
    };
    presets(o, o.profile ? of(16, 1, 128, 65536) : of(32, 1, 128, 65536), bandwidth);
    if (o.profile) {
      attentions(o, 4096, 64, bandwidth);
      attentions(o, 32768, 1, bandwidth);
      return cudaDeviceSynchronize() == cudaSuccess ? 0 : 1;
    }
    for (std::uint32_t sequences : {1u, 64u}) bookkeeping(o, sequences, bandwidth);
    for (std::uint32_t n : {4096u, 32768u, 131072u}) {
      for (std::uint32_t sequences : {1u, 8u, 64u}) {
        if (n <= o.most) attentions(o, n, sequences, bandwidth);
      }
    }
    presets(o, of(32, 1, 128, 8192), bandwidth);
    presets(o, of(32, 32, 128, 576), bandwidth, 512);
    presets(o, of(1, 1, 128, 65536), bandwidth);
    presets(o, of(32, 1, 64, 65536), bandwidth);
    if (o.most >= 262144) presets(o, of(32, 1, 128, 262144), bandwidth);
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 1;
  });
}
