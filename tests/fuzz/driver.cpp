// The main function of a fuzz program where libFuzzer is missing: inputs of random bytes from a seed, or
// given files. After a crash the input lies in the file crash-<program>, and the way to replay it is printed.
#include "support/random_cache.hpp"

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);

namespace {

std::vector<std::uint8_t> input;  // of the run under way
std::string program, crash_file;

void keep_input() {
  std::ofstream(crash_file, std::ios::binary)
      .write(reinterpret_cast<char const*>(input.data()), static_cast<std::streamsize>(input.size()));
  std::fprintf(stderr, "the input is in %s; replay it: %s %s\n", crash_file.c_str(), program.c_str(),
               crash_file.c_str());
}
void keep_and_die(int signal) {
  std::signal(signal, SIG_DFL);
  keep_input();
  std::raise(signal);
}
int run() { return LLVMFuzzerTestOneInput(input.data(), input.size()); }

[[noreturn]] void usage(int status) {
  std::printf("%s [--seed N] [--runs N | --seconds N] [--most-bytes N] [file to replay ...]\n",
              program.c_str());
  std::exit(status);
}

}  // namespace

extern "C" void __sanitizer_set_death_callback(void (*)()) __attribute__((weak));

int main(int argc, char** argv) {
  program = argv[0];
  crash_file = "crash-" + program.substr(program.find_last_of('/') + 1);
  unsigned long long seed = 1, runs = 0, seconds = 0, max_bytes = 600;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    std::string const name = argv[i];
    unsigned long long* const number = name == "--seed"         ? &seed
                                       : name == "--runs"       ? &runs
                                       : name == "--seconds"    ? &seconds
                                       : name == "--most-bytes" ? &max_bytes
                                                                : nullptr;
    if (number == nullptr) {
      if (name.rfind("--", 0) == 0) usage(name == "--help" ? 0 : 2);
      files.push_back(name);
      continue;
    }
    std::string const digits = ++i < argc ? argv[i] : "";
    if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos)
      usage(2);
    *number = std::strtoull(digits.c_str(), nullptr, 10);
  }
  for (int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGILL, SIGBUS}) {
    // A sanitizer reports these itself, and then asks for what is to be done.
    if (__sanitizer_set_death_callback == nullptr || signal == SIGABRT) std::signal(signal, keep_and_die);
  }
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(keep_input);

  for (std::string const& name : files) {
    std::ifstream file(name, std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "cannot open %s\n", name.c_str());
      return 2;
    }
    input.assign(std::istreambuf_iterator<char>(file), {});
    run();
    std::printf("%s: %zu bytes, no failure\n", name.c_str(), input.size());
  }
  if (!files.empty()) return 0;

  if (runs == 0 && seconds == 0) runs = 1000;
  support::dice d(seed);
  auto const begin = std::chrono::steady_clock::now();
  auto const passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  unsigned long long done = 0;
  while ((runs == 0 || done < runs) && (seconds == 0 || passed() < static_cast<double>(seconds))) {
    input.resize(d.below(static_cast<std::uint32_t>(max_bytes) + 1));
    for (auto& x : input) x = static_cast<std::uint8_t>(d.next() >> 56);
    run();
    ++done;
  }
  std::printf("%s: %llu runs from seed %llu in %.1f s, no failure\n", program.c_str(), done, seed, passed());
}
