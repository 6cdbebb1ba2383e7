// The figures as a table for people and as JSON for programs.
#pragma once

#include "session.hpp"

#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

namespace kvmeld_bench {

/// How the cost of a row grows: the slope of log(seconds per head) over log(n) from its shortest to its
/// longest input.
struct exponent {
  std::string name, dtype;
  double value;
};

struct report {
  using properties = std::vector<std::pair<std::string, std::string>>;

  properties machine;
  std::vector<row> rows;
  std::vector<memory_row> memory;

  /// Of every row that ran at two lengths or more.
  std::vector<exponent> exponents() const;
  void print(std::ostream& out) const;
  /// {"rows", "memory", "exponents", "aims", "machine"}; a ratio that does not apply is null.
  void write_json(std::ostream& out) const;
};

}  // namespace kvmeld_bench
