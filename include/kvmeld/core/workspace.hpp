// SPDX-License-Identifier: Apache-2.0
// One code path sizes and carves a workspace. An arena without memory counts the bytes; an arena with memory
// gives the pointers.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/size_limits.hpp>

#include <cstddef>
#include <limits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Hands out aligned pieces of one block. An arena without memory only counts, so the layout of a workspace
/// is written once. The arena never reads or writes the memory.
class arena {
public:
  static constexpr std::size_t alignment = 64;  ///< a cache line; also what 16-byte device accesses need

  arena() = default;
  /// Carves `memory`, `bytes` bytes that are 64-byte aligned.
  arena(void* memory, std::size_t bytes) : base_(static_cast<std::byte*>(memory)), capacity_(bytes) {}

  /// `count` objects of T; null while sizing. A piece beyond the block is null and sets overflowed(). So does
  /// a piece that no memory can hold; bytes() is then the largest number.
  template <class T> T* take(std::size_t count) {
    constexpr std::size_t all = std::numeric_limits<std::size_t>::max();
    std::size_t const begin = saturated_sum(used_, alignment - 1) / alignment * alignment;
    used_ = saturated_sum(begin, saturated_product(count, sizeof(T)));
    if (used_ > all / 2) {  // no object can be larger
      used_ = all;
      overflowed_ = true;
      return nullptr;
    }
    if (base_ == nullptr) return nullptr;
    if (used_ > capacity_) {
      overflowed_ = true;
      return nullptr;
    }
    return reinterpret_cast<T*>(base_ + begin);
  }

  /// Whether more was asked for than the block holds, or than 64 bits count.
  bool overflowed() const { return overflowed_; }
  /// Bytes taken so far. After a sizing run: the size to allocate, aligned to `alignment`.
  std::size_t bytes() const { return used_; }

private:
  std::byte* base_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t used_ = 0;
  bool overflowed_ = false;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
