// The caches that handles stand for. A handle's number is never given out again, and differs from those of
// another copy of the library in the same process.
#pragma once

#include "current_device.hpp"
#include "engine_cache.hpp"
#include "failure.hpp"
#include "memory_source.hpp"

#include <kvmeld/cache/cache_options.hpp>
#include <kvmeld/kvmeld.h>
#include <kvmeld/queries/queries.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace kvmeld_library {

/// All that belongs to a handle.
struct held_cache {
  std::unique_ptr<memory_source> memory;  ///< outlives the cache
  std::unique_ptr<engine_cache> cache;
  kvmeld::cache_options sizes;
  std::string policy;
  std::int32_t device = -1;            ///< options.device
  void* stream = nullptr;              ///< options.stream
  kvmeld::attention_params attention;  ///< options.attention, for layer 0
  float_memory sinks;                  ///< what attention.sink points to, or null
};

/// Keeps a cache, and returns its handle.
kvmeld_cache keep(std::unique_ptr<held_cache> cache);

/// Takes a cache out of the registry. Refuses handles of no cache, and caches that are in use.
std::unique_ptr<held_cache> take_out(char const* call, kvmeld_cache handle);

/// A cache during one call. Refuses handles of no cache, and caches that another call uses.
class in_use {
public:
  in_use(char const* call, kvmeld_cache handle);
  ~in_use();
  in_use(in_use const&) = delete;
  held_cache& operator*() const { return *cache_; }

private:
  std::atomic<std::uint64_t>* word_;  ///< of its place: odd while this lives
  held_cache* cache_;
};

/// If the runtime of the cache's device has reported an error, throws it.
void refuse_faults(char const* call, held_cache const& held);
/// Refuses a stream of the current device that is being captured: what a call enqueues would become a part of
/// the graph. A negative device: does nothing.
void refuse_capture(char const* call, std::int32_t device, void* stream);

/// Runs the body of a function that works on a cache: body(held_cache&).
template <class Body> kvmeld_status on_cache(char const* call, kvmeld_cache handle, Body body) noexcept {
  return guarded([&] {
    in_use const used(call, handle);
    held_cache& held = *used;
    current_device const current(held.device);
    held.memory->begin_call();
    refuse_faults(call, held);
    refuse_capture(call, held.device, held.stream);
    try {
      body(held);
    } catch (kvmeld::invalid_argument const& refused) {
      throw_lack_of_memory(*held.memory, call, refused.what());
      throw;
    }
    refuse_faults(call, held);
  });
}

}  // namespace kvmeld_library
