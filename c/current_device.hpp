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

/// Makes a device current. Returns the one that was, or -1 if that is the same or the call failed.
int make_current(std::int32_t device);

/// Makes a device current as long as it lives. A negative number: does nothing.
class current_device {
public:
  explicit current_device([[maybe_unused]] std::int32_t device) {
    if constexpr (with_cuda) {
      if (device >= 0) before_ = make_current(device);
    }
  }
  ~current_device() {
    if constexpr (with_cuda) {
      if (before_ >= 0) make_current(before_);
    }
  }
  current_device(current_device const&) = delete;
  current_device& operator=(current_device const&) = delete;

private:
  int before_ = -1;
};

}  // namespace kvmeld_library
