// Children of fork: whatever the parent's other threads were doing, a child's calls return.
#include "engine.hpp"

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "support/sanitizer.hpp"

#if defined(__unix__)
#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using c_test::engine;
using c_test::entries;
using c_test::options;

/// An engine whose making checks nothing: doctest must not be used between fork and exit.
struct quiet_engine : engine {
  explicit quiet_engine(kvmeld_options const& o) { (void)kvmeld_create(&o, &keys, &values, 1, &cache); }
};

kvmeld_status shrink(engine& e) {
  std::uint32_t const zero = 0;
  kvmeld_status s = kvmeld_open(e.cache, 0, 60, 0);
  if (s == KVMELD_OK) s = kvmeld_compress(e.cache, &zero, 1, entries(12));
  std::uint32_t length = 0;
  if (s == KVMELD_OK) s = kvmeld_longest(e.cache, 0, &length);
  if (s == KVMELD_OK && length != 12) s = KVMELD_INTERNAL;
  if (s == KVMELD_OK) s = kvmeld_close(e.cache, 0);
  return s;
}

/// A life of a cache that the child makes, with as many threads as it asks for. 0: all went well.
int whole_life(kvmeld_options o) {
  o.threads = 3;
  quiet_engine e(o);
  for (int i = 0; i < 3; ++i) {
    if (shrink(e) != KVMELD_OK) return 1;
  }
  if (kvmeld_close(e.cache, 2) != KVMELD_INVALID_ARGUMENT) return 2;
  if (kvmeld_version()[0] == 0 || kvmeld_policies()[0] == 0) return 3;
  return 0;
}

}  // namespace

TEST_CASE("a child of fork works on, while threads of its parent are inside calls") {
  // Sanitizers hold locks of their own at a fork, or forbid threads in the child.
  if (support::under_thread_sanitizer || support::under_address_sanitizer) return;
  kvmeld_options const one_thread = options("streaming_llm");
  std::atomic<bool> stop{false};
  std::atomic<int> ready{0};
  constexpr int busy_threads = 3;
  std::vector<std::uint64_t> theirs(busy_threads);
  std::vector<std::thread> threads;
  for (int t = 0; t < busy_threads; ++t) {
    threads.emplace_back([&, t] {
      quiet_engine mine(one_thread);
      theirs[static_cast<std::size_t>(t)] = mine.cache.id;
      ++ready;
      std::uint32_t number = 0;
      while (!stop) {  // calls that return at once, so that forks meet their beginnings and ends
        for (int i = 0; i < 50; ++i) (void)kvmeld_tokens(mine.cache, 0, &number);
        (void)shrink(mine);
        quiet_engine another(one_thread);
      }
    });
  }
  while (ready != busy_threads) std::this_thread::yield();
  engine idle("streaming_llm");  // in use by nobody when the process forks
  int hung = 0, wrong = 0, busy = 0;
  for (int turn = 0; turn < 150; ++turn) {
    pid_t const child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      alarm(10);  // ends a child that hangs
      int result = whole_life(one_thread);
      if (result == 0 && shrink(idle) != KVMELD_OK) result = 4;
      int in_use = 0;
      for (std::uint64_t const id : theirs) {
        std::uint32_t number = 0;
        kvmeld_status const s = kvmeld_tokens({id}, 0, &number);
        if (s == KVMELD_BUSY) {
          in_use = 1;
          std::string const text = kvmeld_problem();
          if (text.find("cache is in use; it must be free") == std::string::npos) result = 5;
          if (kvmeld_destroy({id}) != KVMELD_BUSY) result = 6;
        } else if (s != KVMELD_OK) {
          result = 7;
        }
      }
      _exit(result != 0 ? result : in_use != 0 ? 100 : 0);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    hung += WIFSIGNALED(status) ? 1 : 0;
    bool const held = WIFEXITED(status) && WEXITSTATUS(status) == 100;
    busy += held ? 1 : 0;
    wrong += WIFEXITED(status) && WEXITSTATUS(status) != 0 && !held ? 1 : 0;
  }
  stop = true;
  for (std::thread& t : threads) t.join();
  CHECK(hung == 0);
  CHECK(wrong == 0);
  CHECK(busy > 0);  // forks do come in the middle of calls
  CHECK(shrink(idle) == KVMELD_OK);
}
#endif
