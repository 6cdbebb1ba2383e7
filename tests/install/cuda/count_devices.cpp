#include <cuda_runtime_api.h>
#include <kvmeld/kvmeld.hpp>

int main() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices < 0 ? 1 : 0;
}
