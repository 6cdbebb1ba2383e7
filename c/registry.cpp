#include "registry.hpp"

#include <kvmeld/core/error.hpp>

#include <atomic>
#include <cstddef>
#include <new>
#include <string>
#include <utility>

namespace kvmeld_library {

namespace {

// There is no lock. A child of fork has the threads of its parent no more, and would wait for ever for a lock
// that one of them held. Each change below is one atomic step, so the child finds every place whole; a cache
// that a call of the parent was using stays in use.

/// A place for a cache. All zero is a free place.
struct place {
  /// 0: free. Else the number of the cache, which is even; the odd one behind it while a call uses the cache,
  /// or while it comes or goes.
  std::atomic<std::uint64_t> word;
  held_cache* cache;  ///< belongs to whoever made `word` odd
};

constexpr std::size_t block_places = 256, most_blocks = 4096;
struct block {
  place at[block_places];
};

/// Blocks are made when they are first needed, and never end: a program may end while its threads still call.
std::atomic<block*> blocks[most_blocks];
std::atomic<std::uint64_t> made{0};

// A number: caches made so far, then the index of the place (20 bits), then 0. No number comes twice.
constexpr std::uint64_t index_bits = 20;
static_assert(block_places * most_blocks == std::uint64_t{1} << index_bits);

std::uint64_t number_at(std::size_t index) {
  // The first number differs between copies of the library, so each refuses the handles of another.
  auto const salt = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&made)) >> 4 & 0xffffffffu;
  return ((made.fetch_add(1) + salt + 1) << index_bits | index) << 1;
}

// Odd factors map numbers to numbers one to one: handles look alike as little as they can.
constexpr std::uint64_t factor = 0x9e3779b97f4a7c15u;
constexpr std::uint64_t inverse_of(std::uint64_t x) {
  std::uint64_t y = x;  // right in 3 bits; each step doubles them
  for (int i = 0; i < 5; ++i) y *= 2 - x * y;
  return y;
}
static_assert(factor * inverse_of(factor) == 1);

/// The place that a number names; null if there is none.
place* place_of(std::uint64_t number) {
  std::size_t const index = number >> 1 & (block_places * most_blocks - 1);
  block* const b = blocks[index / block_places].load(std::memory_order_acquire);
  return b == nullptr ? nullptr : &b->at[index % block_places];
}

/// Takes the cache of a handle into use, and returns its place.
place& acquire(char const* call, kvmeld_cache handle) {
  std::uint64_t const number = handle.id * inverse_of(factor);
  place* const p = number % 2 == 0 && number != 0 ? place_of(number) : nullptr;
  std::uint64_t found = number;
  if (p != nullptr && p->word.compare_exchange_strong(found, number + 1, std::memory_order_acquire))
    return *p;
  if (p != nullptr && found == number + 1) {
    throw failure(KVMELD_BUSY,
                  kvmeld::refusal(call, "cache", "in use", "free: one call at a time works on a cache"));
  }
  throw failure(KVMELD_INVALID_HANDLE,
                kvmeld::refusal(call, "cache", handle.id,
                                "one that kvmeld_create made and kvmeld_destroy has not destroyed"));
}

/// The block of this number; made if there is none.
block& block_at(std::size_t i) {
  block* here = blocks[i].load(std::memory_order_acquire);
  if (here != nullptr) return *here;
  auto fresh = std::make_unique<block>();
  if (blocks[i].compare_exchange_strong(here, fresh.get())) return *fresh.release();
  return *here;
}

}  // namespace

kvmeld_cache keep(std::unique_ptr<held_cache> cache) {
  for (std::size_t i = 0; i < block_places * most_blocks; ++i) {
    place& p = block_at(i / block_places).at[i % block_places];
    std::uint64_t free = 0;
    if (p.word.load(std::memory_order_relaxed) != 0) continue;
    std::uint64_t const number = number_at(i);
    if (!p.word.compare_exchange_strong(free, number + 1, std::memory_order_acquire)) continue;
    p.cache = cache.release();
    p.word.store(number, std::memory_order_release);
    return {number * factor};
  }
  throw std::bad_alloc();
}

std::unique_ptr<held_cache> take_out(char const* call, kvmeld_cache handle) {
  place& p = acquire(call, handle);
  std::unique_ptr<held_cache> out(std::exchange(p.cache, nullptr));
  p.word.store(0, std::memory_order_release);
  return out;
}

in_use::in_use(char const* call, kvmeld_cache handle) {
  place& p = acquire(call, handle);
  word_ = &p.word;
  cache_ = p.cache;
}
in_use::~in_use() { word_->fetch_sub(1, std::memory_order_release); }

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
