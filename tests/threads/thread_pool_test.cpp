// Threads of the host backend: every part once, whoever brings the threads; forks, sharing, ends.
#include <kvmeld/backend/host/host_executor.hpp>
#include <kvmeld/backend/host/thread_pool.hpp>
#include <kvmeld/kvmeld.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"
#include "support/sanitizer.hpp"
#include "thread_adapters.hpp"

#if defined(__linux__)
#include <sys/wait.h>
#include <unistd.h>
#endif

// oneTBB hands its tasks from thread to thread in a library that ThreadSanitizer does not see into. This
// hides what runs inside a task too: races between parts show with the other loops. The name is that of the
// functions and not of their file, which a build without line numbers does not know.
extern "C" char const* __tsan_default_suppressions();
extern "C" char const* __tsan_default_suppressions() { return "race:tbb::detail::"; }

namespace thread_pool_cases {

using kvmeld::host_executor;
using kvmeld::part_ref;
using kvmeld::thread_pool;

namespace {

// A loop of a library that ThreadSanitizer does not see into, with the order that every such loop keeps: what
// is written before the loop is seen by its parts, and what the parts write is seen after it. Parts of one
// loop are not ordered among themselves, so that a race between them shows.
template <class Loop> auto seen(Loop loop) {
  return [=](std::uint32_t count, part_ref body) {
    static char begin, end;
    support::release(&begin);
    auto const part = [&](std::uint32_t i) {
      support::acquire(&begin);
      body(i);
      support::release(&end);
    };
    loop(count, part_ref(part));
    support::acquire(&end);
  };
}

// Calls of each part of a loop over `count` parts.
template <class Loop> std::vector<int> calls_of(Loop const& loop, std::uint32_t count) {
  std::vector<std::atomic<int>> calls(count);
  auto const body = [&](std::uint32_t i) { calls.at(i).fetch_add(1); };
  loop(count, part_ref(body));
  return {calls.begin(), calls.end()};
}

// Eight tiles with nothing to do.
struct empty_phase {
  std::uint32_t tiles(kvmeld::shape const&) const { return 8; }
  std::size_t scratch_bytes(int) const { return 64; }
  template <class Team> void operator()(Team const&, kvmeld::tile const&) const {}
};
struct one_track {
  bool idle(std::uint32_t) const { return false; }
  kvmeld::track where(std::uint32_t) const { return {}; }
};

// Threads of this process.
int threads_now() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("Threads:", 0) == 0) return std::stoi(line.substr(8));
  }
  return 0;
}

// Whether there are so many threads soon: one that was joined is counted for a moment longer.
bool soon(int threads) {
  for (int i = 0; i < 2000 && threads_now() != threads; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return threads_now() == threads;
}

// What a cache consists of that an executor filled and compressed.
std::vector<support::byte_list> life(host_executor executor) {
  constexpr kvmeld::shape extent{2, 3, 2, 2, 12, 8, 120};
  support::engine_memory<float> memory(extent);
  kvmeld::cache_options options{};
  options.extent = extent;
  auto policy = kvmeld::preset::chelsea::with_schedule({0.45, 0.05, 3, 0.05}, kvmeld::quantity::entries(2),
                                                       kvmeld::quantity::entries(4));

  policy.identify.chunk = 16;
  kvmeld::merged_cache cache{std::move(executor), policy, memory.tensors(), options};
  std::vector<support::byte_list> out;
  for (std::uint32_t q = 0; q < extent.sequences; ++q) {
    support::dice d(q + 1);
    support::for_tracks(extent, q, [&](kvmeld::track t) {
      auto const k = support::random_rows(d, 110, extent.key_dim, support::texture::walk);
      auto const v = support::random_rows(d, 110, extent.value_dim, support::texture::noise);
      for (std::uint32_t i = 0; i < 110; ++i) {
        support::put_row(memory.tensors().keys, t, i, k[i]);
        support::put_row(memory.tensors().values, t, i, v[i]);
      }
    });
    cache.open(q, 110);
  }
  cache.compress({0, 1, 2}, kvmeld::budget::entries(40));
  for (std::uint32_t q = 0; q < extent.sequences; ++q) {
    out.push_back(cache.save(q));
    support::for_tracks(extent, q, [&](kvmeld::track t) {
      for (kvmeld::slot_t s = 0; s < cache.ref().length(t); ++s) {
        out.push_back(support::bytes_of(support::get_row(memory.tensors().keys, t, s)));
        out.push_back(support::bytes_of(support::get_row(memory.tensors().values, t, s)));
      }
    });
  }
  return out;
}

}  // namespace

TEST_CASE("a pool does every part once, for any number of threads and parts") {
  for (std::uint32_t threads : {1u, 2u, 3u, 8u}) {
    thread_pool const pool(threads);
    CHECK(pool.size() == threads);
    for (int again = 0; again < 300; ++again) {
      for (std::uint32_t count : {0u, 1u, 2u, 3u, 17u}) {
        CAPTURE(threads);
        CAPTURE(count);
        CHECK(calls_of(pool, count) == std::vector<int>(count, 1));
      }
    }
  }
  CHECK(thread_pool().size() >= 1);
}

TEST_CASE("the parts of one loop run in several threads") {
  thread_pool const pool(3);
  std::mutex mutex;
  std::condition_variable met;
  std::set<std::thread::id> here;
  auto const meet = [&](std::uint32_t) {  // returns when three threads are in it, or after a second
    std::unique_lock<std::mutex> lock(mutex);
    here.insert(std::this_thread::get_id());
    met.notify_all();
    met.wait_for(lock, std::chrono::seconds(1), [&] { return here.size() >= 3; });
  };
  for (int asleep : {0, 1}) {  // no helper has to come, but one that never does is a defect
    bool all = false;
    for (int again = 0; again < 10 && !all; ++again) {
      if (asleep == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      here.clear();
      pool(3, part_ref(meet));
      all = here.size() == 3;
    }
    CHECK(all);
  }
}

TEST_CASE("what parts write is there when the loop returns") {
  thread_pool const pool(4);
  std::vector<std::uint32_t> to(1000);
  for (std::uint32_t round = 0; round < 200; ++round) {
    auto const body = [&](std::uint32_t i) { to[i] += i + round; };
    pool(1000, part_ref(body));
  }
  for (std::uint32_t i = 0; i < 1000; ++i) CHECK(to[i] == 200 * i + 199 * 100);
}

TEST_CASE("a loop inside a part, and loops of several threads, do every part") {
  thread_pool const pool(3);
  std::atomic<int> calls{0};
  auto const inner = [&](std::uint32_t) { calls.fetch_add(1); };
  auto const outer = [&](std::uint32_t) { pool(5, part_ref(inner)); };
  pool(4, part_ref(outer));
  CHECK(calls == 20);
  calls = 0;
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&, copy = pool] {
      for (int again = 0; again < 200; ++again) copy(7, part_ref(inner));
    });
  }
  for (std::thread& t : callers) t.join();
  CHECK(calls == 4 * 200 * 7);
}

#if defined(__linux__)
TEST_CASE("pools start threads when a loop needs them, share them with copies, and end them") {
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // threads of other tests are gone
  int const before = threads_now();
  REQUIRE(before > 0);
  {
    thread_pool const pool(4);
    CHECK(calls_of(pool, 1).size() == 1);
    CHECK(threads_now() == before);
    thread_pool const copy = pool;
    CHECK(calls_of(pool, 8).size() == 8);
    CHECK(calls_of(copy, 8).size() == 8);
    CHECK(threads_now() == before + 3);
  }
  CHECK(soon(before));
  int const executors = support::under_thread_sanitizer || support::under_address_sanitizer ? 300 : 10000;
  for (int i = 0; i < executors; ++i) {
    host_executor executor(3);
    host_executor const copy = executor;
    if (i % 10 != 0) continue;  // the others never start a thread
    executor.run(empty_phase{}, kvmeld::shape{1, 1, 1, 1, 4, 4, 16}, 4, one_track{});
  }
  CHECK(soon(before));
}

TEST_CASE("a pool works in the child of a fork, and in its parent afterwards") {
  // Sanitizers hold locks of their own at a fork, or forbid threads in the child.
  if (support::under_thread_sanitizer || support::under_address_sanitizer) return;
  thread_pool const pool(3);
  CHECK(calls_of(pool, 9) == std::vector<int>(9, 1));
  pid_t const child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    bool good = true;
    {
      thread_pool const copy = pool;
      for (int i = 0; i < 50; ++i) good = good && calls_of(copy, 9) == std::vector<int>(9, 1);
      good = good && threads_now() == 3;
    }
    _exit(good ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(calls_of(pool, 9) == std::vector<int>(9, 1));
}
#endif

TEST_CASE("a cache is the same to the bit, whoever brings the threads") {
  auto const wanted = life(host_executor(1));
  for (std::uint32_t threads : {2u, 3u, 8u}) CHECK(life(host_executor(threads)) == wanted);
  CHECK(life(host_executor()) == wanted);
  auto const in_order = [](std::uint32_t count, part_ref body) {
    for (std::uint32_t i = 0; i < count; ++i) body(i);
  };
  auto const backwards = [](std::uint32_t count, part_ref body) {
    for (std::uint32_t i = count; i-- > 0;) body(i);
  };
  CHECK(life(host_executor(in_order, 4)) == wanted);
  CHECK(life(host_executor(backwards, 4)) == wanted);
  thread_pool const pool(3);
  CHECK(life(host_executor(pool, pool.size())) == wanted);
  CHECK(life(host_executor(examples::in_new_threads, 3)) == wanted);
#if defined(_OPENMP)
  CHECK(life(host_executor(seen(examples::by_openmp), 3)) == wanted);
#endif
#if defined(EXAMPLE_TBB)
  CHECK(life(host_executor(seen(examples::by_tbb), 3)) == wanted);
#endif
}

TEST_CASE("copies of an executor work in threads of their own at the same time") {
  auto const wanted = life(host_executor(1));
  host_executor const shared(3);
  std::vector<std::vector<support::byte_list>> got(4);
  std::vector<std::thread> threads;
  for (auto& to : got) threads.emplace_back([&to, shared] { to = life(shared); });
  for (std::thread& t : threads) t.join();
  for (auto const& bytes : got) CHECK(bytes == wanted);
}

#if KVMELD_EXCEPTIONS
TEST_CASE("an executor refuses a loop that is empty, and no threads") {
  auto const text = [](auto const& make) {
    try {
      make();
    } catch (kvmeld::invalid_argument const& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  CHECK(text([] { host_executor(kvmeld::parallel_for(), 2); }) ==
        "host_executor: loop is empty; it must be callable as loop(count, body)");
  CHECK(text([] { host_executor(thread_pool(2), 0); }) ==
        "host_executor: threads is 0; it must be 1 to 4096");
  void (*const nothing)(std::uint32_t, part_ref) = nullptr;
  for (auto const& empty : {kvmeld::parallel_for(nothing),
                            kvmeld::parallel_for(std::function<void(std::uint32_t, part_ref)>())}) {
    CHECK(text([&] { host_executor(empty, 2); }) ==
          "host_executor: loop is empty; it must be callable as loop(count, body)");
  }
  CHECK(thread_pool(0xffffffffu).size() == 4096);
}
#endif

}  // namespace thread_pool_cases
