// The instruction sets that the tests run on: all that this processor has.
#pragma once

#include <kvmeld/backend/host/host_executor.hpp>

#include <cstddef>
#include <vector>

inline std::vector<kvmeld::instruction_set> instruction_sets() {
  std::vector<kvmeld::instruction_set> found;
  for (auto s : {kvmeld::instruction_set::sse2, kvmeld::instruction_set::avx2,
                 kvmeld::instruction_set::avx512, kvmeld::instruction_set::neon}) {
    if (kvmeld::supports(s)) found.push_back(s);
  }
  return found;
}

// A team of one lane with kernels, and the memory it works in.
struct tuned_lane {
  kvmeld::host_memory scratch, memory;
  kvmeld::host_kernels const* kernels;

  tuned_lane(kvmeld::host_kernels const* k, std::size_t bytes)
      : scratch(bytes), memory(kvmeld::host_team::tuned_bytes), kernels(k) {}
  kvmeld::host_team team() const { return {scratch.data(), scratch.size(), kernels, memory.data()}; }
};
