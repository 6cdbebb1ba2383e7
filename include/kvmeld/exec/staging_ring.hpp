// SPDX-License-Identifier: Apache-2.0
// A ring in the memory of an executor. The lists of calls lie there while phases read them.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Places for lists of numbers in `Memory` that launches read in order. Memory that was outgrown is kept,
/// because launches, or calls that have staged but not yet launched, may still read it.
template <class Memory> class staging_ring {
public:
  staging_ring() = default;
  /// The ring is as large as `memory`, which is 64-byte aligned and should hold three times the longest usual
  /// list.
  explicit staging_ring(Memory memory) : memory_(std::move(memory)) {}

  /// How many more numbers may be placed before an earlier list is overwritten.
  std::size_t window() const { return numbers() / 3; }
  /// A place for n numbers. A list longer than the window gets a larger ring through allocate(bytes), once.
  /// Returns null if there is no memory for it; the old ring then stays.
  template <class Allocate> std::uint32_t* place(std::size_t n, Allocate allocate) {
    if (n > window()) {
      outgrown_.reserve(outgrown_.size() + 1);
      Memory larger = allocate(6 * n * sizeof(std::uint32_t));
      if (larger.data() == nullptr) return nullptr;
      outgrown_.push_back(std::move(memory_));
      memory_ = std::move(larger);
      next_ = 0;
    }
    // Fewer than n numbers are skipped here, and n is at most the window. A list, what is skipped and a
    // window of later numbers fit the ring, because the window is a third of the ring.
    if (next_ + n > numbers()) next_ = 0;
    std::uint32_t* const at = static_cast<std::uint32_t*>(memory_.data()) + next_;
    next_ += n;
    return at;
  }

private:
  std::size_t numbers() const { return memory_.size() / sizeof(std::uint32_t); }

  Memory memory_;
  std::vector<Memory> outgrown_;
  std::size_t next_ = 0;
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
