#include <kvmeld/cuda.cuh>

int main() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices < 0 ? 1 : 0;
}
