// SPDX-License-Identifier: Apache-2.0
// A copy from the device to the host that is enqueued now and asked for later.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A copy of device bytes in pinned host memory. It arrives some time after begin(). Can be moved, not
/// copied.
class cuda_transfer {
public:
  cuda_transfer() = default;
  /// Takes over the memory of `other` and a copy that is still under way.
  cuda_transfer(cuda_transfer&& other) noexcept { *this = std::move(other); }
  /// Swaps with `other`, which then frees what this object held.
  cuda_transfer& operator=(cuda_transfer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(there_, other.there_);
    return *this;
  }
  ~cuda_transfer() {
    if (there_ != nullptr) cudaEventSynchronize(there_);  // nothing may write to freed memory
    if (there_ != nullptr) cudaEventDestroy(there_);
    if (data_ != nullptr) cudaFreeHost(data_);
  }

  /// Enqueues the copy. If an earlier copy is under way, this one overwrites it in stream order. A copy
  /// larger than all before waits for the earlier one, then allocates.
  template <class Executor> void begin(Executor& executor, void const* from, std::size_t bytes) {
    auto const current = executor.on_device();
    if (there_ == nullptr) executor.note(cudaEventCreateWithFlags(&there_, cudaEventDisableTiming));
    if (bytes > bytes_) {
      if (data_ != nullptr) {
        executor.note(cudaEventSynchronize(there_));  // nothing may write to freed memory
        executor.note(cudaFreeHost(data_));
      }
      data_ = nullptr;
      executor.note(cudaMallocHost(&data_, bytes));
      bytes_ = data_ == nullptr ? 0 : bytes;
    }
    if (data_ == nullptr || there_ == nullptr) return;
    executor.note(cudaMemcpyAsync(data_, from, bytes, cudaMemcpyDeviceToHost, executor.stream()));
    executor.note(cudaEventRecord(there_, executor.stream()));
  }
  /// Whether the copy has arrived. On a fault the executor notes the error, and the copy never arrives. False
  /// while calls are recorded: a thread that captures must not query events, or its capture is lost.
  template <class Executor> bool done(Executor& executor) const {
    if (data_ == nullptr || executor.records()) return false;
    cudaError_t const e = cudaEventQuery(there_);
    if (e == cudaErrorNotReady) cudaGetLastError();  // no fault, but the engine would see it
    if (e != cudaSuccess && e != cudaErrorNotReady) executor.note(e);
    return e == cudaSuccess;
  }
  void* data() const { return data_; }

private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  cudaEvent_t there_ = nullptr;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
