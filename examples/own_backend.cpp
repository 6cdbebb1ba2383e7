// A backend of one's own: teams of several threads on the host. What kvmeld computes is written once, for any
// team; here is a team, an executor that launches phases on it, and the proof that both mean what the host
// backend means.
#include "all_printed.h"
#include "support.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <mutex>
#include <thread>
#include <vector>

// What the lanes of one team share: a place to meet, a number each for collective calls, scratch.
class meeting_point {
public:
  meeting_point(std::uint32_t lanes, std::byte* memory) : numbers(lanes), scratch(memory) {}
  void meet() {
    std::unique_lock<std::mutex> lock(mutex_);
    std::uint64_t const turn = turn_;
    if (++here_ == numbers.size()) {
      here_ = 0;
      ++turn_;
      all_here_.notify_all();
    } else {
      all_here_.wait(lock, [&] { return turn_ != turn; });
    }
  }

  std::vector<std::uint32_t> numbers;
  std::mutex counting;
  std::byte* scratch;

private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::uint64_t turn_ = 0;
  std::size_t here_ = 0;
};

// The team as one of its lanes sees it: everything that a phase may ask for.
class thread_team {
public:
  thread_team(meeting_point& shared, std::uint32_t lane)
      : shared_(shared), lane_(lane), next_(shared.scratch) {}

  std::uint32_t lane() const { return lane_; }
  std::uint32_t lanes() const { return static_cast<std::uint32_t>(shared_.numbers.size()); }
  void sync() const { shared_.meet(); }

  template <class Op> std::uint32_t reduce(std::uint32_t x, Op op) const {
    shared_.numbers[lane_] = x;
    sync();
    std::uint32_t all = shared_.numbers[0];
    for (std::uint32_t i = 1; i < lanes(); ++i) all = op(all, shared_.numbers[i]);
    sync();  // the next call writes the numbers anew
    return all;
  }
  kvmeld::scan_result scan(std::uint32_t x) const {
    shared_.numbers[lane_] = x;
    sync();
    kvmeld::scan_result sum{0, 0};
    for (std::uint32_t i = 0; i < lanes(); ++i) {
      if (i == lane_) sum.before = sum.total;
      sum.total += shared_.numbers[i];
    }
    sync();
    return sum;
  }
  template <class F> void for_each(std::uint32_t n, F f) const {
    for (std::uint32_t i = lane_; i < n; i += lanes()) f(i);
  }
  std::uint32_t fetch_add(std::uint32_t* where, std::uint32_t x) const {
    std::lock_guard<std::mutex> const one_at_a_time(shared_.counting);
    std::uint32_t const before = *where;
    *where += x;
    return before;
  }
  void reuse_scratch() const { next_ = shared_.scratch; }
  template <class T>
  T* scratch(std::size_t n) const {  // all lanes ask in the same order, so each counts for itself
    std::byte* const piece = next_;
    next_ += kvmeld::scratch_size(n * sizeof(T));
    return reinterpret_cast<T*>(piece);
  }

private:
  meeting_point& shared_;
  std::uint32_t lane_;
  mutable std::byte* next_;
};

// The executor: memory, copies in order with launches, and launches. All has happened when a call returns.
class thread_executor : public kvmeld::executor_base {
public:
  using memory = kvmeld::host_memory;
  static constexpr bool immediate = true;

  explicit thread_executor(std::uint32_t lanes) : lanes_(lanes) {}

  memory allocate(std::size_t bytes) const { return memory(bytes); }
  void clear(void* to, std::size_t bytes) const { std::memset(to, 0, bytes); }
  void upload(void* to, void const* host, std::size_t bytes) const { std::memcpy(to, host, bytes); }
  void download(void* host, void const* from, std::size_t bytes) const { std::memcpy(host, from, bytes); }
  kvmeld::index_list stage(kvmeld::index_list list) const { return list; }
  std::uint32_t workers() const { return 1; }

  template <class Phase, class Source>
  void run(Phase const& phase, kvmeld::shape const& extent, std::uint32_t items, Source const& source) {
    std::size_t const bytes = phase.scratch_bytes(static_cast<int>(lanes_));
    if (scratch_.size() < bytes) scratch_ = memory(bytes);
    if (scratch_.size() < bytes)
      return lacks(bytes);  // no memory: the rehearsal tells, and nothing is launched
    if (rehearses()) return;
    meeting_point shared(lanes_, static_cast<std::byte*>(scratch_.data()));
    auto const serve = [&](std::uint32_t lane) {
      for (std::uint32_t item = 0; item < items; ++item) {
        if (source.idle(item)) continue;
        for (std::uint32_t index = 0; index < phase.tiles(extent); ++index) {
          phase(thread_team(shared, lane), kvmeld::tile{source.where(item), item, index});
          shared.meet();  // the next tile uses the same scratch
        }
      }
    };
    std::vector<std::thread> others;
    for (std::uint32_t lane = 1; lane < lanes_; ++lane) others.emplace_back(serve, lane);
    serve(0);
    for (std::thread& t : others) t.join();
  }

private:
  std::uint32_t lanes_;
  memory scratch_;
};

// Compresses 1,000 tokens on an executor and returns the entries left per head; K and V are the engine's.
template <class Executor> std::uint32_t shrink(Executor executor, examples::engine_tensors& engine) {
  kvmeld::merged_cache cache{executor, kvmeld::preset::chelsea::llama3(),
                             kvmeld::kv{engine.keys(), engine.values()},
                             kvmeld::cache_options{engine.extent}};
  cache.open(0, 1000);
  cache.compress({0}, kvmeld::budget::ratio(0.2));
  return cache.longest(0);
}

int main() {
  examples::engine_tensors mine, theirs;
  std::uint32_t const left = shrink(thread_executor(3), mine);
  std::uint32_t const expected = shrink(kvmeld::host_executor(1, kvmeld::tuning::off), theirs);
  bool const same = left == expected && mine.k == theirs.k && mine.v == theirs.v;
  std::cout << left << " entries per head on teams of three threads, K and V "
            << (same ? "the same" : "other") << " bits as on the host backend\n";
  return same && all_printed() ? 0 : 1;
}
