// What the device benchmark measures with: memory, times by events, the copy to compare with, the table.
#pragma once

#include <count_argument.hpp>

#include <kvmeld/cuda.cuh>

#include <thrust/execution_policy.h>
#include <thrust/tabulate.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace cuda_bench {

inline bool has_device() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return true;
  std::printf("SKIPPED: there is no CUDA device here, nothing was measured\n");
  return false;
}
inline std::uint32_t multiprocessors() {
  int n = 1;
  cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0);
  return static_cast<std::uint32_t>(n);
}
inline std::size_t free_memory() {
  std::size_t left = 0, all = 0;
  return cudaMemGetInfo(&left, &all) == cudaSuccess ? left : 0;
}

/// Null where there is too little memory.
template <class T> class device_array {
public:
  explicit device_array(std::size_t n) {
    if (n == 0) return;
    if (cudaMalloc(&data_, n * sizeof(T)) == cudaSuccess) return;
    cudaGetLastError();
    data_ = nullptr;
  }
  device_array(device_array const&) = delete;
  device_array& operator=(device_array const&) = delete;
  ~device_array() { cudaFree(data_); }
  T* data() const { return data_; }

private:
  T* data_ = nullptr;
};

/// Uniform in [0, 1).
__device__ inline float noise_of(std::size_t i, std::uint32_t seed) {
  std::uint32_t x = static_cast<std::uint32_t>(i) * 2654435761u + seed * 40503u;
  x = (x ^ x >> 15) * 2246822519u;
  return static_cast<float>(x >> 8) * 0x1p-24f;
}
/// Numbers, or rows of `dim` channels of which 64 neighbours at a time resemble each other, as keys along a
/// text do.
template <class T> struct noise_at {
  std::uint32_t seed, dim;
  __device__ T operator()(std::size_t i) const {
    float x = noise_of(i, seed);
    if (dim != 0) x = 2.4f * noise_of(i / dim / 64 * dim + i % dim, seed + 1) + 1.6f * x - 2.0f;
    return kvmeld::element_traits<T>::from_float(x);
  }
};
template <class T> void fill(T* to, std::size_t n, std::uint32_t seed, std::uint32_t dim = 0) {
  thrust::tabulate(thrust::cuda::par_nosync, to, to + n, noise_at<T>{seed, dim});
}
inline void copy_on_device(void* to, void const* from, std::size_t bytes, cudaStream_t stream = nullptr) {
  cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

/// Seconds of run() on the stream, the median; prepare() comes before each and does not count.
template <class Prepare, class Run>
double median_of(int times, cudaStream_t stream, Prepare prepare, Run run) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> all;
  for (int i = 0; i <= times; ++i) {
    prepare();
    cudaEventRecord(begin, stream);
    run();
    cudaEventRecord(end, stream);
    cudaEventSynchronize(end);
    float ms = 0.0f;
    cudaEventElapsedTime(&ms, begin, end);
    if (i != 0) all.push_back(ms);  // the first one warms up
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(all.begin(), all.end());
  return static_cast<double>(all[all.size() / 2]) * 1e-3;
}

/// K and V read once, what stays written once, emptied rows of V zeroed where they are.
template <class T> double bytes_to_move(kvmeld::shape const& s, std::uint32_t budget, bool zero_emptied) {
  double const before = double{1} * s.tracks() * s.capacity, after = double{1} * s.tracks() * budget;
  return s.key_dim * sizeof(T) * (2 * before + 2 * after + (zero_emptied ? before - after : 0));
}

/// Bytes read plus bytes written per second by a copy on the device.
inline double copy_bandwidth() {
  std::size_t const bytes = std::min<std::size_t>(std::size_t{1} << 30, free_memory() / 4);
  device_array<std::byte> from(bytes), to(bytes);
  double const seconds = median_of(
      9, nullptr, [] {}, [&] { copy_on_device(to.data(), from.data(), bytes); });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

inline void print_head(double bandwidth) {
  cudaDeviceProp p{};
  cudaGetDeviceProperties(&p, 0);
  std::printf("%s, %d multiprocessors; a copy on the device moves %.0f GB/s, read and written\n\n", p.name,
              p.multiProcessorCount, bandwidth * 1e-9);
  std::printf("bfloat16, 8 heads, to a fifth of the entries (ems: 768). `ms` is by calls, `graph` by replay "
              "of a recorded "
              "graph.\n`copies` is the replay's time over that of a copy of the bytes that must move at "
              "least. Compressions: "
              "time and\nlaunches of all layers. Attention: of one layer.\n\n");
  std::printf("| what | sequences | entries | layers | head_dim | ms | graph | copies | launches |\n"
              "|---|---|---|---|---|---|---|---|---|\n");
}
inline void print_row(std::string const& what, kvmeld::shape const& s, double eager, double replayed,
                      double bytes, double bandwidth, std::size_t launches) {
  std::printf("| %s | %u | %u | %u | %u | %.4f | %.4f | ", what.c_str(), s.sequences, s.capacity, s.layers,
              s.key_dim, eager * 1e3, replayed * 1e3);
  if (bytes == 0.0) {
    std::printf("-");
  } else {
    std::printf("%.2f", replayed * bandwidth / bytes);
  }
  std::printf(" | %zu |\n", launches);
  std::fflush(stdout);
}
inline void print_row(std::string const& what, kvmeld::shape const& s, std::string const& why) {
  std::printf("| %s | %u | %u | %u | %u | %s | - | - | - |\n", what.c_str(), s.sequences, s.capacity,
              s.layers, s.key_dim, why.c_str());
  std::fflush(stdout);
}
inline std::string message_of(cudaError_t e, std::uint32_t left, std::uint32_t budget) {
  return std::string(cudaGetErrorString(e)) + ", " + std::to_string(left) + " entries left of a budget of " +
         std::to_string(budget);
}

}  // namespace cuda_bench
