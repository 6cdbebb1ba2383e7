// Where a cache's memory comes from: the system, or two functions.
#pragma once

#include "failure.hpp"

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

  /// Grants the next `served` requests and refuses the rest. `asked` is the bytes granted plus the first
  /// request refused, which `counted` tells of.
  void only_count(int served) {
    counts_ = true;
    served_ = served;
  }
  std::size_t asked() const { return asked_; }
  bool counted() const { return counted_; }

  /// Forgets what went wrong.
  void begin_call() { lacked_ = misaligned_ = false; }
  /// Whether there was no memory since begin_call.
  bool lacked() const { return lacked_; }
  /// Whether the program's function returned memory that is not aligned.
  bool misaligned() const { return misaligned_; }

  /// Null: there is no memory.
  void* take(std::size_t bytes, std::size_t alignment) {
    bool const refused = counts_ && served_ == 0;
    if (counts_ && !lacked_) asked_ += bytes;
    if (served_ != 0) --served_;
    counted_ = counted_ || refused;
    void* const memory = refused ? nullptr : obtain(bytes, alignment);
    if (memory == nullptr) lacked_ = true;
    return memory;
  }
  void give_back(void* memory, std::size_t bytes) {
    if (from_.release != nullptr) return from_.release(from_.context, memory, bytes);
    ::operator delete (memory, std::align_val_t{alignment_});
  }

private:
  static void* allocate(void* context, std::size_t bytes, std::size_t alignment) {
    return static_cast<memory_source*>(context)->take(bytes, alignment);
  }
  static void release(void* context, void* memory, std::size_t bytes) {
    static_cast<memory_source*>(context)->give_back(memory, bytes);
  }
  void* obtain(std::size_t bytes, std::size_t alignment) {
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
  kvmeld_allocator from_;
  std::size_t alignment_ = 1;  ///< every request has the same
  std::size_t asked_ = 0;
  int served_ = 0;
  bool counts_ = false, counted_ = false, lacked_ = false, misaligned_ = false;
};

/// If the allocator caused a refusal, throws it with the status that says so.
inline void throw_lack_of_memory(memory_source const& memory, char const* call, char const* text) {
  if (memory.misaligned()) {
    throw failure(KVMELD_INTERNAL, kvmeld::refusal(call, "memory of the allocator", "not aligned",
                                                   "at a multiple of the alignment that it was asked for"));
  }
  if (memory.lacked()) throw failure(KVMELD_NO_MEMORY, text);
}

}  // namespace kvmeld_library
