// Timing by repetition, and loops over the threads that the library uses too.
#pragma once

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

/// f(i) for all i < n over `threads` threads, in equal contiguous parts.
template <class F> void parallel_for(std::uint32_t threads, std::int64_t n, F f) {
#if defined(_OPENMP)
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(threads)) if (threads > 1 && n > 1)
#else
  (void)threads;
#endif
  for (std::int64_t i = 0; i < n; ++i) f(i);
}

}  // namespace kvmeld_bench
