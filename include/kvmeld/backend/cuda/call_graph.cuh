// Calls of caches and of attention as one CUDA graph.
#pragma once

#include <kvmeld/backend/cuda/cuda_executor.cuh>
#include <kvmeld/core/call_record.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Captures calls once and replays them with other lists: one graph of an engine's decode step (append, commit, observe,
/// attention, and the engine's own kernels between them), one of a compression. See call_record for what may change.
///
///     call_graph step(cache.executor());
///     step.record([&] { cache.append(slots, counts); ...; engine_kernels(stream); });
///     step.replay([&] { cache.append(other_slots, other_counts); ... });    // kvmeld's calls only
///
/// `record` gets the longest lists and the largest counts that will come. It performs the calls too: the graph is launched
/// right behind. All calls go to the executor given here. What they would allocate has to be there: call the executor's
/// `reserve`, or make the same calls once before. Not for the default stream, which cannot be captured. Allocates at
/// construction, and the graph's nodes in `record`; waits for nothing. Where `record` or `replay` is refused, the host's
/// part of the calls has been made and the device's has not: close the sequences concerned.
template <class Executor> class call_graph {
public:
  explicit call_graph(Executor& executor, std::size_t numbers = std::size_t{1} << 16)
      : executor_(executor),
        places_(executor.allocate(numbers * sizeof(std::uint32_t))),
        record_(static_cast<std::uint32_t*>(places_.data()), numbers) {}
  call_graph(call_graph const&) = delete;
  call_graph& operator=(call_graph const&) = delete;
  ~call_graph() { forget(); }

  /// Captures `calls()`, with every kernel that it launches on the executor's stream, and launches the graph. Forgets what
  /// was recorded before.
  template <class Calls> status record(Calls calls) {
    forget();
    record_.begin_recording();
    std::string problem;
    {
      capture const open(executor_, record_, graph_, problem);
      if (problem.empty()) calls();
    }
    if (problem.empty()) problem = record_.end();
    if (problem.empty()) check("a launch", executor_.error(), problem);
    if (problem.empty()) check("cudaGraphInstantiate", cudaGraphInstantiate(&ready_, graph_, 0), problem);
    if (!problem.empty()) forget();
    return problem.empty() ? launch() : report(problem);
  }

  /// Makes `calls()`, the same ones with other lists, without launching anything, then launches the graph.
  template <class Calls> status replay(Calls calls) {
    if (ready_ == nullptr) return report("replay: nothing is recorded; call record first");
    record_.begin_replay();
    {
      attachment const calls_go_here(executor_, record_);
      calls();
    }
    std::string const problem = record_.end();
    return problem.empty() ? launch() : report(problem);
  }

  /// Null until `record`.
  cudaGraph_t graph() const { return graph_; }

private:
  struct attachment {
    attachment(Executor& e, call_record& r) : executor(e) { e.attach(&r); }
    attachment(attachment const&) = delete;
    attachment& operator=(attachment const&) = delete;
    ~attachment() { executor.attach(nullptr); }
    Executor& executor;
  };
  /// Ends the capture however the calls end.
  struct capture : attachment {
    capture(Executor& e, call_record& r, cudaGraph_t& to, std::string& why)
        : attachment(e, r), graph(to), problem(why) {
      check("cudaStreamBeginCapture", cudaStreamBeginCapture(e.stream(), cudaStreamCaptureModeThreadLocal),
            problem);
    }
    ~capture() {
      if (!problem.empty()) return;
      check("cudaStreamEndCapture", cudaStreamEndCapture(this->executor.stream(), &graph), problem);
    }
    cudaGraph_t& graph;
    std::string& problem;
  };

  static void check(char const* call, cudaError_t e, std::string& problem) {
    if (e != cudaSuccess) problem = message("record: ", call, " says ", cudaGetErrorString(e));
  }
  status launch() {
    executor_.write(static_cast<std::uint32_t*>(places_.data()), record_.numbers());
    cudaError_t const e = cudaGraphLaunch(ready_, executor_.stream());
    return report(e == cudaSuccess ? std::string()
                                   : message("replay: cudaGraphLaunch says ", cudaGetErrorString(e)));
  }
  void forget() {
    if (ready_ != nullptr) cudaGraphExecDestroy(ready_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    ready_ = nullptr;
    graph_ = nullptr;
  }

  Executor& executor_;
  typename Executor::memory places_;
  call_record record_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t ready_ = nullptr;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
