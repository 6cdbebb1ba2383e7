// Arrays in device memory, and what a call of CUDA says.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace paged_engine {

inline void check(cudaError_t result, char const* what) {
  if (result != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
}

template <class T> class device_array {
public:
  explicit device_array(std::size_t count = 0) { resize(count); }
  device_array(device_array const&) = delete;
  device_array& operator=(device_array const&) = delete;
  ~device_array() { cudaFree(data_); }

  /// What was in it is lost where it grows.
  void resize(std::size_t count) {
    if (count <= count_) return;
    cudaFree(data_);
    data_ = nullptr;
    check(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc");
    count_ = count;
  }
  void upload(T const* from, std::size_t count, std::size_t at = 0) {
    resize(at + count);
    check(cudaMemcpy(data_ + at, from, count * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  void upload(std::vector<T> const& from) { upload(from.data(), from.size()); }
  void download(T* to, std::size_t count, std::size_t at = 0) const {
    check(cudaMemcpy(to, data_ + at, count * sizeof(T), cudaMemcpyDeviceToHost), "download");
  }
  T* data() const { return data_; }

private:
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace paged_engine
