// What the figures were taken on.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvmeld_bench {

/// Name and value of every property worth telling, in order: processor, threads, compiler, instruction set,
/// BLAS.
std::vector<std::pair<std::string, std::string>> describe_machine(std::uint32_t threads);

}  // namespace kvmeld_bench
