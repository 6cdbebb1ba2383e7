#include "registry.hpp"

#include <kvmeld/core/error.hpp>

#include <mutex>
#include <unordered_map>
#include <utility>

namespace kvmeld_library {

namespace {

struct registry {
  std::mutex lock;  ///< of all below; held while looking up, never during a call
  std::unordered_map<std::uint64_t, std::unique_ptr<held_cache>> caches;
  std::uint64_t made = 0;
};

/// Never destroyed, because a program may end while its threads still call.
registry& all() {
  static auto& r = *new registry;
  return r;
}

/// The cache of a handle. The lock is held.
std::unique_ptr<held_cache>& find(char const* call, kvmeld_cache handle) {
  auto const found = all().caches.find(handle.id);
  if (found == all().caches.end()) {
    throw failure(KVMELD_INVALID_HANDLE,
                  kvmeld::refusal(call, "cache", handle.id,
                                  "one that kvmeld_create made and kvmeld_destroy has not destroyed"));
  }
  if (found->second->busy) {
    throw failure(KVMELD_BUSY,
                  kvmeld::refusal(call, "cache", "in use", "free: one call at a time works on a cache"));
  }
  return found->second;
}

}  // namespace

kvmeld_cache keep(std::unique_ptr<held_cache> cache) {
  std::lock_guard<std::mutex> const locked(all().lock);
  // Odd factors map numbers to numbers one to one. The address differs between copies of the library.
  auto const salt = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&all()));
  std::uint64_t id = 0;
  while (id == 0) id = (++all().made + salt) * 0x9e3779b97f4a7c15u;
  all().caches.emplace(id, std::move(cache));
  return {id};
}

std::unique_ptr<held_cache> take_out(char const* call, kvmeld_cache handle) {
  std::lock_guard<std::mutex> const locked(all().lock);
  std::unique_ptr<held_cache> out = std::move(find(call, handle));
  all().caches.erase(handle.id);
  return out;
}

in_use::in_use(char const* call, kvmeld_cache handle) {
  std::lock_guard<std::mutex> const locked(all().lock);
  cache_ = find(call, handle).get();
  cache_->busy = true;
}
in_use::~in_use() {
  std::lock_guard<std::mutex> const locked(all().lock);
  cache_->busy = false;
}

void throw_lack_of_memory(memory_source const& memory, char const* call, char const* text) {
  if (memory.misaligned()) {
    throw failure(KVMELD_INTERNAL, kvmeld::refusal(call, "memory of the allocator", "not aligned",
                                                   "at a multiple of the alignment that it was asked for"));
  }
  if (memory.lacked()) throw failure(KVMELD_NO_MEMORY, text);
}

void refuse_capture(char const* call, [[maybe_unused]] std::int32_t device, [[maybe_unused]] void* stream) {
  if constexpr (with_cuda) {
    if (device >= 0 && is_capturing(stream))
      refuse(call, "options.stream", "being captured", "a stream outside of a capture");
  }
}

void refuse_faults(char const* call, held_cache const& held) {
  if (char const* const error = held.cache->fault(); error != nullptr) {
    throw failure(KVMELD_DEVICE_ERROR,
                  kvmeld::refusal(call, "the CUDA device", kvmeld::message("faulty (", error, ")"),
                                  "without errors; this cache must not be used any more"));
  }
}

}  // namespace kvmeld_library
