#include "current_device.hpp"
#include "failure.hpp"

#include <kvmeld/backend/cuda/device_memory.cuh>
#include <kvmeld/core/error.hpp>

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
  int before = -1;
  cudaError_t error = cudaGetDevice(&before);
  if (error == cudaSuccess && before != device) error = cudaSetDevice(device);
  if (error == cudaSuccess) return before;
  cudaGetLastError();  // the status tells it
  throw failure(KVMELD_DEVICE_ERROR,
                kvmeld::refusal("kvmeld", "options.device", device,
                                kvmeld::message("one that CUDA can use (", cudaGetErrorString(error), ")")));
}

void restore(int device) noexcept { cudaSetDevice(device); }

bool is_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) == cudaSuccess)
    return status != cudaStreamCaptureStatusNone;
  return cudaGetLastError() ==
         cudaErrorStreamCaptureImplicit;  // the default stream beside one that is captured
}

}  // namespace kvmeld_library
