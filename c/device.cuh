// Caches on tensors in the memory of a CUDA device. The device is current in every call (current_device).
#pragma once

#include "engine_cache.hpp"

#include <kvmeld/core/element.hpp>
#include <kvmeld/cuda.cuh>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

namespace kvmeld_library {

/// Memory from a memory_source, for cuda_executor.
struct sourced_memory {
  memory_source* memory;
  void* allocate(std::size_t bytes, cudaStream_t) const { return memory->take(bytes, 256); }
  void deallocate(void* p, std::size_t bytes, cudaStream_t) const { memory->give_back(p, bytes); }
};

template <class T> struct cuda_element { using type = T; };
template <> struct cuda_element<kvmeld::float16> { using type = __half; };
template <> struct cuda_element<kvmeld::bfloat16> { using type = __nv_bfloat16; };

/// A place: the memory of the current device, and a stream on it.
class device {
public:
  using executor_type = kvmeld::cuda_executor<sourced_memory>;
  /// The type in which phases read elements of T: CUDA's own, whose conversions are instructions.
  template <class T> using element = typename cuda_element<T>::type;
  /// An array that phases can read.
  template <class T> class array {
  public:
    explicit array(executor_type::memory memory) : memory_(std::move(memory)) {}
    T* data() const { return static_cast<T*>(memory_.data()); }

  private:
    executor_type::memory memory_;
  };

  static executor_type executor(ingredients const& of) {
    return executor_type(static_cast<cudaStream_t>(of.stream), sourced_memory{of.memory});
  }
  template <class T> static array<T> copy(executor_type& executor, std::vector<T> const& from) {
    array<T> out(executor.allocate(from.size() * sizeof(T)));
    if (out.data() != nullptr) rewrite(executor, out, from);
    return out;
  }
  template <class T> static void rewrite(executor_type& executor, array<T>& to, std::vector<T> const& from) {
    executor.upload(to.data(), from.data(), from.size() * sizeof(T));
  }
  static void read(executor_type& executor, void* to, void const* ledger, std::size_t bytes) {
    executor.download(to, ledger, bytes);
  }
  static float_memory floats(executor_type& executor, std::size_t n, float const* from) {
    auto const memory = std::make_shared<executor_type::memory>(executor.allocate(n * sizeof(float)));
    if (memory->data() != nullptr && from != nullptr)
      executor.upload(memory->data(), from, n * sizeof(float));
    return {memory, static_cast<float*>(memory->data())};
  }
  static char const* fault(executor_type const& executor) {
    return executor.error() == cudaSuccess ? nullptr : cudaGetErrorString(executor.error());
  }
};

}  // namespace kvmeld_library
