// What the bodies of tests/device ask of a device: the CUDA backend on a stream.
#pragma once

#include <kvmeld/cuda.cuh>

#include <cstddef>
#include <vector>

#include <doctest/doctest.h>

namespace cuda_test {

struct cuda_device {
  using float16 = __half;
  using bfloat16 = __nv_bfloat16;
  using executor_type = kvmeld::cuda_executor<>;

  template <class T> class array {
  public:
    explicit array(std::size_t n) : size_(n) { REQUIRE(cudaMalloc(&data_, n * sizeof(T)) == cudaSuccess); }
    explicit array(std::vector<T> const& from) : array(from.size()) { put(from); }
    array(array const&) = delete;
    array& operator=(array const&) = delete;
    ~array() { cudaFree(data_); }

    T* data() const { return data_; }
    void put(std::vector<T> const& from) {
      REQUIRE(cudaMemcpy(data_, from.data(), size_ * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
    }
    std::vector<T> get() const {
      std::vector<T> out(size_);
      REQUIRE(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
      return out;
    }

  private:
    T* data_ = nullptr;
    std::size_t size_;
  };

  executor_type executor(kvmeld::tuning tuning) const { return executor_type(stream, {}, tuning); }
  static bool settled(executor_type const& executor) {
    return cudaDeviceSynchronize() == cudaSuccess && executor.error() == cudaSuccess;
  }

  cudaStream_t stream = nullptr;
};

}  // namespace cuda_test
