// Memory of a CUDA device, for tests.
#pragma once

#include <cstddef>
#include <vector>

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

namespace cuda_test {

template <class T> class device_array {
public:
  explicit device_array(std::size_t n) : size_(n) {
    REQUIRE(cudaMalloc(&data_, n * sizeof(T)) == cudaSuccess);
  }
  explicit device_array(std::vector<T> const& from) : device_array(from.size()) { put(from); }
  device_array(device_array const&) = delete;
  device_array& operator=(device_array const&) = delete;
  ~device_array() { cudaFree(data_); }

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

}  // namespace cuda_test
