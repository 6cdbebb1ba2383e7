// Compressions, their launches, and attention on a device, over a copy on the device of the bytes that must
// move at least.
//   kvmeld_cuda_bench [most entries]
#include "bench.cuh"

#include <cstdlib>
#include <string>

namespace {

using namespace cuda_bench;

constexpr std::uint32_t heads = 8, group = 4;
constexpr double kept_share = 0.2;

/// Tensors of `layers` layers, and what they were at first.
template <class T> struct tensors {
  explicit tensors(kvmeld::shape const& s)
      : extent(s),
        count(s.slots() * s.key_dim),
        keys(count),
        values(count),
        keys_before(count),
        values_before(count) {
    if (!there()) return;
    fill(keys_before.data(), count, 1u, s.key_dim);
    fill(values_before.data(), count, 2u);
  }
  bool there() const { return keys.data() && values.data() && keys_before.data() && values_before.data(); }
  void restore() {
    copy_on_device(keys.data(), keys_before.data(), count * sizeof(T));
    copy_on_device(values.data(), values_before.data(), count * sizeof(T));
  }
  kvmeld::kv<kvmeld::strided<T>, kvmeld::strided<T>> rows() const {
    return {{keys.data(), "LSHTC", extent, extent.key_dim},
            {values.data(), "LSHTC", extent, extent.value_dim}};
  }

  kvmeld::shape extent;
  std::size_t count;
  device_array<T> keys, values, keys_before, values_before;
};

/// To a fifth, or to `few` entries, however many there were, and nothing is written where they lay.
template <class T, class Policy>
void run_preset(char const* name, tensors<T>& x, Policy const& policy, double bandwidth,
                std::uint32_t few = 0) {
  kvmeld::shape const s = x.extent;
  kvmeld::cache_options sizes{s};
  sizes.zero_emptied = few == 0;
  std::uint32_t const share = few != 0 ? few : kvmeld::floor_share(kept_share, s.capacity);
  bool const shares = kvmeld::shares_entries<typename Policy::merge_type>::value;
  std::uint32_t const budget = shares ? kvmeld::min_of(768u, share) : share;
  if (shares) sizes.members = 3 * budget;
  kvmeld::merged_cache cache{kvmeld::cuda_executor<>(), policy, x.rows(), sizes};
  device_array<float> probabilities(std::size_t{s.query_heads()} * s.capacity);
  if (probabilities.data() == nullptr) return print_row(name, s, "too little memory");
  fill(probabilities.data(), std::size_t{s.query_heads()} * s.capacity, 3u);
  std::size_t launches = 0;
  double const seconds = median_of(
      5,
      [&] {
        x.restore();
        if (cache.tokens(0) != 0) cache.close(0);
        cache.open(0, s.capacity);
        for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
          cache.observe_rows({layer, 0, 1}, kvmeld::rows_by_head<float const>(probabilities.data(), 1,
                                                                              s.query_heads(), s.capacity));
        }
        launches = cache.executor().launches();
      },
      [&] { cache.compress({0}, kvmeld::budget::entries(budget)); });
  launches = cache.executor().launches() - launches;
  cache.sync_lengths(0);
  if (cache.executor().error() != cudaSuccess || cache.longest(0) != budget) {
    return print_row(name, s, message_of(cache.executor().error(), cache.longest(0), budget));
  }
  print_row(name, s, seconds, bytes_to_move<T>(s, budget, sizes.zero_emptied) / seconds / bandwidth,
            launches);

  // One decode step of every layer in turn, keys shared out over enough blocks: by the time a layer comes
  // round again, others have taken its place in the caches.
  if constexpr (!decltype(cache)::shares) {
    std::uint32_t const parts = kvmeld::ceil_div(2 * multiprocessors(), heads);
    std::size_t const floats = kvmeld::attention::split_floats(s, parts, 1, 1);
    device_array<float> memory(floats);
    device_array<T> q(s.query_heads() * s.key_dim), out(s.query_heads() * s.value_dim);
    fill(q.data(), s.query_heads() * s.key_dim, 4u);
    auto const queries = kvmeld::rows_by_token<T const>(q.data(), 1, s.query_heads(), s.key_dim);
    auto const outputs = kvmeld::rows_by_token(out.data(), 1, s.query_heads(), s.value_dim);
    double const step =
        median_of(
            9, [] {},
            [&] {
              for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
                kvmeld::attention::attend(cache.executor(), {layer, 0, 1}, queries, cache.ref(), outputs, {},
                                          {}, {parts, {memory.data(), floats}});
              }
            }) /
        s.layers;
    double const read = double{heads} * budget * (2 * s.key_dim * sizeof(T) + 4);
    print_row(std::string("attend after ") + name, s, step, read / step / bandwidth, 2);
  }
}

template <class T> void run_all(std::uint32_t n, std::uint32_t d, double bandwidth) {
  kvmeld::shape s{1, 1, heads, group, d, d, n};
  while (s.layers < 32 && 8 * s.slots() * d * sizeof(T) < free_memory() / 2) s.layers *= 2;
  tensors<T> x(s);
  if (!x.there()) return print_row("-", s, "too little memory");
  run_preset("streaming_llm", x, kvmeld::preset::streaming_llm::with_sinks(), bandwidth);
  run_preset("h2o", x, kvmeld::preset::h2o::defaults(), bandwidth);
  run_preset("h2o to 4,096", x, kvmeld::preset::h2o::defaults(), bandwidth, 4096);
  run_preset("kvmerger", x, kvmeld::preset::kvmerger::for_budget(), bandwidth);
  run_preset("chelsea", x, kvmeld::preset::chelsea::llama3(), bandwidth);
  run_preset("ems", x, kvmeld::preset::ems::shared(), bandwidth);
}

}  // namespace

int main(int count, char** arguments) {
  if (!has_device()) return 77;
  std::uint32_t const most = count > 1 ? static_cast<std::uint32_t>(std::atoi(arguments[1])) : 524288;
  double const bandwidth = copy_bandwidth();
  print_head(bandwidth);
  for (std::uint32_t d : {64u, 128u}) {
    for (std::uint32_t n : {8192u, 32768u, 131072u, 524288u}) {
      if (n <= most) run_all<__nv_bfloat16>(n, d, bandwidth);
    }
  }
  return cudaDeviceSynchronize() == cudaSuccess ? 0 : 1;
}
