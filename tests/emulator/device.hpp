// The emulated device as the runtime sees it: streams of work that is done as late as it may be.
#pragma once

#include "figures.hpp"
#include "machine.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

/// Work in order. A graph's capture takes what is enqueued meanwhile.
struct CUstream_st {
  struct piece {
    emulator::stamp when;
    std::function<void()> run;
  };
  std::deque<piece> work;
  std::uint32_t number = 0, enqueued = 0;  ///< of the stream, and of its last work
  /// What comes before the next work.
  std::shared_ptr<emulator::clock_of_streams const> before =
      std::make_shared<emulator::clock_of_streams const>();
  bool blocking = true;  ///< in order with the default stream
  int device = 0;        ///< the current one when it was made
  CUgraph_st* capture = nullptr;
  bool broken = false;  ///< the capture met what cannot be captured
};
struct CUgraph_st {
  std::vector<std::function<void()>> nodes;
};
struct CUgraphExec_st {
  std::vector<std::function<void()>> nodes;
};
struct CUevent_st {
  std::uint64_t recorded = 0, reached = 0;
  CUstream_st* stream = nullptr;
  emulator::clock_of_streams before;  ///< what it was recorded behind
  double milliseconds = 0;
};

namespace emulator {

/// One device for the process. Nothing runs before somebody waits or asks: memory that a call reads too late,
/// and results that are read too early, show.
class device {
public:
  static device& instance();

  emulator::memory& memory() { return memory_; }
  emulator::machine& machine() { return machine_; }

  // code
  void add_module(void* handle, void const* container);
  void add_function(void const* host, void* handle, char const* name) { functions_[host] = {handle, name}; }
  /// Null where there is none; parses its module when it is first asked for.
  function const* find(void const* host);

  // streams
  cudaStream_t of(cudaStream_t s) { return s == nullptr || s == cudaStreamLegacy ? &default_ : s; }
  void add(cudaStream_t s) {
    streams_.push_back(s);
    s->number = ++numbered_;
  }
  void remove(cudaStream_t s);
  bool capturing() const;
  /// Behind what is in the stream, or into its capture.
  cudaError_t enqueue(cudaStream_t s, std::function<void()> work);
  std::uint64_t waits = 0;  ///< calls in which the host waits for the device
  void finish(cudaStream_t s);
  void finish_all();
  /// Work behind this call comes behind all that is in the stream, or in all streams, or before a clock.
  void host_waited(cudaStream_t s);
  void host_waited_for_all();
  void host_waited(clock_of_streams const& before) { host_.join(before); }
  /// All that is in the stream now.
  clock_of_streams clock(cudaStream_t s);
  void join(cudaStream_t s, clock_of_streams const& before);
  /// What the current work, a copy or the like, does to memory.
  void touched(char const* call, void const* p, std::size_t bytes, bool writes);
  /// A single piece of work, so that who asks again and again gets there.
  void advance(cudaStream_t s);
  /// For calls that no capture allows: marks open captures as broken.
  bool forbidden_now();

  cudaError_t launch(function const& f, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                     cudaStream_t s, unsigned cluster = 0);
  cudaError_t set_shared(void const* host, int bytes);
  cudaError_t set_non_portable(void const* host, bool allowed);
  cudaError_t attributes(void const* host, cudaFuncAttributes& to);
  /// Blocks of the largest cluster.
  unsigned largest_cluster(function const& f) const { return non_portable_.count(&f) != 0 ? 16 : 8; }

  cudaError_t error() const { return sticky_; }
  cudaError_t last(cudaError_t e) {
    if (e != cudaSuccess) last_ = e;
    return sticky_ != cudaSuccess ? sticky_ : e;
  }
  cudaError_t take_last() {
    cudaError_t const e = sticky_ != cudaSuccess ? sticky_ : last_;
    last_ = cudaSuccess;
    return e;
  }
  /// Pinned host memory by its first byte.
  std::map<std::byte const*, std::size_t> pinned;
  bool is_pinned(void const* p) const;
  std::uint64_t next_event = 0;
  std::vector<kernel_figures> take_figures();
  std::size_t processors = 132;  ///< multiprocessors that programs are told of
  int devices = 1, current = 0;  ///< how many devices programs are told of; all have the same memory

private:
  device();
  static void at_exit();
  void run_next(cudaStream_t s);

  struct code {
    std::string_view ptx;
    std::unique_ptr<module> parsed;
  };
  emulator::memory memory_;
  emulator::machine machine_{memory_};
  std::map<void*, code> modules_;
  std::map<void const*, std::pair<void*, std::string>> functions_;
  std::map<function const*, std::size_t> most_shared_;
  std::set<function const*> non_portable_;
  std::map<function const*, kernel_figures> figures_;
  kernel_figures all_;  ///< of those taken too
  CUstream_st default_;
  std::vector<cudaStream_t> streams_;
  std::uint32_t numbered_ = 0;
  clock_of_streams host_;  ///< work that the host knows to be done
  cudaError_t sticky_ = cudaSuccess, last_ = cudaSuccess;
  bool log_ = false;
};

}  // namespace emulator
