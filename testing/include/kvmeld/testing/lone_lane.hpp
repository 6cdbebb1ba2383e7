// SPDX-License-Identifier: Apache-2.0
// A lane that runs alone: checks what a layout does on several lanes, in any order of the lanes.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace testing {

/// A team's lane whose neighbours run before or after it, never at the same time. Calls that need no barrier
/// between them give the same result as on one lane; other calls need not. A function in which lanes meet
/// (sync, reduce, scan, scratch) cannot run so: it sets `met`, and then nothing can be concluded.
class lone_lane {
public:
  lone_lane(std::uint32_t lane, std::uint32_t lanes, bool& met) : lane_(lane), lanes_(lanes), met_(&met) {}

  std::uint32_t lane() const { return lane_; }
  std::uint32_t lanes() const { return lanes_; }
  void sync() const { *met_ = true; }
  template <class Op> std::uint32_t reduce(std::uint32_t x, Op) const {
    *met_ = true;
    return x;
  }
  scan_result scan(std::uint32_t x) const {
    *met_ = true;
    return {0, x};
  }
  template <class F> void for_each(std::uint32_t n, F f) const {
    for (std::uint32_t i = lane_; i < n; i += lanes_) f(i);
  }
  std::uint32_t fetch_add(std::uint32_t* where, std::uint32_t x) const {
    std::uint32_t const old = *where;
    *where += x;
    return old;
  }
  template <class T> T* scratch(std::size_t n) const {
    *met_ = true;  // lanes share scratch, and this lane cannot see the others
    memory_->emplace_back(scratch_size(n * sizeof(T)) / sizeof(std::max_align_t) + 1);
    return reinterpret_cast<T*>(memory_->back().data());
  }

private:
  std::uint32_t lane_, lanes_;
  bool* met_;
  std::shared_ptr<std::vector<std::vector<std::max_align_t>>> memory_ =
      std::make_shared<std::vector<std::vector<std::max_align_t>>>();
};

}  // namespace testing
}  // namespace KVMELD_ABI
}  // namespace kvmeld
