// What the examples take from an engine: K and V on the device, and a stream.
#pragma once

#include "../all_printed.h"
#include "../count_argument.hpp"

#include <kvmeld/cuda.cuh>

#include <thrust/execution_policy.h>
#include <thrust/tabulate.h>

#include <cstddef>
#include <cstdint>
#include <iostream>

namespace examples {

/// Exit status of a program that found no device: ctest counts it as skipped.
constexpr int no_device = 77;
inline bool has_device() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return true;
  std::cout << "SKIPPED: there is no CUDA device here\n";
  return false;
}

// Rows that drift from token to token, as keys do: a triangle wave of 1,024 tokens, shifted by channel, and
// noise.
template <class T> struct drifting_rows {
  std::uint32_t channels, seed;
  __device__ T operator()(std::size_t i) const {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 2654435761u ^ seed;
    x = (x ^ x >> 15) * 2246822519u;
    float const noise = static_cast<float>(x >> 8) * 0x1p-23f - 1.0f;
    std::uint32_t const token = static_cast<std::uint32_t>(i / channels),
                        channel = static_cast<std::uint32_t>(i % channels);
    int const phase = static_cast<int>((token + 163 * channel) % 1024);
    float const drift = static_cast<float>(abs(phase - 512)) / 256.0f - 1.0f;
    return kvmeld::element_traits<T>::from_float(drift + 0.3f * noise);
  }
};
template <class T>
void fill(cudaStream_t stream, T* rows, std::size_t count, std::uint32_t channels, std::uint32_t seed) {
  thrust::tabulate(thrust::cuda::par_nosync.on(stream), rows, rows + count, drifting_rows<T>{channels, seed});
}

/// Yours: tensors [layers][sequences][tokens][heads][channels] in device memory. Null where there is too
/// little of it.
template <class T> class engine_tensors {
public:
  explicit engine_tensors(kvmeld::shape const& s) : extent(s) {
    if (cudaMalloc(&keys_, bytes()) != cudaSuccess || cudaMalloc(&values_, bytes()) != cudaSuccess) {
      cudaGetLastError();
      cudaFree(keys_);
      keys_ = nullptr;
      return;
    }
    fill(nullptr, keys_, count(), s.key_dim, 1);
    fill(nullptr, values_, count(), s.value_dim, 2);
    cudaDeviceSynchronize();
  }
  engine_tensors(engine_tensors const&) = delete;
  engine_tensors& operator=(engine_tensors const&) = delete;
  ~engine_tensors() {
    cudaFree(keys_);
    cudaFree(values_);
  }

  bool there() const { return keys_ != nullptr; }
  std::size_t count() const { return extent.slots() * extent.key_dim; }
  std::size_t bytes() const { return count() * sizeof(T); }
  T* key_rows() const { return keys_; }
  T* value_rows() const { return values_; }
  kvmeld::strided<T> keys() const { return {keys_, "LSTHC", extent, extent.key_dim}; }
  kvmeld::strided<T> values() const { return {values_, "LSTHC", extent, extent.value_dim}; }

  kvmeld::shape extent;

private:
  T* keys_ = nullptr;
  T* values_ = nullptr;
};

}  // namespace examples
