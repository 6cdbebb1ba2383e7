#include "machine.hpp"

#include "yardstick.hpp"

#include <fstream>
#include <string>
#include <thread>

namespace kvmeld_bench {

namespace {

/// "model name" as Linux tells it; elsewhere unknown.
std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    std::size_t const colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "gcc " __VERSION__;
#else
  return "unknown";
#endif
}

/// What the compiler was allowed to use; kernels chosen at run time may use more.
std::string instruction_set() {
#if defined(__AVX512F__)
  return "AVX-512";
#elif defined(__AVX2__)
  return "AVX2";
#elif defined(__x86_64__)
  return "x86-64 baseline";
#elif defined(__aarch64__)
  return "AArch64";
#else
  return "unknown";
#endif
}

}  // namespace

std::vector<std::pair<std::string, std::string>> describe_machine(std::uint32_t threads) {
  std::string const blas = yardstick::blas_name();
#if defined(__OPTIMIZE__)
  std::string const optimised = "yes";
#else
  std::string const optimised = "NO: these figures say nothing";
#endif
  return {{"cpu", processor()},
          {"logical_cpus", std::to_string(std::thread::hardware_concurrency())},
          {"threads", std::to_string(threads)},
          {"compiler", compiler()},
          {"optimised", optimised},
          {"instruction_set", instruction_set()},
          {"blas", blas.empty() ? "none" : blas}};
}

}  // namespace kvmeld_bench
