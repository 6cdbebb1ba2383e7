// What the bodies of tests/device ask of a device: the CUDA backend on a stream.
#pragma once

#include <kvmeld/cuda.cuh>

#include "device_array.cuh"

namespace cuda_test {

struct cuda_device {
  using float16 = __half;
  using bfloat16 = __nv_bfloat16;
  using executor_type = kvmeld::cuda_executor<>;

  template <class T> using array = device_array<T>;

  executor_type executor(kvmeld::tuning tuning) const { return executor_type(stream, {}, tuning); }
  static bool settled(executor_type const& executor) {
    return cudaDeviceSynchronize() == cudaSuccess && executor.error() == cudaSuccess;
  }

  cudaStream_t stream = nullptr;
};

}  // namespace cuda_test
