// SPDX-License-Identifier: Apache-2.0
// The host backend. A team is one lane. Threads share the tiles: a small pool's, or the engine's own.
#pragma once

#include <kvmeld/backend/host/host_memory.hpp>
#include <kvmeld/backend/host/processors.hpp>
#include <kvmeld/backend/host/thread_pool.hpp>
#include <kvmeld/backend/host/tuned/host_kernels.hpp>
#include <kvmeld/backend/host/tuned/host_team.hpp>
#include <kvmeld/backend/host/tuned/instruction_set.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/workspace.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/exec/team.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Runs phases on this machine. The results are the same bits for any number of threads and for any loop. One
/// lane computes a tile, and no tile reads what another tile of the same launch writes. All work is done when
/// a call returns. The executor owns the scratch of its threads, which grows to the largest phase that
/// it has run. Call `reserve` first where nothing may allocate later. Two threads must not use one executor
/// at the same time. Copies share the threads and nothing else. Each copy may be used in its own thread. The
/// pool serves one copy at a time; the others meanwhile work in their callers' threads.
class host_executor : public executor_base {
public:
  using memory = host_memory;
  static constexpr bool immediate = true;  ///< all work is done when a call returns

  /// Runs in `threads` threads, the caller's included. 0: one for each processor that the calling
  /// thread may run on, but no more than the CPU quota of a container grants.
  /// 1: no other thread, and no synchronisation. The others are a thread_pool's, and start when a launch
  /// first needs them. More than largest::threads are refused; where exceptions are off, the executor runs in
  /// its caller's thread then. With tuning on, the executor uses the kernels for `wanted` if this processor
  /// has the instructions, otherwise the generic forms.
  explicit host_executor(std::uint32_t threads = 0, tuning t = tuning::on,
                         instruction_set wanted = best_instruction_set())
      : host_executor(possible_threads(threads == 0 ? detail::usable_processors() : threads), parallel_for(),
                      t, wanted) {
    if (threads_ > 1) loop_ = thread_pool(threads_);
  }
  /// Runs in the engine's threads: a launch calls loop(n, body) with n of at most `threads`, 1 to
  /// largest::threads. Copies call the same `loop`. Small launches run in the caller's thread. An
  /// empty `loop` and other numbers are refused. Where exceptions are off, a refused executor runs in its
  /// caller's thread.
  host_executor(parallel_for const& loop, std::uint32_t threads, tuning t = tuning::on,
                instruction_set wanted = best_instruction_set())
      : host_executor(loop ? possible_threads(threads) : no_loop(), loop, t, wanted) {}

  /// Copies threads, tuning and kernels. The copy has scratch of its own.
  host_executor(host_executor const& other)
      : executor_base(),
        threads_(other.threads_),
        loop_(other.loop_),
        tuning_(other.tuning_),
        kernels_(other.kernels_),
        instructions_(other.instructions_),
        allocator_(other.allocator_) {}
  /// Takes over the scratch of the other executor.
  host_executor(host_executor&&) = default;
  /// Takes over the scratch of `other` and frees its own.
  host_executor& operator=(host_executor other) noexcept {
    threads_ = other.threads_;
    loop_ = std::move(other.loop_);
    tuning_ = other.tuning_;
    kernels_ = other.kernels_;
    instructions_ = other.instructions_;
    allocator_ = other.allocator_;
    scratch_ = std::move(other.scratch_);
    return *this;
  }

  /// Makes `from` the source of memory. Caches that are built later with this executor, or with a copy of it,
  /// take their memory and scratch there.
  void use(host_allocator const& from) { allocator_ = from; }

  memory allocate(std::size_t bytes) const { return memory(bytes, allocator_); }
  /// `clear` zeroes memory of the executor; `upload` copies to it, `download` from it. All keep their order
  /// with launches.
  void clear(void* to, std::size_t bytes) const { std::memset(to, 0, bytes); }
  void upload(void* to, void const* host, std::size_t bytes) const { std::memcpy(to, host, bytes); }
  void download(void* host, void const* from, std::size_t bytes) const { std::memcpy(host, from, bytes); }
  /// Returns the list where phases can read it. On the host that is the list itself.
  index_list stage(index_list list) const { return list; }
  std::uint32_t workers() const { return threads_; }
  int lanes() const { return 1; }
  tuning tuning_mode() const { return tuning_; }
  /// The instructions that the tuned forms use; `generic` where tuning is off.
  instruction_set instructions() const { return instructions_; }

  /// Allocates `bytes` of scratch per thread, and what the kernels need in addition. Refuses where there is
  /// no memory; the scratch allocated before stays.
  status reserve(std::size_t bytes) {
    if (make_room(bytes)) return {};
    return raise(refusal("host_executor", "scratch per worker in bytes", bytes, detail::memory_to_be_had));
  }

  /// One launch: runs `phase` on all tiles of `items` tracks; source.where(item) is the track of an item. The
  /// number of tiles per track comes from `extent`.
  template <class Phase, class Source>
  void run(Phase const& phase, shape const& extent, std::uint32_t items, Source const& source) {
    std::uint64_t const per_item = phase.tiles(extent);
    auto const tiles = [&](std::uint64_t first, std::uint64_t last, std::uint32_t worker) {
      std::size_t const bytes = scratch_.size() / threads_, phase_bytes = bytes - kernel_bytes();
      std::byte* const scratch = static_cast<std::byte*>(scratch_.data()) + worker * bytes;
      for (std::uint64_t n = first; n < last; ++n) {
        auto const item = static_cast<std::uint32_t>(n / per_item);
        if (source.idle(item)) continue;
        phase(host_team(bytes == 0 ? nullptr : scratch, phase_bytes, kernels_, scratch + phase_bytes),
              tile{source.where(item), item, static_cast<std::uint32_t>(n % per_item)});
      }
    };
    // A thread that sleeps needs some 40 us to wake. In that time one thread handles about so many entries.
    constexpr std::uint64_t few_entries = 40000;
    bool const few = is_light<Phase>::value && std::uint64_t{items} * extent.capacity <= few_entries;
    share_out(per_item * items, few, phase.scratch_bytes(1), tiles_ref(tiles));
  }

private:
  using tiles_ref = call_ref<std::uint64_t, std::uint64_t, std::uint32_t>;

  /// Calls tiles(first, last, worker) for pieces of `total` tiles. In a rehearsal it only makes room. It is
  /// no template, so it is compiled once.
  void share_out(std::uint64_t total, bool few, std::size_t scratch, tiles_ref tiles) {
    if (rehearses()) {
      if (!make_room(scratch)) lacks(scratch);
      return;
    }
    if (status const s = reserve(scratch); !s.ok()) return;
    if (threads_ == 1 || total <= 1 || few) return tiles(0, total, 0);
    // Neighbouring tiles read the same rows, so one thread takes up to 8 of them at a time, as long as all
    // threads stay busy.
    std::uint64_t const share =
        max_of<std::uint64_t>(1, min_of<std::uint64_t>(8, total / (std::uint64_t{16} * threads_)));
    std::uint64_t const shares = (total + share - 1) / share;
    std::atomic<std::uint64_t> taken{0};
    auto const work = [&](std::uint32_t worker) {
      for (std::uint64_t n = taken.fetch_add(share); n < total; n = taken.fetch_add(share))
        tiles(n, min_of(n + share, total), worker);
    };
    loop_(static_cast<std::uint32_t>(min_of<std::uint64_t>(threads_, shares)), part_ref(work));
  }
  bool make_room(std::size_t bytes) {
    std::size_t const wanted = scratch_size(bytes) + kernel_bytes();
    if (wanted <= scratch_.size() / threads_) return true;
    memory larger(wanted * threads_, allocator_);
    if (larger.data() == nullptr) return false;
    scratch_ = std::move(larger);
    return true;
  }
  std::size_t kernel_bytes() const { return kernels_ == nullptr ? 0 : host_team::tuned_bytes; }
  host_executor(std::uint32_t threads, parallel_for loop, tuning t, instruction_set wanted)
      : threads_(threads),
        loop_(std::move(loop)),
        tuning_(t),
        kernels_(t == tuning::on ? kernels_of(wanted) : nullptr),
        instructions_(kernels_ == nullptr ? instruction_set::generic : wanted) {}
  static std::uint32_t possible_threads(std::uint32_t threads) {
    if (threads >= 1 && threads <= largest::threads) return threads;
    (void)raise(refusal("host_executor", "threads", threads, "1 to ", largest::threads));
    return 1;
  }
  static std::uint32_t no_loop() {
    (void)raise(refusal("host_executor", "loop", "empty", "callable as loop(count, body)"));
    return 1;
  }

  std::uint32_t threads_;
  parallel_for loop_;
  tuning tuning_;
  host_kernels const* kernels_;
  instruction_set instructions_;
  host_allocator allocator_;
  memory scratch_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
