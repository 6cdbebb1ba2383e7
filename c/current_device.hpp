// What the library asks of CUDA's runtime outside of a cache. Defined where the library is built with CUDA.
#pragma once

#include "built.hpp"

#include <kvmeld/kvmeld.h>

#include <cstdint>

namespace kvmeld_library {

/// The number of devices.
int count_devices();
/// The device memory that a cache takes if the program gives no allocator, in the order of a stream.
kvmeld_allocator stream_ordered_memory(void* stream);

/// Makes a device current, and returns the one that was. Throws what kvmeld_problem tells if it cannot.
int make_current(std::int32_t device);
/// Makes the device current that was.
void restore(int device) noexcept;
/// Whether a stream of the current device is being captured.
bool is_capturing(void* stream);

/// Makes a device current as long as it lives. A negative number: does nothing.
class current_device {
public:
  explicit current_device([[maybe_unused]] std::int32_t device) {
    if constexpr (with_cuda) {
      if (device >= 0) before_ = make_current(device);
      if (before_ == device) before_ = -1;
    }
  }
  ~current_device() {
    if constexpr (with_cuda) {
      if (before_ >= 0) restore(before_);
    }
  }
  current_device(current_device const&) = delete;
  current_device& operator=(current_device const&) = delete;

private:
  int before_ = -1;
};

}  // namespace kvmeld_library
