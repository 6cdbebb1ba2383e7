// The threads that a host executor shares tiles over: those of the engine, or a small pool.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <signal.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Refers to a callable that must outlive it, and calls it.
template <class... Args> class call_ref {
public:
  /// Refers to `f`, which is called as f(args...).
  template <class F>
  explicit call_ref(F const& f)
      : f_(&f), call_([](void const* g, Args... args) { (*static_cast<F const*>(g))(args...); }) {}
  /// Calls it.
  void operator()(Args... args) const { call_(f_, args...); }

private:
  void const* f_;
  void (*call_)(void const*, Args...);
};
/// The body of a parallel loop: body(i) does part i.
using part_ref = call_ref<std::uint32_t>;

/// How an engine lends its threads: a callable f of which f(count, body) calls body(i) exactly once for every
/// i < count, in any order, on any threads, and returns when all calls have returned. The calls need not run
/// at the same time. The body throws nothing. Copies share the callable.
class parallel_for {
public:
  /// Empty: must not be called.
  parallel_for() = default;
  /// Holds `f`, which is called as a constant, from one thread at a time for each executor that has it.
  template <class F, std::enable_if_t<std::is_invocable_v<F const&, std::uint32_t, part_ref>, int> = 0>
  parallel_for(F f)
      : f_(std::make_shared<F const>(std::move(f))),
        call_([](void const* g, std::uint32_t count, part_ref body) {
          (*static_cast<F const*>(g))(count, body);
        }) {}
  /// Whether there is a callable.
  explicit operator bool() const { return call_ != nullptr; }
  /// Calls it.
  void operator()(std::uint32_t count, part_ref body) const { call_(f_.get(), count, body); }

private:
  std::shared_ptr<void const> f_;
  void (*call_)(void const*, std::uint32_t, part_ref) = nullptr;
};

namespace detail {

/// Tells the processor that a loop waits.
inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
  asm volatile("isb");
#endif
}

/// Waits for done() without giving up the processor, for 20 us at most: threads that sleep take longer to
/// wake. Returns whether done() was seen.
template <class Done> bool spin_until(Done const& done) {
  using clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds patience(20);
  if (done()) return true;
  auto const end = clock::now() + patience;
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      pause_briefly();
    }
  } while (clock::now() < end);
  return done();
}

/// How often this process is the child of a fork, counted from the first call on. Threads of before are gone.
inline std::uint32_t forks() {
#if defined(__unix__) || defined(__APPLE__)
  static std::atomic<std::uint32_t> count{0};
  static int const asked = pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1); });
  (void)asked;
  return count.load(std::memory_order_relaxed);
#else
  return 0;
#endif
}

/// The processors that this process may use.
inline std::uint32_t usable_processors() {
#if defined(__linux__) && defined(CPU_COUNT)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
    return static_cast<std::uint32_t>(CPU_COUNT(&set));
#endif
  return max_of(1u, std::thread::hardware_concurrency());
}

/// Threads that help one caller at a time. A job has parts. The caller does parts until none is left, and
/// waits for the helpers that still have one. It never waits for a helper that has not begun: a busy machine
/// may wake it late.
class helpers {
public:
  explicit helpers(std::uint32_t count) : wanted_(count), born_(forks()) {}
  helpers(helpers const&) = delete;
  helpers& operator=(helpers const&) = delete;
  ~helpers() {
    {
      std::lock_guard<std::mutex> const lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  /// Whether the threads were left behind by a fork. Then the object must not be used nor destroyed.
  bool lost() const { return born_ != forks(); }

  /// Runs a job; returns false, having done nothing, if the helpers are busy with another.
  bool run(std::uint32_t count, part_ref body) {
    if (busy_.exchange(true, std::memory_order_acquire)) return false;
    struct release {
      explicit release(std::atomic<bool>& b) : busy(b) {}
      release(release const&) = delete;
      release& operator=(release const&) = delete;
      ~release() { busy.store(false, std::memory_order_release); }
      std::atomic<bool>& busy;
    } const at_the_end(busy_);
    if (threads_.empty()) start();
    body_ = &body;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    gate_.fetch_add(one_job);  // opens it
    wake_some();
    do_parts();
    std::uint64_t const closed = gate_.fetch_add(one_job) + one_job;
    auto const all_left = [&] { return gate_.load() == (closed & ~inside); };
    if (spin_until(all_left)) return true;
    caller_sleeps_.store(true);
    std::unique_lock<std::mutex> lock(mutex_);
    left_.wait(lock, all_left);
    caller_sleeps_.store(false);
    return true;
  }

private:
  // The gate: above, the number of times that it was opened or closed, odd while it is open; below, how many
  // helpers are inside.
  static constexpr std::uint64_t one_job = std::uint64_t{1} << 32;
  static constexpr std::uint64_t inside = one_job - 1;
  static std::uint32_t job_of(std::uint64_t gate) { return static_cast<std::uint32_t>(gate >> 32); }

  void do_parts() {
    for (std::uint32_t i = next_.fetch_add(1, std::memory_order_relaxed); i < count_;
         i = next_.fetch_add(1, std::memory_order_relaxed))
      (*body_)(i);
  }

  /// Wakes two sleepers, who wake others. Nobody depends on it.
  void wake_some() {
    std::uint32_t const n = min_of(2u, min_of(count_ - 1, sleepers_.load()));
    for (std::uint32_t i = 0; i < n; ++i) wake_.notify_one();
  }

  /// The life of a helper.
  void help() {
    std::uint32_t last = 0;  // the job that this helper saw last
    auto const wanted = [&] {
      std::uint32_t const job = job_of(gate_.load());
      return (job % 2 == 1 && job != last) || stopping_;
    };
    for (;;) {
      if (!spin_until(wanted)) {
        std::unique_lock<std::mutex> lock(mutex_);
        sleepers_.fetch_add(1);
        wake_.wait(lock, wanted);
        sleepers_.fetch_sub(1);
      }
      if (stopping_) return;
      std::uint64_t gate = gate_.load();
      while (job_of(gate) % 2 == 1 && job_of(gate) != last && !gate_.compare_exchange_weak(gate, gate + 1)) {}
      if (job_of(gate) % 2 == 0 || job_of(gate) == last) continue;  // closed in the meantime
      last = job_of(gate);
      if (next_.load(std::memory_order_relaxed) < count_) wake_some();
      do_parts();
      std::uint64_t const now = gate_.fetch_sub(1) - 1;
      if (job_of(now) % 2 == 0 && (now & inside) == 0 && caller_sleeps_.load()) {
        std::lock_guard<std::mutex> const lock(mutex_);
        left_.notify_one();
      }
    }
  }

  /// Starts the threads, or as many as the system grants. They take no signals: those are the engine's.
  void start() {
#if defined(__unix__) || defined(__APPLE__)
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
#if KVMELD_EXCEPTIONS
    try {
#endif
      threads_.reserve(wanted_);
      while (threads_.size() < wanted_) threads_.emplace_back([this] { help(); });
#if KVMELD_EXCEPTIONS
    } catch (...) {  // no more threads, or no memory for them
    }
#endif
#if defined(__unix__) || defined(__APPLE__)
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
  }

  std::uint32_t const wanted_, born_;
  std::atomic<bool> busy_{false}, stopping_{false}, caller_sleeps_{false};
  std::atomic<std::uint32_t> sleepers_{0}, next_{0};
  std::atomic<std::uint64_t> gate_{0};
  std::uint32_t count_ = 0;  // of the job
  part_ref const* body_ = nullptr;
  std::mutex mutex_;
  std::condition_variable wake_, left_;
  std::vector<std::thread> threads_;
};

}  // namespace detail

/// A parallel_for with threads of its own. Copies share the threads, which start when a loop first needs them
/// and end with the last copy. They spin for 20 us at most when there is nothing to do, and then sleep.
///
/// The calling thread works too, and never waits for a thread that has not begun. A call from within a part,
/// or while another thread's loop runs, does its parts on the calling thread alone. Safe to call from several
/// threads. In the child of a fork, a pool starts new threads. Where the system grants no more threads, the
/// loop runs on fewer.
class thread_pool {
public:
  /// `threads` counts the caller; 0: one for each processor that this process may use.
  explicit thread_pool(std::uint32_t threads = 0)
      : state_(std::make_shared<state>(threads == 0 ? detail::usable_processors() : threads)) {}

  /// Threads that work on a loop, the caller included.
  std::uint32_t size() const { return state_->threads; }

  /// Calls body(i) once for every i < count, and returns when all calls have returned. The body must not
  /// throw.
  void operator()(std::uint32_t count, part_ref body) const {
    detail::helpers* const crew = count > 1 && state_->threads > 1 ? state_->crew() : nullptr;
    if (crew != nullptr && crew->run(count, body)) return;
    for (std::uint32_t i = 0; i < count; ++i) body(i);
  }

private:
  struct state {
    explicit state(std::uint32_t n) : threads(n) {}
    state(state const&) = delete;
    state& operator=(state const&) = delete;
    ~state() {
      detail::helpers* const h = now.load();
      if (h != nullptr && !h->lost()) delete h;
    }
    /// The helpers of this process; null if there is no memory for them. Those of a process that forked are
    /// left as they are.
    detail::helpers* crew() {
      detail::helpers* h = now.load(std::memory_order_acquire);
      if (h != nullptr && !h->lost()) return h;
      std::unique_ptr<detail::helpers> fresh(new (std::nothrow) detail::helpers(threads - 1));
      if (fresh == nullptr || !now.compare_exchange_strong(h, fresh.get()))
        return fresh == nullptr ? nullptr : h;
      return fresh.release();
    }
    std::uint32_t const threads;
    std::atomic<detail::helpers*> now{nullptr};
  };
  std::shared_ptr<state> state_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
