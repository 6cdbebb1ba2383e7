// Where the lists of calls lie while phases read them: a ring in an executor's memory.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Places for lists of numbers in `Memory` that launches read in order. Memory that was outgrown is kept:
/// launches, or calls that have staged but not yet launched, may still read it.
template <class Memory> class staging_ring {
public:
  staging_ring() = default;
  /// The ring is as large as `memory`, 64-byte aligned; three times the longest list that is usual.
  explicit staging_ring(Memory memory) : memory_(std::move(memory)) {}

  /// How many more numbers may be placed before a list is written over.
  std::size_t window() const { return numbers() / 3; }
  /// A place for n numbers. Lists longer than the window get a larger ring by allocate(bytes), once. Null
  /// where there is no memory for it; the ring of before stays.
  template <class Allocate> std::uint32_t* place(std::size_t n, Allocate allocate) {
    if (n > window()) {
      outgrown_.reserve(outgrown_.size() + 1);
      Memory larger = allocate(6 * n * sizeof(std::uint32_t));
      if (larger.data() == nullptr) return nullptr;
      outgrown_.push_back(std::move(memory_));
      memory_ = std::move(larger);
      next_ = 0;
    }
    // What is skipped here is shorter than the list, so no longer than the window; hence its third.
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

}  // namespace KVMELD_ABI
}  // namespace kvmeld
