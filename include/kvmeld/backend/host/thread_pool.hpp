// SPDX-License-Identifier: Apache-2.0
// The threads that a host executor shares tiles over: those of the engine, or a small pool.
#pragma once

#include <kvmeld/backend/host/processors.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/types.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>

#if defined(__unix__) || defined(__APPLE__)
#define KVMELD_POSIX_THREADS 1
#include <pthread.h>
#include <signal.h>
#endif

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Refers to a callable that must outlive it, and calls it.
template <class... Args> class call_ref {
public:
  /// Refers to `f`, which is called as f(args...).
  template <class F>
  explicit call_ref(F const& f)
      : f_(&f), call_([](void const* g, Args... args) { (*static_cast<F const*>(g))(args...); }) {
    static_assert(std::is_class_v<F>, "kvmeld: pass a lambda or an object, not a function");
  }
  /// Calls it.
  void operator()(Args... args) const { call_(f_, args...); }

private:
  void const* f_;
  void (*call_)(void const*, Args...);
};
/// The body of a parallel loop: body(i) does part i.
using part_ref = call_ref<std::uint32_t>;

namespace detail {
/// Callables that may be empty, such as std::function.
template <class F> using tells_emptiness = decltype(std::declval<F const&>().operator bool());
}  // namespace detail

/// An engine's loop over its threads. A call f(count, body) calls body(i) exactly once for every i < count.
/// Order and threads are free, and the calls need not run at the same time. f returns when all of them have
/// returned. The body throws nothing, and must not fork. Copies share the callable.
class parallel_for {
public:
  /// Holds no loop, and must not be called.
  parallel_for() = default;
  /// Holds `f`, unless it is empty itself. `f` is called through a const reference. Executors that share it
  /// may call it at the same time, from the threads that use them.
  template <class F, std::enable_if_t<std::is_invocable_v<F const&, std::uint32_t, part_ref>, int> = 0>
  parallel_for(F f) {
    if constexpr (std::is_pointer_v<F>) {
      if (f == nullptr) return;
    } else if constexpr (contract::allows<detail::tells_emptiness, F>) {
      if (!f.operator bool()) return;
    }
    f_ = std::make_shared<F>(std::move(f));
    call_ = [](void const* g, std::uint32_t count, part_ref body) {
      (*static_cast<F const*>(g))(count, body);
    };
  }
  /// Whether there is a callable.
  explicit operator bool() const { return f_ != nullptr; }
  /// Calls it.
  void operator()(std::uint32_t count, part_ref body) const { call_(f_.get(), count, body); }

private:
  std::shared_ptr<void const> f_;
  void (*call_)(void const*, std::uint32_t, part_ref) = nullptr;
};

namespace detail {

/// Tells the processor that this is a waiting loop.
inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
  asm volatile("isb");
#endif
}

/// Spins until done() is true, for 20 us at most. Spinning is cheaper than sleeping for short waits, because
/// a sleeping thread takes longer to wake. Returns whether done() became true.
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

/// The number of forks that led from the process of the first call to this process. Each fork leaves the
/// parent's threads behind.
inline std::uint32_t forks() {
#if defined(KVMELD_POSIX_THREADS)
  // Nothing here is locked while it is made: a fork at that moment would leave the child with the lock. Two
  // threads may both register, and forks then count twice, which makes no difference.
  static std::atomic<std::uint32_t> count{0};
  static std::atomic<bool> registered{false};
  if (!registered.load(std::memory_order_acquire)) {
    pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1); });
    registered.store(true, std::memory_order_release);
  }
  return count.load(std::memory_order_relaxed);
#else
  return 0;
#endif
}

#if defined(KVMELD_POSIX_THREADS)
/// A thread that may be refused without an exception. It blocks signals from outside, which are for the
/// engine's threads. Faults such as SIGSEGV reach the engine's handlers.
class joined_thread {
public:
  /// Starts a thread that calls (f->*Run)(). Returns whether the system granted it.
  template <auto Run, class F> bool start(F* f) {
    sigset_t most, before;
    sigfillset(&most);
    for (int const fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF})
      sigdelset(&most, fault);
    pthread_sigmask(SIG_SETMASK, &most, &before);
    bool const granted = pthread_create(
                             &thread_, nullptr,
                             [](void* self) -> void* {
                               (static_cast<F*>(self)->*Run)();
                               return nullptr;
                             },
                             f) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
#if defined(__linux__)
    if (granted) pthread_setname_np(thread_, "kvmeld");
#endif
    return granted;
  }
  /// Waits for its end.
  void join() { pthread_join(thread_, nullptr); }

private:
  pthread_t thread_{};
};
#else
/// A thread. Where exceptions are on, the system may refuse to start it.
class joined_thread {
public:
  /// Starts a thread that calls (f->*Run)(). Returns whether the system granted it.
  template <auto Run, class F> bool start(F* f) {
#if KVMELD_EXCEPTIONS
    try {
#endif
      thread_ = std::thread([f] { (f->*Run)(); });
#if KVMELD_EXCEPTIONS
    } catch (...) {
      return false;
    }
#endif
    return true;
  }
  /// Waits for its end.
  void join() { thread_.join(); }

private:
  std::thread thread_;
};
#endif

/// Helper threads. They serve one caller at a time. A job is a number of parts. The caller does parts until
/// none is left. Then it waits for the helpers that entered the job. It does not wait for the others, which a
/// busy machine may wake late.
class helpers {
public:
  explicit helpers(std::uint32_t count)
      : wanted_(count), forks_(&forks), born_(forks()), threads_(new (std::nothrow) joined_thread[count]) {}
  helpers(helpers const&) = delete;
  helpers& operator=(helpers const&) = delete;
  ~helpers() {
    {
      std::lock_guard<std::mutex> const lock(sleep_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::uint32_t i = 0; i < started_; ++i) threads_[i].join();
  }

  /// Whether a fork left the threads in the parent process. Then this object must be neither used nor
  /// destroyed. Asks the library that made the object: each has a count of its own.
  bool lost() const { return born_ != forks_(); }

  /// Runs a job. Returns false, having done nothing, if the helpers are busy with another.
  bool run(std::uint32_t count, part_ref body) noexcept {
    if (busy_.exchange(true, std::memory_order_acquire)) return false;
    while (threads_ != nullptr && started_ < wanted_ && threads_[started_].start<&helpers::help>(this))
      ++started_;
    body_ = &body;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    gate_.fetch_add(one_job);  // opens it
    wake_some();
    do_parts();
    std::uint64_t const closed = gate_.fetch_add(one_job) + one_job;
    auto const all_left = [&] { return gate_.load() == (closed & ~inside); };
    if (!spin_until(all_left)) {
      caller_sleeps_.store(true);
      std::unique_lock<std::mutex> lock(leave_);
      left_.wait(lock, all_left);
      caller_sleeps_.store(false);
    }
    busy_.store(false, std::memory_order_release);
    return true;
  }

private:
  // The gate counts in two halves. The upper half counts openings and closings: it is odd while a job is
  // open. The lower half counts the helpers inside the job.
  static constexpr std::uint64_t one_job = std::uint64_t{1} << 32;
  static constexpr std::uint64_t inside = one_job - 1;
  static std::uint32_t job_of(std::uint64_t gate) { return static_cast<std::uint32_t>(gate >> 32); }

  void do_parts() {
    for (std::uint64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < count_;
         i = next_.fetch_add(1, std::memory_order_relaxed))
      (*body_)(static_cast<std::uint32_t>(i));
  }

  /// Wakes up to two sleeping helpers. Each of them wakes two more while parts are left. A wake-up may be
  /// missed: the job is then done by fewer threads.
  void wake_some() {
    std::uint32_t const n = min_of(2u, min_of(count_ - 1, sleepers_.load()));
    for (std::uint32_t i = 0; i < n; ++i) wake_.notify_one();
  }

  /// The life of a helper.
  void help() noexcept {
    std::uint32_t last = 0;  // the job that this helper saw last
    auto const wanted = [&] {
      std::uint32_t const job = job_of(gate_.load());
      return (job % 2 == 1 && job != last) || stopping_;
    };
    for (;;) {
      if (!spin_until(wanted)) {
        std::unique_lock<std::mutex> lock(sleep_);
        sleepers_.fetch_add(1);
        wake_.wait(lock, wanted);
        sleepers_.fetch_sub(1);
      }
      if (stopping_) return;
      std::uint64_t gate = gate_.load();
      while (job_of(gate) % 2 == 1 && job_of(gate) != last && !gate_.compare_exchange_weak(gate, gate + 1)) {}
      // The job was closed, or this helper has worked on it already.
      if (job_of(gate) % 2 == 0 || job_of(gate) == last) continue;
      last = job_of(gate);
      if (next_.load(std::memory_order_relaxed) < count_) wake_some();
      do_parts();
      std::uint64_t const now = gate_.fetch_sub(1) - 1;
      if (job_of(now) % 2 == 0 && (now & inside) == 0 && caller_sleeps_.load()) {
        std::lock_guard<std::mutex> const lock(leave_);
        left_.notify_one();
      }
    }
  }

  std::uint32_t const wanted_;
  std::uint32_t (*const forks_)();
  std::uint32_t const born_;
  std::atomic<bool> busy_{false}, stopping_{false}, caller_sleeps_{false};
  std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<std::uint64_t> next_{0}, gate_{0};
  std::uint32_t count_ = 0;  // of the job
  part_ref const* body_ = nullptr;
  std::mutex sleep_, leave_;  // two: the caller never waits for a helper that falls asleep
  std::condition_variable wake_, left_;
  std::unique_ptr<joined_thread[]> threads_;
  std::uint32_t started_ = 0;
};

}  // namespace detail

/// A parallel_for with its own threads. The threads start when a loop first needs them, and end with the last
/// copy of the pool. An idle thread spins for 20 us at most, and then sleeps.
///
/// The caller also does parts. It waits only for threads that entered its loop. A loop inside a part runs on
/// its caller's thread alone, and so does a loop that starts while another thread's loop runs. Safe to call
/// from several threads. A body that throws ends the program. After a fork, the child's pool starts new
/// threads. If the system grants fewer threads, the loop runs on those. Threads inherit affinity and priority
/// from the thread that runs the first loop.
class thread_pool {
public:
  /// `threads` counts the caller, largest::threads at most; 0: one for each processor that the calling thread
  /// may run on, but no more than the CPU quota of a container grants.
  explicit thread_pool(std::uint32_t threads = 0)
      : state_(std::make_shared<state>(
            min_of(threads == 0 ? detail::usable_processors() : threads, largest::threads))) {}

  /// Threads that work on a loop, the caller included.
  std::uint32_t size() const { return state_->threads; }

  /// Calls body(i) once for every i < count, and returns when all calls have returned.
  void operator()(std::uint32_t count, part_ref body) const noexcept {
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
    /// The helpers of this process; null if there is no memory for them. Helpers that a fork left behind are
    /// abandoned.
    detail::helpers* crew() {
      detail::helpers* h = now.load(std::memory_order_acquire);
      if (h != nullptr && !h->lost()) return h;
      std::unique_ptr<detail::helpers> fresh(new (std::nothrow) detail::helpers(threads - 1));
      if (fresh == nullptr) return nullptr;
      if (!now.compare_exchange_strong(h, fresh.get())) return h;
      return fresh.release();
    }
    std::uint32_t const threads;
    std::atomic<detail::helpers*> now{nullptr};
  };
  std::shared_ptr<state> state_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld

#undef KVMELD_POSIX_THREADS
