// A barrier for the lanes of a team that checks that all of them arrive from the same place, having made the
// same calls. It serves threads that outnumber the cores and is clean under ThreadSanitizer.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace support {

// What becomes of a finding: by default it is printed and the program ends. Tests of the barrier itself
// record it.
using finding_handler = void (*)(std::string const&);

inline void print_and_abort(std::string const& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::abort();
}

inline std::atomic<finding_handler>& current_finding_handler() {
  static std::atomic<finding_handler> handler{&print_and_abort};
  return handler;
}

inline void found(std::string const& text) { current_finding_handler().load()(text); }

// Where a lane is, and a digest of every team call it has made since the launch began.
struct place {
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
  std::string text() const {
    std::ostringstream out;
    out << operation << " at " << file << ":" << line << " (team call " << calls << ")";
    return out.str();
  }
};

class checking_barrier {
public:
  explicit checking_barrier(std::uint32_t lanes) : places_(lanes) {}

  // Waits until every lane is here. After a mismatch nothing waits any more, so that a recording test ends.
  void arrive(std::uint32_t lane, place const& where) {
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
    for (int i = 0; i < 200; ++i) {
      if (generation_.load(std::memory_order_acquire) != now) return;
      if (i >= 20) std::this_thread::yield();
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
      std::ostringstream out;
      out << "the lanes of a team are not at the same place: lane 0 is in " << places_[0].text() << ", lane "
          << lane << " is in " << places_[lane].text();
      broken_.store(true, std::memory_order_release);
      found(out.str());
      return;
    }
  }

  std::vector<place> places_;
  std::atomic<std::uint32_t> arrived_{0};
  std::atomic<std::uint32_t> generation_{0};
  std::atomic<bool> broken_{false};
  std::mutex mutex_;
  std::condition_variable all_here_;
};

}  // namespace support
