// SPDX-License-Identifier: Apache-2.0
// A copy from a Kokkos space to the host that is enqueued now and waited for later.
#pragma once

#include <kvmeld/backend/kokkos/kokkos_memory.hpp>
#include <kvmeld/core/config.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <optional>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A copy of device bytes in host memory. It arrives some time after begin(). Kokkos cannot tell whether a
/// space has finished, so done() waits. Can be moved, not copied.
template <class Space> class kokkos_transfer {
public:
  kokkos_transfer() = default;
  /// Takes over a copy that is under way.
  kokkos_transfer(kokkos_transfer&& other) noexcept { *this = std::move(other); }
  /// Swaps with `other`, including copies under way.
  kokkos_transfer& operator=(kokkos_transfer&& other) noexcept {
    std::swap(host_, other.host_);
    std::swap(under_way_, other.under_way_);
    return *this;
  }
  ~kokkos_transfer() { finish(); }

  /// Enqueues the copy. Waits for an earlier copy under way first, and allocates if the copy is larger than
  /// any before.
  template <class Executor> void begin(Executor& executor, void const* from, std::size_t bytes) {
    finish();
    if (bytes > host_.size()) host_ = kokkos_memory<Kokkos::HostSpace>(bytes);
    Kokkos::deep_copy(executor.space(), detail::view_bytes<Kokkos::HostSpace>(host_.data(), bytes),
                      detail::view_bytes<typename Space::memory_space>(from, bytes));
    under_way_ = executor.space();
  }
  /// Waits until the copy has arrived; returns true.
  template <class Executor> bool done(Executor&) {
    finish();
    return true;
  }
  void* data() const { return host_.data(); }

private:
  void finish() {
    if (under_way_) under_way_->fence();  // nothing may write to freed memory
    under_way_.reset();
  }

  kokkos_memory<Kokkos::HostSpace> host_;
  std::optional<Space> under_way_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
