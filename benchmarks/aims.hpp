// What the figures should be, and whether they are.
#pragma once

#include "report.hpp"

#include <string>
#include <vector>

namespace kvmeld_bench {

/// A ratio that should not exceed a limit; the worst of the rows that it is about. Rows of 65536 entries and
/// more, where `what` does not name a length.
struct aim {
  std::string what;
  double worst, limit;

  bool met() const { return worst <= limit; }
};

/// The aims for which the report has rows.
std::vector<aim> judge(report const& figures);

}  // namespace kvmeld_bench
