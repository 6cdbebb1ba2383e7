// Runs the CUDA tests where there is a device; says loudly that nothing ran where there is none (exit status
// 77).
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cuda_runtime_api.h>

#include <cstdio>

int main(int count, char** arguments) {
  int devices = 0;
  cudaError_t const e = cudaGetDeviceCount(&devices);
  if (e != cudaSuccess || devices == 0) {
    std::printf("SKIPPED: no CUDA device (%s). NOTHING of the CUDA backend was run.\n",
                cudaGetErrorString(e));
    return 77;
  }
  cudaDeviceProp properties{};
  cudaGetDeviceProperties(&properties, 0);
  std::printf("on %s\n", properties.name);
  return doctest::Context(count, arguments).run();
}
