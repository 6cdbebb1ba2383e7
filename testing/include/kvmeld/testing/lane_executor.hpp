// SPDX-License-Identifier: Apache-2.0
// An executor whose teams have several lanes, each of them a thread behind a barrier that checks them: what a
// block of a device is, on a machine without one.
#pragma once

#include <kvmeld/backend/host/host_executor.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/exec/team.hpp>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace testing {

/// Collects what goes wrong on the lanes of an executor. Threads may add to it at the same time.
class findings {
public:
  /// Adds a finding.
  void add(std::string const& text) {
    std::lock_guard<std::mutex> const lock(mutex_);
    all_.push_back(text);
  }
  /// The findings so far, in the order in which they came.
  std::vector<std::string> all() const {
    std::lock_guard<std::mutex> const lock(mutex_);
    return all_;
  }

private:
  mutable std::mutex mutex_;
  std::vector<std::string> all_;
};

}  // namespace testing

namespace detail {

/// Adds a finding to `to`, or prints it and ends the program if there is none.
inline void report_finding(testing::findings* to, std::string const& text) {
  if (to != nullptr) return to->add(text);
  std::fprintf(stderr, "%s\n", text.c_str());
  std::abort();
}

/// Where a lane is, and a digest of every team call that it has made since the launch began.
struct lane_place {
  char const* operation = "";
  char const* file = "";
  int line = 0;
  std::uint64_t calls = 0;
  std::uint64_t history = 0;

  void note(char const* op, char const* where, int number, std::uint64_t argument) {
    operation = op;
    file = where;
    line = number;
    ++calls;
    // All lanes run the same code, so equal texts are the same text.
    auto const texts = reinterpret_cast<std::uintptr_t>(op) * 31 + reinterpret_cast<std::uintptr_t>(where);
    for (std::uint64_t const x : {static_cast<std::uint64_t>(number), argument, std::uint64_t{texts}})
      history = (history ^ x) * 0x9E3779B97F4A7C15ull + 0x632BE59BD9B4E019ull;
  }
  std::string text() const { return message(operation, " at ", file, ":", line, " (team call ", calls, ")"); }
};

/// A barrier for the lanes of a team. It checks that all of them arrive from the same place, having made the
/// same calls. It serves threads that outnumber the cores, and is clean under ThreadSanitizer.
class checking_barrier {
public:
  checking_barrier(std::uint32_t lanes, testing::findings* to) : places_(lanes), to_(to) {}

  // Waits until every lane is here. After a mismatch nothing waits any more, so that the launch ends.
  void arrive(std::uint32_t lane, lane_place const& where) {
    if (places_.size() == 1 || broken_.load(std::memory_order_acquire)) return;
    places_[lane] = where;
    std::uint32_t const now = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == places_.size()) {
      compare();
      arrived_.store(0, std::memory_order_relaxed);
      {
        std::lock_guard<std::mutex> const lock(mutex_);
        generation_.store(now + 1, std::memory_order_release);
      }
      all_here_.notify_all();
      return;
    }
    // Lanes that wait must not take turns with other programs: a yield may cost a whole slice of time.
    for (int i = 0; i < 20; ++i) {
      if (generation_.load(std::memory_order_acquire) != now) return;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    all_here_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != now; });
  }

  bool broken() const { return broken_.load(std::memory_order_acquire); }
  void mend() { broken_.store(false, std::memory_order_release); }

private:
  void compare() {
    for (std::size_t lane = 1; lane < places_.size(); ++lane) {
      if (places_[lane].calls == places_[0].calls && places_[lane].history == places_[0].history) continue;
      broken_.store(true, std::memory_order_release);
      report_finding(to_, message("the lanes of a team are not at the same place: lane 0 is in ",
                                  places_[0].text(), ", lane ", lane, " is in ", places_[lane].text()));
      return;
    }
  }

  std::vector<lane_place> places_;
  testing::findings* to_;
  std::atomic<std::uint32_t> arrived_{0};
  std::atomic<std::uint32_t> generation_{0};
  std::atomic<bool> broken_{false};
  std::mutex mutex_;
  std::condition_variable all_here_;
};

/// Threads that live as long as their executor. The caller is number 0; the others wait for the next launch.
class thread_pool {
public:
  explicit thread_pool(std::uint32_t threads) {
    for (std::uint32_t number = 1; number < threads; ++number) {
      threads_.emplace_back([this, number] { serve(number); });
    }
  }
  thread_pool(thread_pool const&) = delete;
  thread_pool& operator=(thread_pool const&) = delete;
  ~thread_pool() {
    {
      std::lock_guard<std::mutex> const lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  // body(number) on every thread; returns when all have returned.
  void run(std::function<void(std::uint32_t)> const& body) {
    {
      std::lock_guard<std::mutex> const lock(mutex_);
      body_ = &body;
      running_ = threads_.size();
      ++launch_;
    }
    wake_.notify_all();
    body(0);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return running_ == 0; });
  }

private:
  void serve(std::uint32_t number) {
    for (std::uint64_t seen = 0;;) {
      std::function<void(std::uint32_t)> const* body = nullptr;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || launch_ != seen; });
        if (stop_) return;
        seen = launch_;
        body = body_;
      }
      (*body)(number);
      std::lock_guard<std::mutex> const lock(mutex_);
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::function<void(std::uint32_t)> const* body_ = nullptr;
  std::size_t running_ = 0;
  std::uint64_t launch_ = 0;
  bool stop_ = false;
};

/// What the lanes of one team share: the barrier, the values of collective calls, the scratch.
class team_board {
public:
  team_board(std::uint32_t lanes, testing::findings* to) : barrier(lanes, to), log(to) {
    for (auto& v : values) v.resize(lanes);
  }

  static constexpr std::size_t guard = 1024;
  static constexpr unsigned char guard_byte = 0xA5;

  // `bytes` of scratch with a guard on either side; the capacity never grows beyond what was declared.
  void prepare(std::size_t bytes) {
    declared = bytes;
    std::size_t const whole = bytes + 2 * guard;
    if (memory.size() < whole) memory = host_memory(whole);
    if (memory.size() < whole)
      report_finding(nullptr, "no memory for " + std::to_string(whole) + " bytes of scratch");
    std::memset(memory.data(), guard_byte, whole);
    poison();
  }
  void poison() { std::memset(scratch(), poison_byte, declared); }
  std::byte* scratch() { return static_cast<std::byte*>(memory.data()) + guard; }
  void check_guards() {
    auto const* const bytes = static_cast<unsigned char const*>(memory.data());
    for (std::size_t i = 0; i < guard; ++i) {
      if (bytes[i] == guard_byte && bytes[guard + declared + i] == guard_byte) continue;
      report_finding(log, "a phase wrote beyond the " + std::to_string(declared) +
                              " bytes of scratch it declared");
      return;
    }
  }

  checking_barrier barrier;
  testing::findings* log;
  unsigned char poison_byte = 0xFF;
  std::vector<std::uint32_t> values[2];  // alternate, so that one barrier per collective call is enough
  host_memory memory;
  std::size_t declared = 0;
};

/// The team of kvmeld/exec/team.hpp as one lane sees it. The places of calls come from default arguments.
class lane_team {
public:
  lane_team(team_board& board, std::uint32_t lane, std::uint32_t lanes)
      : board_(board), lane_(lane), lanes_(lanes) {}
  lane_team(lane_team const&) = delete;
  lane_team& operator=(lane_team const&) = delete;

  std::uint32_t lane() const { return lane_; }
  std::uint32_t lanes() const { return lanes_; }

  void sync(char const* file = __builtin_FILE(), int line = __builtin_LINE()) const {
    place_.note("sync", file, line, 0);
    board_.barrier.arrive(lane_, place_);
  }
  template <class Op>
  std::uint32_t reduce(std::uint32_t x, Op op, char const* file = __builtin_FILE(),
                       int line = __builtin_LINE()) const {
    std::uint32_t const* const all = exchange("reduce", x, file, line);
    std::uint32_t result = load(all);
    for (std::uint32_t i = 1; i < lanes_; ++i) result = op(result, load(all + i));
    return result;
  }
  scan_result scan(std::uint32_t x, char const* file = __builtin_FILE(), int line = __builtin_LINE()) const {
    std::uint32_t const* const all = exchange("scan", x, file, line);
    scan_result result{0, 0};
    for (std::uint32_t i = 0; i < lanes_; ++i) {
      if (i == lane_) result.before = result.total;
      result.total += load(all + i);
    }
    return result;
  }
  // No barrier, but noted: a lane that leaves one out is found at the next barrier.
  template <class F>
  void for_each(std::uint32_t n, F f, char const* file = __builtin_FILE(),
                int line = __builtin_LINE()) const {
    place_.note("for_each", file, line, n);
    for (std::uint32_t i = lane_; i < n; i += lanes_) f(i);
  }
  std::uint32_t fetch_add(std::uint32_t* where, std::uint32_t x) const {
    return __atomic_fetch_add(where, x, __ATOMIC_RELAXED);
  }
  template <class T>
  T* scratch(std::size_t n, char const* file = __builtin_FILE(), int line = __builtin_LINE()) const {
    place_.note("scratch", file, line, n * sizeof(T));
    std::size_t const begin = used_;
    used_ += scratch_size(n * sizeof(T));
    if (used_ > board_.declared && lane_ == 0) {
      // What lies beyond the guard belongs to somebody else.
      report_finding(used_ > board_.declared + team_board::guard ? nullptr : board_.log,
                     "scratch at " + place_.text() + ": " + std::to_string(used_) + " bytes asked for, " +
                         std::to_string(board_.declared) + " declared");
    }
    return reinterpret_cast<T*>(board_.scratch() + begin);
  }

  /// Poisons the scratch anew. The last call has to have been a barrier, because teams of devices make none
  /// here.
  void reuse_scratch() const {
    if (used_ != 0 && std::string(place_.operation) != "sync")
      report_finding(board_.log, "reuse_scratch without a barrier, at " + place_.text());
    end_tile();
    begin_tile();
  }

  // Called by the executor around a tile.
  void begin_tile() const {
    used_ = 0;
    if (lane_ == 0) board_.poison();
    settle("begin of tile");
  }
  void end_tile() const {
    settle("end of tile");
    if (lane_ == 0) board_.check_guards();
  }

private:
  void settle(char const* what) const {
    place_.note(what, "the executor", 0, 0);
    board_.barrier.arrive(lane_, place_);
  }
  // Atomic: lanes that made different calls are not held at a barrier any more once that was reported.
  static std::uint32_t load(std::uint32_t const* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
  std::uint32_t const* exchange(char const* what, std::uint32_t x, char const* file, int line) const {
    std::uint32_t* const values = board_.values[exchanges_++ % 2].data();
    __atomic_store_n(values + lane_, x, __ATOMIC_RELAXED);
    place_.note(what, file, line, 0);
    board_.barrier.arrive(lane_, place_);
    return values;
  }

  team_board& board_;
  std::uint32_t lane_, lanes_;
  mutable lane_place place_;
  mutable std::size_t used_ = 0;
  mutable std::uint32_t exchanges_ = 0;
};

}  // namespace detail

namespace testing {

/// The order in which a team takes its tiles.
enum class tile_order {
  ascending,   ///< as they are numbered
  descending,  ///< from the last to the first
};

/// Runs phases on `teams` teams of `lanes` lanes each; team i takes every teams-th tile. Scratch is poisoned
/// before every tile, exactly as large as declared, and guarded. Lanes that are not at the same barrier,
/// having shared out the same work, are found. So is scratch that was not declared. Copies share the threads.
/// For tests: it is slow.
class lane_executor : public executor_base {
public:
  using memory = host_memory;
  static constexpr bool immediate = true;

  /// Starts the threads. What goes wrong is added to `to`, which has to outlive the executor; if `to` is
  /// null, it is printed, and the program ends. Bytes of scratch begin as `poison`.
  explicit lane_executor(std::uint32_t lanes, std::uint32_t teams = 1,
                         tile_order order = tile_order::ascending, findings* to = nullptr,
                         unsigned char poison = 0xFF)
      : lanes_(lanes),
        teams_(teams),
        order_(order),
        pool_(std::make_shared<detail::thread_pool>(lanes * teams)) {
    for (std::uint32_t i = 0; i < teams; ++i) {
      boards_.push_back(std::make_shared<detail::team_board>(lanes, to));
      boards_.back()->poison_byte = poison;
    }
  }

  memory allocate(std::size_t bytes) const { return memory(bytes); }
  void clear(void* to, std::size_t bytes) const { std::memset(to, 0, bytes); }
  void upload(void* to, void const* host, std::size_t bytes) const { std::memcpy(to, host, bytes); }
  void download(void* host, void const* from, std::size_t bytes) const { std::memcpy(host, from, bytes); }
  index_list stage(index_list list) const { return list; }
  std::uint32_t workers() const { return teams_; }
  int lanes() const { return static_cast<int>(lanes_); }
  /// Does nothing: scratch is taken at every launch.
  void reserve(std::size_t) {}

  template <class Phase, class Source>
  void run(Phase const& phase, shape const& extent, std::uint32_t items, Source const& source) {
    run_teams(phase, extent, items, source,
              [](detail::team_board& board, std::uint32_t lane, std::uint32_t lanes) {
                return detail::lane_team(board, lane, lanes);
              });
  }

protected:
  // make(board, lane, lanes): the team as one lane sees it.
  template <class Phase, class Source, class Make>
  void run_teams(Phase const& phase, shape const& extent, std::uint32_t items, Source const& source,
                 Make make) {
    std::uint64_t const per_item = phase.tiles(extent);
    std::uint64_t const total = per_item * items;
    if (total == 0) return;
    for (auto const& board : boards_) board->prepare(phase.scratch_bytes(lanes()));
    if (rehearses()) return;
    for (auto const& board : boards_) board->barrier.mend();
    pool_->run([&](std::uint32_t thread) {
      std::uint32_t const number = thread / lanes_;
      auto const team = make(*boards_[number], thread % lanes_, lanes_);
      for (std::uint64_t i = number; i < total; i += teams_) {
        std::uint64_t const n = order_ == tile_order::ascending ? i : total - 1 - i;
        auto const item = static_cast<std::uint32_t>(n / per_item);
        if (source.idle(item)) continue;
        team.begin_tile();
        phase(team, tile{source.where(item), item, static_cast<std::uint32_t>(n % per_item)});
        team.end_tile();
      }
    });
  }

private:
  std::uint32_t lanes_, teams_;
  tile_order order_;
  std::shared_ptr<detail::thread_pool> pool_;
  std::vector<std::shared_ptr<detail::team_board>> boards_;
};

}  // namespace testing
}  // namespace KVMELD_ABI
}  // namespace kvmeld
