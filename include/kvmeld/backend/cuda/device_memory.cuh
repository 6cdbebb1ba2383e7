// SPDX-License-Identifier: Apache-2.0
// Device memory that is allocated and freed in stream order, from the driver's pool or an engine's own.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

/// Makes a device the calling thread's current one for a scope. Costs a query if it is that already.
class device_guard {
public:
  explicit device_guard(int device) {
    if (cudaGetDevice(&before_) != cudaSuccess || before_ == device || cudaSetDevice(device) != cudaSuccess)
      before_ = -1;
  }
  ~device_guard() {
    if (before_ >= 0) cudaSetDevice(before_);
  }
  device_guard(device_guard const&) = delete;
  device_guard& operator=(device_guard const&) = delete;

private:
  int before_ = -1;  ///< the device to return to; -1: none
};

}  // namespace detail

/// The default resource: cudaMallocAsync. A resource is a copyable value with
///   void* allocate(std::size_t bytes, cudaStream_t)             256-byte aligned; null where there is none
///   void deallocate(void*, std::size_t bytes, cudaStream_t)
/// Both take effect in stream order. An engine that has its own pool passes a resource of this form.
struct async_resource {
  void* allocate(std::size_t bytes, cudaStream_t stream) const {
    void* p = nullptr;
    if (cudaMallocAsync(&p, bytes, stream) == cudaSuccess) return p;
    cudaGetLastError();  // the null tells it; later launches must not see this error
    return nullptr;
  }
  /// Frees the memory in stream order.
  void deallocate(void* p, std::size_t, cudaStream_t stream) const { cudaFreeAsync(p, stream); }
};

/// A resource over memory that the engine has set aside. Each piece is handed out once and never comes back.
/// The memory must hold cache_bytes(options, channels, workers, table_floats) for each cache, and for each
/// executor its lists (4 * cuda_executor::staged_numbers bytes) and the scratch that is reserved. Copies
/// share the memory.
class workspace_resource {
public:
  /// `used` counts the bytes taken. The engine owns it, sets it to 0 at first, and keeps it longer than all
  /// copies.
  workspace_resource(void* memory, std::size_t bytes, std::size_t* used)
      : memory_(static_cast<std::byte*>(memory)), bytes_(bytes), used_(used) {}
  void* allocate(std::size_t bytes, cudaStream_t) const {
    std::size_t const begin = (*used_ + 255) / 256 * 256;
    if (begin + bytes > bytes_) return nullptr;
    *used_ = begin + bytes;
    return memory_ + begin;
  }
  /// Does nothing: the memory belongs to the engine.
  void deallocate(void*, std::size_t, cudaStream_t) const {}

private:
  std::byte* memory_;
  std::size_t bytes_;
  std::size_t* used_;  ///< bytes taken; the engine's counter
};

/// Owns a piece of a resource's memory. Copies are deep and made in stream order. Where there is no memory,
/// data() is null and size() is 0; nothing is thrown.
template <class Resource> class device_memory {
public:
  device_memory() = default;
  /// Allocates `bytes` bytes in stream order.
  device_memory(Resource resource, std::size_t bytes, cudaStream_t stream)
      : resource_(std::move(resource)), stream_(stream), bytes_(bytes) {
    if (bytes_ == 0) return;
    cudaGetDevice(&device_);
    data_ = resource_->allocate(bytes_, stream_);
    if (data_ == nullptr) bytes_ = 0;
  }
  /// A deep copy, on the same stream.
  device_memory(device_memory const& other) {
    if (other.data_ == nullptr) return;
    detail::device_guard const current(other.device_);
    *this = device_memory(*other.resource_, other.bytes_, other.stream_);
    if (data_ != nullptr) cudaMemcpyAsync(data_, other.data_, bytes_, cudaMemcpyDeviceToDevice, stream_);
  }
  /// Takes over the memory of `other`, which is empty afterwards.
  device_memory(device_memory&& other) noexcept
      : resource_(std::move(other.resource_)),
        stream_(other.stream_),
        device_(other.device_),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  /// Swaps with `other`, which then frees the memory that this object held.
  device_memory& operator=(device_memory other) noexcept {
    std::swap(resource_, other.resource_);
    std::swap(stream_, other.stream_);
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~device_memory() {
    if (data_ == nullptr) return;
    detail::device_guard const current(device_);
    resource_->deallocate(data_, bytes_, stream_);
  }

  void* data() const { return data_; }
  std::size_t size() const { return bytes_; }

private:
  std::optional<Resource> resource_;  // a resource need not be default-constructible
  cudaStream_t stream_ = nullptr;
  int device_ = 0;  ///< the current one when the memory was allocated
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
