// What the command line asks for.
#pragma once

#include <tiny_llama/command_line.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace kvmeld_bench {

struct options {
  bool help = false;
  bool quick = false;  ///< two small lengths, fewer repetitions
  std::string json;    ///< file to write; empty: none
  /// Only rows whose "name n dtype" contains one of these; empty: all rows.
  std::vector<std::string> filters;
  std::uint32_t threads = 0;  ///< 0: as many as the executor picks
};

/// A command line that cannot be used; what() is the sentence to print.
using bad_arguments = tiny_llama::option_error;

char const* usage();
options parse_options(int count, char const* const* arguments);

}  // namespace kvmeld_bench
