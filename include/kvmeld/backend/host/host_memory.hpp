// SPDX-License-Identifier: Apache-2.0
// Memory of the host that is copied like a value, from the system or from an engine's allocator.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/workspace.hpp>

#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Where memory comes from in place of operator new: two functions of the engine, which both get `context`.
/// They are called in the thread that calls the cache. Both functions are given, or neither is.
struct host_allocator {
  /// Returns `bytes` bytes at a multiple of `alignment`; null where there are none. Does not throw.
  void* (*allocate)(void* context, std::size_t bytes, std::size_t alignment) = nullptr;
  /// Takes back what `allocate` returned for as many bytes. Does not throw.
  void (*release)(void* context, void* memory, std::size_t bytes) = nullptr;
  void* context = nullptr;  ///< outlives all memory that came from here
};

/// Aligned host memory that is copied like a value. An executor gives it to a cache for the ledger and the
/// workspace. Where the machine has no memory left, data() is null and size() is 0; nothing is thrown.
class host_memory {
public:
  host_memory() = default;
  /// `bytes` uninitialised bytes, aligned to arena::alignment.
  explicit host_memory(std::size_t bytes, host_allocator const& from = {}) : from_(from) {
    if (bytes == 0) return;
    data_ = from_.allocate != nullptr
                ? from_.allocate(from_.context, bytes, arena::alignment)
                : ::operator new (bytes, std::align_val_t{arena::alignment}, std::nothrow);
    if (data_ != nullptr) bytes_ = bytes;
  }
  /// A deep copy, from the same allocator.
  host_memory(host_memory const& other) : host_memory(other.bytes_, other.from_) {
    if (bytes_ != 0) std::memcpy(data_, other.data_, bytes_);
  }
  /// Takes over the memory of `other`, which is empty afterwards.
  host_memory(host_memory&& other) noexcept
      : from_(other.from_),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  /// Takes a copy of the argument, or moves from it; frees the memory held before.
  host_memory& operator=(host_memory other) noexcept {
    std::swap(from_, other.from_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~host_memory() {
    if (from_.release == nullptr) {
      ::operator delete (data_, std::align_val_t{arena::alignment});
    } else if (data_ != nullptr) {
      from_.release(from_.context, data_, bytes_);
    }
  }

  void* data() const { return data_; }
  std::size_t size() const { return bytes_; }

private:
  host_allocator from_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
