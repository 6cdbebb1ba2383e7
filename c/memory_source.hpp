// Where a cache's memory comes from: the system, or the two functions that a program hands in.
#pragma once

#include <kvmeld/backend/host/host_memory.hpp>
#include <kvmeld/kvmeld.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace kvmeld_library {

/// Serves a cache, and remembers what went wrong. It has to outlive the cache, at the same address.
class memory_source {
public:
  explicit memory_source(kvmeld_allocator const& from) : from_(from) {}
  memory_source(memory_source const&) = delete;

  /// The form in which an executor takes it.
  kvmeld::host_allocator hook() { return {&allocate, &release, this}; }

  /// From now on refuses all memory; `asked` tells how much the first request wanted.
  void only_count() { counts_ = true; }
  std::size_t asked() const { return asked_; }

  /// Forgets what went wrong.
  void begin_call() { lacked_ = misaligned_ = false; }
  /// Whether there was no memory since begin_call.
  bool lacked() const { return lacked_; }
  /// Whether the program's function returned memory that is not aligned.
  bool misaligned() const { return misaligned_; }

private:
  static void* allocate(void* context, std::size_t bytes, std::size_t alignment) {
    auto& self = *static_cast<memory_source*>(context);
    if (self.asked_ == 0) self.asked_ = bytes;
    void* const memory = self.counts_ ? nullptr : self.take(bytes, alignment);
    if (memory == nullptr) self.lacked_ = true;
    return memory;
  }
  static void release(void* context, void* memory, std::size_t bytes) {
    static_cast<memory_source*>(context)->give_back(memory, bytes);
  }
  void* take(std::size_t bytes, std::size_t alignment) {
    if (from_.allocate == nullptr) {
      alignment_ = alignment;
      return ::operator new (bytes, std::align_val_t{alignment}, std::nothrow);
    }
    void* const memory = from_.allocate(from_.context, bytes, alignment);
    if (reinterpret_cast<std::uintptr_t>(memory) % alignment == 0) return memory;
    misaligned_ = true;
    from_.release(from_.context, memory, bytes);
    return nullptr;
  }
  void give_back(void* memory, std::size_t bytes) {
    if (from_.release != nullptr) return from_.release(from_.context, memory, bytes);
    ::operator delete (memory, std::align_val_t{alignment_});
  }

  kvmeld_allocator from_;
  std::size_t alignment_ = 1;  ///< every request has the same
  std::size_t asked_ = 0;
  bool counts_ = false, lacked_ = false, misaligned_ = false;
};

}  // namespace kvmeld_library
