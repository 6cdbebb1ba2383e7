// What kernels did on the emulated device so far, for programs that ask.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace emulator {

/// Of one kernel, all its launches: instructions of all threads; bytes that loads and stores asked for; bytes
/// of the 32-byte sectors that a launch read and wrote, each counted once a launch; blocks of the smallest
/// launch.
struct kernel_figures {
  std::string name;
  std::uint64_t launches = 0, instructions = 0, asked = 0, read = 0, written = 0;
  std::uint64_t fewest_blocks = ~std::uint64_t{0};
};

/// Waits for all work, returns what ran since the last call, and forgets it.
std::vector<kernel_figures> take_figures();

}  // namespace emulator
