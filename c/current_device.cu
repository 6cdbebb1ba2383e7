#include "current_device.hpp"

#include <kvmeld/backend/cuda/device_memory.cuh>

#include <cuda_runtime_api.h>

#include <cstddef>

namespace kvmeld_library {

int count_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // the program must not see this error
  return 0;
}

kvmeld_allocator stream_ordered_memory(void* stream) {
  auto const allocate = [](void* context, std::size_t bytes, std::size_t) {
    return kvmeld::async_resource{}.allocate(bytes, static_cast<cudaStream_t>(context));
  };
  auto const release = [](void* context, void* memory, std::size_t bytes) {
    kvmeld::async_resource{}.deallocate(memory, bytes, static_cast<cudaStream_t>(context));
  };
  return {allocate, release, stream};
}

int make_current(std::int32_t device) {
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess || before == device) return -1;
  return cudaSetDevice(device) == cudaSuccess ? before : -1;
}

}  // namespace kvmeld_library
