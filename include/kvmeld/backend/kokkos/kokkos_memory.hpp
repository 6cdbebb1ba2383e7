// SPDX-License-Identifier: Apache-2.0
// The memory of a Kokkos space that executors allocate, and copies between it and the host.
#pragma once

#include <kvmeld/core/config.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <exception>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

template <class MemorySpace>
using byte_view = Kokkos::View<unsigned char*, MemorySpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// The bytes as a View. The View is not const even if `p` points to const: deep_copy only reads its source.
template <class MemorySpace> byte_view<MemorySpace> view_bytes(void const* p, std::size_t bytes) {
  return byte_view<MemorySpace>(static_cast<unsigned char*>(const_cast<void*>(p)), bytes);
}

}  // namespace detail

/// Uninitialised bytes of a memory space, 64-byte aligned. Copies are deep, and the copying call waits. Where
/// there is no memory, data() is null and size() is 0. A kokkos_executor gives it to a cache for the ledger
/// and the workspace. It must be freed before Kokkos::finalize.
template <class MemorySpace> class kokkos_memory {
public:
  kokkos_memory() = default;
  /// Allocates `bytes` bytes of the space.
  explicit kokkos_memory(std::size_t bytes) {
    if (bytes == 0) return;
#if KVMELD_EXCEPTIONS
    try {
      data_ = Kokkos::kokkos_malloc<MemorySpace>("kvmeld", bytes);
    } catch (std::exception const&) {
      return;
    }
#else
    data_ = Kokkos::kokkos_malloc<MemorySpace>("kvmeld", bytes);
#endif
    if (data_ != nullptr) bytes_ = bytes;
  }
  /// A deep copy.
  kokkos_memory(kokkos_memory const& other) : kokkos_memory(other.bytes_) {
    if (bytes_ == 0) return;
    Kokkos::deep_copy(detail::view_bytes<MemorySpace>(data_, bytes_),
                      detail::view_bytes<MemorySpace>(other.data_, bytes_));
  }
  /// Takes over the memory of `other`, which is empty afterwards.
  kokkos_memory(kokkos_memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  /// Takes a copy of the argument, or moves from it; frees the memory held before.
  kokkos_memory& operator=(kokkos_memory other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~kokkos_memory() {
    if (data_ != nullptr) Kokkos::kokkos_free<MemorySpace>(data_);
  }

  void* data() const { return data_; }
  std::size_t size() const { return bytes_; }

private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
