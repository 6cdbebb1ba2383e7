// Debug builds stop at a block table that names no page, before anything is written.
#include <kvmeld/kvmeld.hpp>

#include <cstdint>
#include <cstdio>
#include <vector>

#include <doctest/doctest.h>

#if defined(__unix__) && !defined(NDEBUG)
#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

namespace {

// How a child ends that does `what`: the signal, or 0.
template <class F> int signal_of(F what) {
  std::fflush(nullptr);
  pid_t const child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);  // not the test framework's
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(2);
    what();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace

TEST_CASE("an entry outside the pool stops a debug build") {
  using namespace kvmeld;
  shape const s{1, 1, 1, 1, 4, 4, 12};
  std::vector<float> pool(3 * 4 * 4);
  std::vector<std::int32_t> table{2, 0, 1};
  std::vector<std::uint8_t> shared(3, 0);
  auto const rows = [&](std::uint32_t pages) {
    return paged(pool_pages(pool.data(), table_rows(table.data(), 3), shared.data(), pages), 4,
                 dense_pages("PLHTC", 3, 4, s, 4), s, 4);
  };
  track const t = make_track(s, 0, 0, 0);
  auto const write = [&](std::uint32_t pages, slot_t slot) {
    return signal_of([&] { rows(pages).locate(t, slot).base[0] = 1.0f; });
  };
  CHECK(write(3, 0) == 0);
  CHECK(write(2, 0) == SIGABRT);  // page 2 of two
  table = {0, -1, 3};
  CHECK(write(3, 3) == 0);
  CHECK(write(3, 4) == SIGABRT);
  CHECK(write(3, 8) == SIGABRT);
  CHECK(signal_of([&] { static_cast<void>(rows(3).writable(t, 8)); }) == SIGABRT);

  std::vector<void*> blocks{pool.data(), nullptr};
  paged const pointed(pointed_pages<float>{table_rows<void*>(blocks.data(), 2), 0}, 4, {0, 0, 0, 4, 1}, s, 4);
  CHECK(signal_of([&] { pointed.locate(t, 1).base[0] = 1.0f; }) == 0);
  CHECK(signal_of([&] { pointed.locate(t, 4).base[0] = 1.0f; }) == SIGABRT);
}
#endif
