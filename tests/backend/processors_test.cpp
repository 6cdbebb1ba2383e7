// How many threads an executor makes of its own accord: what the affinity has and the CPU quotas grant.
#include <kvmeld/backend/host/processors.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include <kvmeld/backend/host/host_executor.hpp>

#if defined(__linux__)
#include <sched.h>
#include <unistd.h>
#endif

namespace processors_cases {

namespace {

using kvmeld::detail::cpu_quota;

/// A folder with files of /proc and /sys as this process would find them.
class machine {
public:
  machine() : root_(std::filesystem::temp_directory_path() / ("kvmeld_quota_" + unique())) {
    std::filesystem::create_directories(root_);
  }
  ~machine() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  machine& file(std::string const& path, std::string const& text) {
    std::filesystem::path const whole = root_.string() + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
    return *this;
  }
  std::uint32_t processors() const { return cpu_quota(root_.string()).processors(); }

private:
  static std::string unique() {
    static int count = 0;
#if defined(__linux__)
    return std::to_string(getpid()) + "_" + std::to_string(++count);
#else
    return std::to_string(++count);
#endif
  }
  std::filesystem::path root_;
};

constexpr std::uint32_t unlimited = cpu_quota::unlimited;

}  // namespace

TEST_CASE("no control groups: no quota") {
  CHECK(machine().processors() == unlimited);
  CHECK(machine().file("/proc/self/cgroup", "").processors() == unlimited);
  CHECK(machine().file("/proc/self/cgroup", "nonsense\n0\n:\n").processors() == unlimited);
  CHECK(machine().file("/proc/self/cgroup", "0::/a\n").processors() == unlimited);
}

TEST_CASE("version 2: quota over period, rounded down, at least 1") {
  auto const with = [](std::string const& line) {
    return machine()
        .file("/proc/self/cgroup", "0::/pod\n")
        .file("/sys/fs/cgroup/pod/cpu.max", line)
        .processors();
  };
  CHECK(with("max 100000\n") == unlimited);
  CHECK(with("400000 100000\n") == 4);
  CHECK(with("350000 100000\n") == 3);
  CHECK(with("50000 100000\n") == 1);
  CHECK(with("20000 10000\n") == 2);
  CHECK(with("200000") == unlimited);  // no period
  CHECK(with("") == unlimited);
  CHECK(with("0 100000\n") == unlimited);
}

TEST_CASE("version 2: the least quota of all groups around this one") {
  machine m;
  m.file("/proc/self/cgroup", "0::/outer/inner/own\n");
  m.file("/sys/fs/cgroup/outer/inner/own/cpu.max", "max 100000\n");
  m.file("/sys/fs/cgroup/outer/inner/cpu.max", "800000 100000\n");
  CHECK(m.processors() == 8);
  m.file("/sys/fs/cgroup/outer/cpu.max", "300000 100000\n");
  CHECK(m.processors() == 3);
  m.file("/sys/fs/cgroup/outer/inner/own/cpu.max", "200000 100000\n");
  CHECK(m.processors() == 2);
}

TEST_CASE("a container that sees itself as the outermost group, under a path of the outside") {
  machine two, one;
  two.file("/proc/self/cgroup", "0::/../outside/abc\n").file("/sys/fs/cgroup/cpu.max", "500000 100000\n");
  CHECK(two.processors() == 5);
  one.file("/proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n");
  one.file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n");
  one.file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  CHECK(one.processors() == 2);
}

TEST_CASE("version 1: only the controller cpu has quotas, and -1 is none") {
  machine m;
  m.file("/proc/self/cgroup", "3:cpuset:/a\n2:cpuacct:/a\n1:cpu:/a\n0::/\n");
  for (char const* other : {"cpuset", "cpuacct"}) {
    m.file(std::string("/sys/fs/cgroup/") + other + "/a/cpu.cfs_quota_us", "100000\n");
    m.file(std::string("/sys/fs/cgroup/") + other + "/a/cpu.cfs_period_us", "100000\n");
  }
  CHECK(m.processors() == unlimited);
  m.file("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n")
      .file("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  CHECK(m.processors() == unlimited);
  m.file("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "600000\n");
  CHECK(m.processors() == 6);
}

TEST_CASE("version 1: controllers listed in another order than their folder has, beside a link") {
  machine m;
  m.file("/proc/self/cgroup", "4:cpuacct,cpu:/a\n");
  m.file("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "200000\n");
  m.file("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  CHECK(m.processors() == 2);
}

TEST_CASE("an executor without a number takes what affinity and quotas leave") {
  std::uint32_t const usable = kvmeld::detail::usable_processors();
  CHECK(usable >= 1);
  CHECK(usable <= cpu_quota().processors());
  CHECK(kvmeld::host_executor().workers() == kvmeld::min_of(usable, kvmeld::largest::threads));
#if defined(__linux__) && defined(CPU_COUNT)
  cpu_set_t before, one;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i) {
    if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
  }
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(kvmeld::host_executor().workers() == 1);
  REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
#endif
}

}  // namespace processors_cases
