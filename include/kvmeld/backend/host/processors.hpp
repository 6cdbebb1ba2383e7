// SPDX-License-Identifier: Apache-2.0
// How many processors this process may keep busy: its affinity and the CPU quotas of its control groups.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#if defined(__linux__)
#include <sched.h>
#endif

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// The quotas of Linux control groups, versions 1 and 2, as processors: a container with a quota of 3.5
/// processors gets 3. `root` stands before /proc and /sys; tests have folders of their own.
class cpu_quota {
public:
  explicit cpu_quota(std::string root = {}) : root_(std::move(root)) {}

  /// At least 1; `unlimited` where there is no quota. Reads a few small files.
  std::uint32_t processors() const {
    std::uint32_t least = unlimited;
    std::FILE* const groups = std::fopen((root_ + "/proc/self/cgroup").c_str(), "re");
    if (groups == nullptr) return least;
    char line[4096];  // number:controllers:path
    while (std::fgets(line, sizeof line, groups) != nullptr) {
      line[std::strcspn(line, "\n")] = '\0';
      char* const controllers = std::strchr(line, ':');
      char* const path = controllers == nullptr ? nullptr : std::strchr(controllers + 1, ':');
      if (path == nullptr) continue;
      std::string const names(controllers + 1, path);
      if (names.empty()) {
        least = min_of(least, least_of("", path + 1, &cpu_quota::of_version_2));
      } else if (("," + names + ",").find(",cpu,") != std::string::npos) {
        least = min_of(least, least_of("/cpu", path + 1, &cpu_quota::of_version_1));
        // Most systems have a link named cpu beside the folder of all controllers, in whatever order.
        if (names != "cpu") least = min_of(least, least_of("/" + names, path + 1, &cpu_quota::of_version_1));
      }
    }
    std::fclose(groups);
    return least;
  }

  static constexpr std::uint32_t unlimited = 0xffffffffu;

private:
  /// The least quota of a group and of all groups around it. A container may see its own group as the
  /// outermost one, under a path that exists outside the container only.
  std::uint32_t least_of(std::string const& mount, std::string path,
                         std::uint32_t (cpu_quota::*read)(std::string const&) const) const {
    std::string const folder = root_ + "/sys/fs/cgroup" + mount;
    std::uint32_t least = unlimited;
    for (;;) {
      least = min_of(least, (this->*read)(folder + path));
      std::size_t const end = path.rfind('/');
      if (end == std::string::npos) return least;
      path.erase(end);
    }
  }
  std::uint32_t of_version_2(std::string const& group) const {  // "quota period", or "max period"
    char line[64];
    if (!first_line(group + "/cpu.max", line)) return unlimited;
    char* rest = nullptr;
    double const quota = std::strtod(line, &rest);
    return rest == line ? unlimited : granted(quota, std::strtod(rest, nullptr));
  }
  std::uint32_t of_version_1(std::string const& group) const {  // a quota of -1: none
    char quota[64], period[64];
    if (!first_line(group + "/cpu.cfs_quota_us", quota)) return unlimited;
    if (!first_line(group + "/cpu.cfs_period_us", period)) return unlimited;
    return granted(std::strtod(quota, nullptr), std::strtod(period, nullptr));
  }
  static std::uint32_t granted(double quota, double period) {
    if (!(quota > 0.0 && period > 0.0)) return unlimited;
    double const processors = quota / period;
    if (processors < 1.0) return 1;
    return processors < 1e6 ? static_cast<std::uint32_t>(processors) : unlimited;
  }
  static bool first_line(std::string const& path, char (&line)[64]) {
    std::FILE* const file = std::fopen(path.c_str(), "re");
    if (file == nullptr) return false;
    bool const read = std::fgets(line, sizeof line, file) != nullptr;
    std::fclose(file);
    return read;
  }

  std::string root_;
};

/// The number of processors that the calling thread may keep busy: no more than its affinity has, and no more
/// than the CPU quotas of the process's control groups grant.
inline std::uint32_t usable_processors() {
  std::uint32_t here = max_of<std::uint32_t>(1, std::thread::hardware_concurrency());
#if defined(__linux__) && defined(CPU_COUNT)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
    here = static_cast<std::uint32_t>(CPU_COUNT(&set));
#endif
#if defined(__linux__)
  here = min_of(here, cpu_quota().processors());
#endif
  return here;
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
