// The engine's threads. The caches use the same ones.
#pragma once

#include <kvmeld/backend/host/host_executor.hpp>
#include <kvmeld/backend/host/thread_pool.hpp>

#include <cstddef>
#include <cstdint>

namespace tiny_llama {

/// The pool of this process. It is never destroyed: a program may end while a loop runs.
inline kvmeld::thread_pool& pool() {
  static kvmeld::thread_pool& threads = *new kvmeld::thread_pool;
  return threads;
}

/// Called before the first engine is made. 0: as many threads as there are processors.
inline void use_threads(int count) { pool() = kvmeld::thread_pool(static_cast<std::uint32_t>(count)); }

/// What caches run on.
inline kvmeld::host_executor executor() { return {pool(), pool().size()}; }

/// Splits 0 .. count - 1 into pieces and calls f(first, last) for each. Several pieces run in several
/// threads.
template <class F> void in_pieces(std::size_t count, std::size_t piece, F const& f) {
  if (count == 0) return;
  auto const body = [&](std::uint32_t i) {
    std::size_t const first = i * piece;
    f(first, first + piece < count ? first + piece : count);
  };
  pool()(static_cast<std::uint32_t>((count + piece - 1) / piece), kvmeld::part_ref(body));
}

}  // namespace tiny_llama
