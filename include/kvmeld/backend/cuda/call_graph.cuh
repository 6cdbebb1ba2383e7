// SPDX-License-Identifier: Apache-2.0
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
/// Pass `record` the longest lists, the most queries and the smallest budgets that will come. The sequences
/// are open then, and have room. A recorded compress keeps a number for each track of the cache, besides its
/// list; `numbers` of the constructor has to hold them all. `record` also
/// performs the calls: it launches the graph after the capture. The graph must know every executor that the
/// calls go to (`include`): the one of each cache (`cache.executor()`), and the one that attention is given.
/// Launches of other executors would be captured with their present lists. All executors use one stream. It
/// is not the default stream, which cannot be captured. Executors and caches keep their addresses as long as
/// the graph lives. After `rebind`, record anew, or use `relocatable` layouts. Calls cannot allocate while
/// they are recorded: call `reserve`, or make the same calls once before. The graph allocates memory at
/// construction and its nodes in `record`; it waits for nothing. Where a function of the graph is refused, or
/// a call throws, the host state of the caches is restored.
///
/// An engine that captures its own graph lets the calls join it:
///
///     cudaStreamBeginCapture(stream, ...);
///     engine_kernels(stream);
///     step.record_into([&] { cache.append(slots, counts); ... });           // nothing has happened yet
///     cudaStreamEndCapture(stream, &graph);                                 // and instantiate it
///     step.update([&] { cache.append(other_slots, other_counts); ... });    // before every launch
///     cudaGraphLaunch(ready, stream);
///
/// An engine that captures several graphs has a call_graph for each of them. The call_graph owns the memory
/// that the captured kernels read, so it must outlive the engine's graph.
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
    auto const current = executor_.on_device();
    forget();
    record_.begin_recording();
    joint_launch all(record_);
    std::string problem;
    {
      capture const open(*this, problem);
      if (problem.empty()) calls();
    }
    if (problem.empty()) problem = recording_problem("record");
    if (problem.empty())
      check("record", "cudaGraphInstantiate", cudaGraphInstantiate(&ready_, graph_, 0), problem);
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
    make(calls);
    std::string const problem = record_.end();
    return raise(problem.empty() ? launch("replay", all) : problem);
  }

  /// Makes `calls()` in a capture that the engine has begun on the executor's stream: their kernels become
  /// nodes of the engine's graph. They run when that graph is launched, so the calls are taken back on the
  /// host. Call it once, with all calls. If it is refused, do not launch what has been captured.
  template <class Calls> status record_into(Calls calls) {
    constexpr char const* call = "record_into";
    if (joined_ || ready_ != nullptr)
      return raise(
          refusal(call, "graph", "recorded", "empty: each graph of the engine has a call_graph of its own"));
    if (std::string const wrong = capture_problem(call, true); !wrong.empty()) return raise(wrong);
    record_.begin_recording();
    joint_launch const all(record_);
    make(calls);
    std::string const problem = recording_problem(call);
    joined_ = problem.empty();
    return raise(problem);
  }

  /// Prepares one launch of the engine's graph that holds calls of `record_into`: makes `calls()` without
  /// launching them, and enqueues their lists. They are the recorded calls in the same order, with other
  /// lists. Launch the graph next, on the same stream. If that launch fails, call take_back(). Cost: one
  /// launch for up to 1,000 numbers in lists.
  template <class Calls> status update(Calls calls) {
    constexpr char const* call = "update";
    if (!joined_)
      return raise(
          refusal(call, "graph", "empty", "part of a graph that the engine has captured (call record_into)"));
    if (std::string const wrong = capture_problem(call, false); !wrong.empty()) return raise(wrong);
    record_.begin_replay();
    joint_launch all(record_);
    make(calls);
    std::string problem = record_.end();
    if (problem.empty()) {
      write_lists();
      check(call, "a launch", executor_.error(), problem);
    }
    all.launched = problem.empty();
    return raise(problem);
  }

  /// Takes back on the host the calls of the last `update`, because the launch that they prepared failed. No
  /// other call may come in between.
  void take_back() { record_.take_back(); }

  /// The graph that `record` captured; null before, and after record_into.
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
      check("record", "cudaStreamBeginCapture",
            cudaStreamBeginCapture(g.executor_.stream(), cudaStreamCaptureModeThreadLocal), problem);
    }
    ~capture() {
      if (!problem.empty()) return;
      check("record", "cudaStreamEndCapture",
            cudaStreamEndCapture(this->to.executor_.stream(), &this->to.graph_), problem);
    }
    std::string& problem;
  };

  /// Makes the calls with the record attached.
  template <class Calls> void make(Calls& calls) {
    attachment const calls_go_here(*this);
    calls();
  }
  /// Why the calls that were recorded cannot be launched; empty if they can.
  std::string recording_problem(char const* call) {
    std::string problem = record_.end();
    for (Executor const* e : callers_) {
      if (problem.empty()) check(call, "a launch", e->error(), problem);
    }
    return problem;
  }

  static void check(char const* during, char const* call, cudaError_t e, std::string& problem) {
    if (e == cudaSuccess) return;
    cudaGetLastError();  // `problem` tells it; later launches must not see it
    problem = refusal(during, message("result of ", call), cudaGetErrorString(e), "cudaSuccess");
  }
  /// Why the stream is in the wrong state for `call`, which needs it captured or not; empty if it is right.
  std::string capture_problem(char const* call, bool captured) const {
    cudaStreamCaptureStatus now = cudaStreamCaptureStatusNone;
    std::string problem;
    check(call, "cudaStreamIsCapturing", cudaStreamIsCapturing(executor_.stream(), &now), problem);
    if (!problem.empty()) return problem;
    if (captured && now != cudaStreamCaptureStatusActive)
      return refusal(call, "stream", "in no valid capture", "in one that the engine has begun");
    if (!captured && now != cudaStreamCaptureStatusNone)
      return refusal(call, "stream", "in a capture", "in none, because the lists are no part of the graph");
    return {};
  }
  /// Enqueues the lists of the calls made last.
  void write_lists() { executor_.write(static_cast<std::uint32_t*>(places_.data()), record_.numbers()); }
  /// Enqueues the lists and launches the graph. Returns why that failed, or an empty string.
  std::string launch(char const* during, joint_launch& all) {
    auto const current = executor_.on_device();
    write_lists();
    std::string problem;
    check(during, "cudaGraphLaunch", cudaGraphLaunch(ready_, executor_.stream()), problem);
    all.launched = problem.empty();
    return problem;
  }
  void forget() {
    if (ready_ != nullptr) cudaGraphExecDestroy(ready_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    ready_ = nullptr;
    graph_ = nullptr;
    joined_ = false;
  }

  Executor& executor_;
  std::vector<Executor*> callers_;
  typename Executor::memory places_;
  call_record record_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t ready_ = nullptr;
  bool joined_ = false;  ///< the recorded calls are part of an engine's graph
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
