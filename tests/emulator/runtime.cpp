// The part of CUDA's runtime that programs here use, on the emulated device. Linked in the runtime's place.
#include "device.hpp"

#include <chrono>
#include <cstdlib>
#include <cstring>

namespace {

emulator::device& gpu() { return emulator::device::instance(); }

struct configuration {
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
};
std::vector<configuration> configurations;

double now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void wait_for_all() {
  ++gpu().waits;
  gpu().finish_all();
  gpu().host_waited_for_all();
}

// Calls that a test wants to fail.
bool refused(char const* call) {
  char const* const name = std::getenv("EMULATOR_REFUSES");
  return name != nullptr && std::strcmp(name, call) == 0;
}

// Both ends are looked at when the copy takes place.
void copy(void* to, void const* from, std::size_t bytes) {
  auto& m = gpu().memory();
  m.require(from, bytes, "a copy reads");
  m.require(to, bytes, "a copy writes");
  gpu().touched("cudaMemcpy", from, bytes, false);
  gpu().touched("cudaMemcpy", to, bytes, true);
  std::memmove(to, from, bytes);
  m.copied(to, from, bytes);
}

}  // namespace

extern "C" {

// What nvcc's own code calls.
void** __cudaRegisterFatBinary(void* wrapper) {
  struct header {
    int magic, version;
    void const* data;
    void* more;
  };
  auto** const handle = static_cast<void**>(wrapper);
  gpu().add_module(handle, static_cast<header const*>(wrapper)->data);
  return handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** handle, char const* host, char*, char const* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  gpu().add_function(host, handle, name);
}
char __cudaInitModule(void**) { return 0; }  // of managed variables, which nothing here has
void __cudaRegisterVar(void**, char*, char*, char const*, int, std::size_t, int, int) {}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, CUstream_st* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  configuration const c = configurations.back();
  configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *shared = c.shared;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, void const* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream) {
  emulator::function const* const f = gpu().find(kernel);
  if (f == nullptr) return gpu().last(cudaErrorInvalidDeviceFunction);
  return gpu().launch(*f, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernel(void const* host, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                             cudaStream_t stream) {
  return __cudaLaunchKernel(reinterpret_cast<cudaKernel_t>(const_cast<void*>(host)), grid, block, arguments,
                            shared, stream);
}
cudaError_t cudaLaunchKernelExC(cudaLaunchConfig_t const* c, void const* host, void** arguments) {
  emulator::function const* const f = gpu().find(host);
  if (f == nullptr) return gpu().last(cudaErrorInvalidDeviceFunction);
  unsigned cluster = 0;
  for (unsigned i = 0; i < c->numAttrs; ++i) {
    switch (c->attrs[i].id) {
    case cudaLaunchAttributeIgnore:
    case cudaLaunchAttributeProgrammaticStreamSerialization: break;  // it allows an overlap and asks for none
    case cudaLaunchAttributeClusterDimension: {
      auto const& d = c->attrs[i].val.clusterDim;
      if (d.x == 0 || d.y != 1 || d.z != 1) return gpu().last(cudaErrorInvalidClusterSize);
      cluster = d.x;
      break;
    }
    default: return gpu().last(cudaErrorNotSupported);
    }
  }
  return gpu().launch(*f, c->gridDim, c->blockDim, arguments, c->dynamicSmemBytes, c->stream, cluster);
}
cudaError_t cudaOccupancyMaxPotentialClusterSize(int* blocks, void const* host, cudaLaunchConfig_t const*) {
  emulator::function const* const f = gpu().find(host);
  if (f == nullptr) return gpu().last(cudaErrorInvalidDeviceFunction);
  *blocks = static_cast<int>(gpu().largest_cluster(*f));
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* to, void const* host) {
  return gpu().attributes(host, *to);
}
cudaError_t cudaFuncSetAttribute(void const* host, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed)
    return gpu().set_non_portable(host, value != 0);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return gpu().last(cudaErrorInvalidValue);
  return gpu().set_shared(host, value);
}

// The device
cudaError_t cudaGetDeviceCount(int* n) { return *n = gpu().devices, cudaSuccess; }
cudaError_t cudaGetDevice(int* d) { return *d = gpu().current, cudaSuccess; }
cudaError_t cudaSetDevice(int d) {
  if (d < 0 || d >= gpu().devices) return gpu().last(cudaErrorInvalidDevice);
  gpu().current = d;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::strcpy(p->name, "an emulated device: PTX, interpreted");
  p->multiProcessorCount = static_cast<int>(gpu().processors);
  p->major = 9;
  p->warpSize = 32;
  p->totalGlobalMem = std::size_t{4} << 30;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
  case cudaDevAttrMultiProcessorCount: *value = static_cast<int>(gpu().processors); return cudaSuccess;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 * 1024; return cudaSuccess;
  case cudaDevAttrComputeCapabilityMajor: *value = 9; return cudaSuccess;
  case cudaDevAttrComputeCapabilityMinor: *value = 0; return cudaSuccess;
  case cudaDevAttrClusterLaunch: *value = 1; return cudaSuccess;
  default: return gpu().last(cudaErrorInvalidValue);
  }
}
cudaError_t cudaDeviceSynchronize() {
  if (gpu().forbidden_now()) return gpu().last(cudaErrorStreamCaptureUnsupported);
  wait_for_all();
  return gpu().last(cudaSuccess);
}
cudaError_t cudaGetLastError() { return gpu().take_last(); }
cudaError_t cudaPeekAtLastError() { return gpu().error(); }
char const* cudaGetErrorString(cudaError_t e) {
  switch (e) {
  case cudaSuccess: return "no error";
  case cudaErrorIllegalAddress: return "an illegal access, told above";
  case cudaErrorNotReady: return "not ready";
  case cudaErrorInvalidValue: return "an invalid value";
  case cudaErrorMemoryAllocation: return "no memory";
  case cudaErrorStreamCaptureUnsupported: return "not allowed while a stream is captured";
  case cudaErrorStreamCaptureImplicit: return "the default stream waits for a captured one";
  case cudaErrorStreamCaptureInvalidated: return "the capture met what cannot be captured";
  case cudaErrorInvalidConfiguration: return "an invalid grid or block";
  case cudaErrorInvalidDevice: return "a device that is not there";
  case cudaErrorInvalidResourceHandle: return "a stream of another device than the current one";
  case cudaErrorInvalidPtx: return "more static shared memory than a block has";
  case cudaErrorInvalidClusterSize: return "an invalid size of clusters";
  case cudaErrorLaunchOutOfResources: return "more threads than the kernel allows";
  default: return "an error";
  }
}
char const* cudaGetErrorName(cudaError_t e) { return cudaGetErrorString(e); }

// Memory
cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  if (gpu().forbidden_now()) return gpu().last(cudaErrorStreamCaptureUnsupported);
  *p = bytes == 0 ? nullptr : gpu().memory().allocate(bytes, "global");
  return gpu().last(bytes == 0 || *p != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* p) {
  if (gpu().forbidden_now()) return gpu().last(cudaErrorStreamCaptureUnsupported);
  wait_for_all();
  return gpu().last(p == nullptr || gpu().memory().free(p) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMallocAsync(void** p, std::size_t bytes, cudaStream_t s) {
  if (gpu().of(s)->capture != nullptr) {
    gpu().forbidden_now();
    return gpu().last(cudaErrorStreamCaptureUnsupported);  // a node of a graph; not emulated
  }
  *p = bytes == 0 ? nullptr : gpu().memory().allocate(bytes, "global");
  if (bytes != 0 && *p == nullptr) return gpu().last(cudaErrorMemoryAllocation);
  // Other streams may use it behind this.
  return gpu().last(gpu().enqueue(s, [p = *p, bytes] { gpu().touched("cudaMallocAsync", p, bytes, true); }));
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t s) {
  if (p == nullptr) return cudaSuccess;
  return gpu().enqueue(s, [p] {
    gpu().touched("cudaFreeAsync", p, gpu().memory().bytes_of(p), true);
    if (!gpu().memory().free(p)) throw emulator::fault("cudaFreeAsync of what was not allocated");
  });
}
cudaError_t cudaMallocHost(void** p, std::size_t bytes) {
  if (gpu().forbidden_now()) return gpu().last(cudaErrorStreamCaptureUnsupported);
  *p = std::malloc(bytes == 0 ? 1 : bytes);
  std::memset(*p, 0xa5, bytes);
  gpu().pinned[static_cast<std::byte*>(*p)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, std::size_t bytes, unsigned) { return cudaMallocHost(p, bytes); }
cudaError_t cudaFreeHost(void* p) {
  if (gpu().forbidden_now()) return gpu().last(cudaErrorStreamCaptureUnsupported);
  wait_for_all();
  gpu().pinned.erase(static_cast<std::byte*>(p));
  std::free(p);
  return gpu().last(cudaSuccess);
}
cudaError_t cudaMemGetInfo(std::size_t* spare, std::size_t* all) {
  *spare = std::size_t{2} << 30;
  *all = std::size_t{4} << 30;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t s) {
  auto& m = gpu().memory();
  bool const captured = gpu().of(s)->capture != nullptr;
  if (!captured && !m.contains(from) && !gpu().is_pinned(from)) {
    // Pageable memory is read before the call returns.
    auto const bytes_of = static_cast<std::byte const*>(from);
    return gpu().enqueue(s, [to, kept = std::vector<std::byte>(bytes_of, bytes_of + bytes)] {
      copy(to, kept.data(), kept.size());
    });
  }
  cudaError_t const e = gpu().enqueue(s, [=] { copy(to, from, bytes); });
  if (e == cudaSuccess && !captured && !m.contains(to) && !gpu().is_pinned(to)) {
    ++gpu().waits;
    gpu().finish(s);
    gpu().host_waited(s);
  }
  return gpu().last(e);
}
cudaError_t cudaMemcpy(void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (gpu().forbidden_now()) return gpu().last(cudaErrorStreamCaptureUnsupported);
  cudaError_t const e = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  ++gpu().waits;
  gpu().finish(nullptr);
  gpu().host_waited(nullptr);
  return gpu().last(e);
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t s) {
  return gpu().enqueue(s, [=] {
    gpu().memory().require(to, bytes, "cudaMemset writes");
    gpu().touched("cudaMemset", to, bytes, true);
    std::memset(to, value, bytes);
    gpu().memory().wrote(to, bytes);
  });
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

// Streams and events
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
  *s = new CUstream_st;
  (*s)->blocking = (flags & cudaStreamNonBlocking) == 0;
  (*s)->device = gpu().current;
  gpu().add(*s);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithFlags(s, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  gpu().remove(s);
  delete s;
  return gpu().last(cudaSuccess);
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  if (gpu().of(s)->capture != nullptr) {
    gpu().forbidden_now();
    return gpu().last(cudaErrorStreamCaptureUnsupported);
  }
  ++gpu().waits;
  if (gpu().of(s)->blocking) gpu().finish(nullptr);
  gpu().finish(s);
  gpu().host_waited(s);
  return gpu().last(cudaSuccess);
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
  gpu().advance(s);
  if (gpu().of(s)->work.empty()) {
    gpu().host_waited(s);
    return gpu().last(cudaSuccess);
  }
  return gpu().last(cudaErrorNotReady);  // remembered, though it is no error
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  std::uint64_t const wanted = e->recorded;
  if (gpu().of(s)->capture == nullptr) gpu().join(s, e->before);
  return gpu().enqueue(s, [e, wanted] {
    while (e->reached < wanted) gpu().advance(e->stream);
  });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return *e = new CUevent_st, cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  if (e->stream != nullptr) gpu().finish(e->stream);
  delete e;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  std::uint64_t const mark = ++gpu().next_event;
  e->recorded = mark;
  e->stream = gpu().of(s);
  e->before = gpu().clock(s);
  return gpu().enqueue(s, [e, mark] {
    e->reached = mark;
    e->milliseconds = now();
  });
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  if (e->reached >= e->recorded) {
    gpu().host_waited(e->before);
    return gpu().last(cudaSuccess);
  }
  gpu().advance(e->stream);
  return gpu().last(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  ++gpu().waits;
  while (e->reached < e->recorded && gpu().error() == cudaSuccess) gpu().advance(e->stream);
  gpu().host_waited(e->before);
  return gpu().last(cudaSuccess);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  if (from->reached < from->recorded || to->reached < to->recorded) return gpu().last(cudaErrorNotReady);
  *ms = static_cast<float>(to->milliseconds - from->milliseconds);
  return cudaSuccess;
}

// Graphs
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  if (s == nullptr || s == cudaStreamLegacy) return gpu().last(cudaErrorStreamCaptureUnsupported);
  if (s->capture != nullptr) return gpu().last(cudaErrorIllegalState);
  s->capture = new CUgraph_st;
  s->broken = false;
  return gpu().last(cudaSuccess);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* now) {
  *now = s == nullptr || s->capture == nullptr ? cudaStreamCaptureStatusNone
         : s->broken                           ? cudaStreamCaptureStatusInvalidated
                                               : cudaStreamCaptureStatusActive;
  return gpu().last(cudaSuccess);
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  *graph = nullptr;
  if (s->capture == nullptr) return gpu().last(cudaErrorIllegalState);
  if (!s->broken)
    *graph = s->capture;
  else
    delete s->capture;
  s->capture = nullptr;
  return gpu().last(s->broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  if (refused("cudaGraphInstantiate")) return gpu().last(cudaErrorMemoryAllocation);
  *ready = new CUgraphExec_st{graph->nodes};
  return gpu().last(cudaSuccess);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t s) {
  if (refused("cudaGraphLaunch")) return gpu().last(cudaErrorMemoryAllocation);
  if (gpu().of(s)->capture != nullptr) {
    gpu().of(s)->broken = true;
    return gpu().last(cudaErrorStreamCaptureUnsupported);
  }
  for (auto const& node : ready->nodes) {
    cudaError_t const e = gpu().enqueue(s, node);
    if (e != cudaSuccess) return e;
  }
  return gpu().last(cudaSuccess);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) {
  delete ready;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

}  // extern "C"
