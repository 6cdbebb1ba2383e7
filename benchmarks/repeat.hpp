// Timing by repetition, and loops over the threads that the library uses too.
#pragma once

#include <kvmeld/backend/host/thread_pool.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace kvmeld_bench {

/// Median of three runs or more of `body`, each after an untimed `setup`. Repeats up to 25 times while the
/// timed part lasts less than `target` seconds in all; stops short of three once 15 s have gone by.
template <class Setup, class Body> double median_seconds(double target, Setup setup, Body body) {
  std::vector<double> seconds;
  double total = 0.0;
  do {
    setup();
    auto const begin = std::chrono::steady_clock::now();
    body();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    total += seconds.back();
  } while (total < 15.0 && (seconds.size() < 3 || (total < target && seconds.size() < 25)));
  std::sort(seconds.begin(), seconds.end());
  std::size_t const n = seconds.size();
  return 0.5 * (seconds[(n - 1) / 2] + seconds[n / 2]);
}

/// f(i) for all i < n in `threads` equal contiguous parts, each in a thread as far as there are processors.
template <class F> void parallel_for(std::uint32_t threads, std::int64_t n, F f) {
  static kvmeld::thread_pool const pool;
  auto const part = [&](std::uint32_t t) {
    for (std::int64_t i = n * t / threads; i < n * (t + 1) / threads; ++i) f(i);
  };
  pool(threads, kvmeld::part_ref(part));
}

}  // namespace kvmeld_bench
