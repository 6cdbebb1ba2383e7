// Calls of caches and of attention, recorded as one CUDA graph.
#pragma once

#include <kvmeld/backend/cuda/cuda_executor.cuh>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/exec/call_record.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Captures calls once and replays them with other lists. One graph can hold the decode step of an engine
/// (append, commit, observe, attention, and the engine's own kernels between them), another one a
/// compression. call_record says what may change between record and replay.
///
///     call_graph step(cache.executor());
///     step.record([&] { cache.append(slots, counts); ...; engine_kernels(stream); });
///     step.replay([&] { cache.append(other_slots, other_counts); ... });    // kvmeld's calls only
///
/// Pass `record` the longest lists, the most queries and the smallest budgets that will come. `record` also
/// performs the calls: it launches the graph after the capture. The graph must know every executor that the
/// calls go to (`include`): the one of each cache (`cache.executor()`), and the one that attention is given.
/// Launches of other executors would be captured with their present lists. All executors use one stream. It
/// is not the default stream, which cannot be captured. Executors and caches keep their addresses as long as
/// the graph lives. After `rebind`, record anew, or use `relocatable` layouts. Calls cannot allocate while
/// they are recorded: call `reserve`, or make the same calls once before. The graph allocates memory at
/// construction and its nodes in `record`; it waits for nothing. Where `record` or `replay` is refused, or a
/// call throws, the host state of the caches is restored.
template <class Executor> class call_graph {
public:
  /// `numbers` is how many numbers the lists of all recorded calls may have together, in device memory.
  explicit call_graph(Executor& executor, std::size_t numbers = std::size_t{1} << 17)
      : executor_(executor),
        callers_{&executor},
        places_(executor.allocate(numbers * sizeof(std::uint32_t))),
        record_(static_cast<std::uint32_t*>(places_.data()), places_.size() / sizeof(std::uint32_t)) {}
  call_graph(call_graph const&) = delete;
  call_graph& operator=(call_graph const&) = delete;
  ~call_graph() { forget(); }

  /// Adds an executor that the calls go to. It must use the same stream.
  status include(Executor& other) {
    if (other.stream() != executor_.stream())
      return raise(
          refusal("call_graph", "stream of the executor", "another", "that of the graph's executor"));
    callers_.push_back(&other);
    return {};
  }

  /// Captures `calls()`, with every kernel that it launches on the executor's stream, and launches the graph.
  /// Forgets what was recorded before.
  template <class Calls> status record(Calls calls) {
    forget();
    record_.begin_recording();
    joint_launch all(record_);
    std::string problem;
    {
      capture const open(*this, problem);
      if (problem.empty()) calls();
    }
    if (problem.empty()) problem = record_.end();
    for (Executor const* e : callers_) {
      if (problem.empty()) check("a launch", e->error(), problem);
    }
    if (problem.empty()) check("cudaGraphInstantiate", cudaGraphInstantiate(&ready_, graph_, 0), problem);
    if (problem.empty()) problem = launch("record", all);
    if (!problem.empty()) forget();
    return raise(problem);
  }

  /// Makes `calls()` without launching anything, then launches the graph. They are the recorded calls in the
  /// same order, with other lists.
  template <class Calls> status replay(Calls calls) {
    if (ready_ == nullptr) return raise(refusal("replay", "graph", "empty", "recorded first (call record)"));
    record_.begin_replay();
    joint_launch all(record_);
    {
      attachment const calls_go_here(*this);
      calls();
    }
    std::string const problem = record_.end();
    return raise(problem.empty() ? launch("replay", all) : problem);
  }

  /// The captured graph; null until `record`.
  cudaGraph_t graph() const { return graph_; }

private:
  struct attachment {
    explicit attachment(call_graph& g) : to(g) { attach(&g.record_); }
    attachment(attachment const&) = delete;
    attachment& operator=(attachment const&) = delete;
    ~attachment() { attach(nullptr); }
    void attach(call_record* r) const {
      for (Executor* e : to.callers_) e->attach(r);
    }
    call_graph& to;
  };
  /// Begins a capture, and ends it whether the calls return or throw.
  struct capture : attachment {
    capture(call_graph& g, std::string& why) : attachment(g), problem(why) {
      check("cudaStreamBeginCapture",
            cudaStreamBeginCapture(g.executor_.stream(), cudaStreamCaptureModeThreadLocal), problem);
    }
    ~capture() {
      if (!problem.empty()) return;
      check("cudaStreamEndCapture", cudaStreamEndCapture(this->to.executor_.stream(), &this->to.graph_),
            problem);
    }
    std::string& problem;
  };

  static void check(char const* call, cudaError_t e, std::string& problem) {
    if (e == cudaSuccess) return;
    cudaGetLastError();  // `problem` tells it; later launches must not see it
    problem = refusal("record", message("result of ", call), cudaGetErrorString(e), "cudaSuccess");
  }
  /// Enqueues the lists and launches the graph. Returns why that failed, or an empty string.
  std::string launch(char const* during, joint_launch& all) {
    executor_.write(static_cast<std::uint32_t*>(places_.data()), record_.numbers());
    cudaError_t const e = cudaGraphLaunch(ready_, executor_.stream());
    all.launched = e == cudaSuccess;
    if (e == cudaSuccess) return {};
    cudaGetLastError();
    return refusal(during, "result of cudaGraphLaunch", cudaGetErrorString(e), "cudaSuccess");
  }
  void forget() {
    if (ready_ != nullptr) cudaGraphExecDestroy(ready_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    ready_ = nullptr;
    graph_ = nullptr;
  }

  Executor& executor_;
  std::vector<Executor*> callers_;
  typename Executor::memory places_;
  call_record record_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t ready_ = nullptr;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
