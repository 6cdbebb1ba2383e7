// Device memory in stream order, from the driver's pool or an engine's own.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The default resource: cudaMallocAsync. A resource is a copyable value with
///   void* allocate(std::size_t bytes, cudaStream_t)             256-byte aligned; null where there is none
///   void deallocate(void*, std::size_t bytes, cudaStream_t)
/// and usable in stream order. An engine gives its own pool so.
struct async_resource {
  void* allocate(std::size_t bytes, cudaStream_t stream) const {
    void* p = nullptr;
    if (cudaMallocAsync(&p, bytes, stream) == cudaSuccess) return p;
    cudaGetLastError();  // told by the null: no error of whoever launches next
    return nullptr;
  }
  /// In order with the stream.
  void deallocate(void* p, std::size_t, cudaStream_t stream) const { cudaFreeAsync(p, stream); }
};

/// A resource over memory that the engine has set aside: pieces are handed out once and never come back.
/// What has to fit: cache_bytes(options, channels, workers) of each cache, and per executor its lists
/// (4 * cuda_executor::staged_numbers bytes) and what is reserved for scratch. Copies share it.
class workspace_resource {
public:
  /// `used` counts the bytes taken; the engine's, 0 at first, and outlives all copies.
  workspace_resource(void* memory, std::size_t bytes, std::size_t* used)
      : memory_(static_cast<std::byte*>(memory)), bytes_(bytes), used_(used) {}
  void* allocate(std::size_t bytes, cudaStream_t) const {
    std::size_t const begin = (*used_ + 255) / 256 * 256;
    if (begin + bytes > bytes_) return nullptr;
    *used_ = begin + bytes;
    return memory_ + begin;
  }
  /// Nothing: the caller's memory stays the caller's.
  void deallocate(void*, std::size_t, cudaStream_t) const {}

private:
  std::byte* memory_;
  std::size_t bytes_;
  std::size_t* used_;  ///< the engine's counter, from 0 on
};

/// Owns a piece of a resource; copies are deep, in stream order. Where there is no memory, data() is null and
/// size() 0; nothing is thrown.
template <class Resource> class device_memory {
public:
  device_memory() = default;
  /// Of `bytes` bytes, allocated in order with the stream.
  device_memory(Resource resource, std::size_t bytes, cudaStream_t stream)
      : resource_(std::move(resource)), stream_(stream), bytes_(bytes) {
    if (bytes_ == 0) return;
    data_ = resource_->allocate(bytes_, stream_);
    if (data_ == nullptr) bytes_ = 0;
  }
  /// A deep copy, on the same stream.
  device_memory(device_memory const& other) {
    if (other.data_ == nullptr) return;
    *this = device_memory(*other.resource_, other.bytes_, other.stream_);
    if (data_ != nullptr) cudaMemcpyAsync(data_, other.data_, bytes_, cudaMemcpyDeviceToDevice, stream_);
  }
  /// The memory goes along.
  device_memory(device_memory&& other) noexcept
      : resource_(std::move(other.resource_)),
        stream_(other.stream_),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  /// What this one held is given back by `other`.
  device_memory& operator=(device_memory other) noexcept {
    std::swap(resource_, other.resource_);
    std::swap(stream_, other.stream_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~device_memory() {
    if (data_ != nullptr) resource_->deallocate(data_, bytes_, stream_);
  }

  void* data() const { return data_; }
  std::size_t size() const { return bytes_; }

private:
  std::optional<Resource> resource_;  // resources need no default
  cudaStream_t stream_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
