// The emulated device's memory: what is allocated, what was written, and by whom.
#pragma once

#include "history.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>

namespace emulator {

/// What a kernel did that a device would not forgive.
struct fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Who accesses memory, and how far it has come: two accesses are ordered if a barrier of the block lies
/// between them, or one of the warp for lanes of one warp, or one of the cluster for blocks of one cluster.
struct agent {
  std::uint32_t block = 0;        ///< a number that no other block of the process has
  std::uint32_t first_block = 0;  ///< of the same launch
  std::uint16_t thread = 0;
  std::uint8_t rank = 0;  ///< of the block in its cluster, whose blocks have consecutive numbers
  std::uint32_t block_barriers = 0;
  std::uint16_t warp_barriers = 0;
  /// At barriers of the cluster. They order what came before an arrival with what comes after the wait, and
  /// nothing of what lies between.
  std::uint16_t arrivals = 0, waits = 0;
  /// Shared memory may be read where nobody wrote: kernels fill a tile partly and multiply it whole, and what
  /// comes of the rest is no result. It is no number, so that one which does come into a result shows.
  bool in_shared = false;
};

/// Bytes that kernels moved, 32-byte sectors counted once a launch.
struct traffic {
  std::uint64_t asked = 0;  ///< bytes of all loads and stores
  std::uint64_t read = 0, written = 0;
};

/// A region that global and shared memory are taken from. Each byte has a state (allocated, written) and,
/// while races are looked for, its last reader and writer.
class memory {
public:
  /// An asynchronous copy stores at any time between its beginning and the wait that ends it.
  enum class access { load, store, atomic, copy_begins, copy_ends };

  memory();
  ~memory();
  memory(memory const&) = delete;
  memory& operator=(memory const&) = delete;

  /// 256-byte aligned; null if there is none left.
  void* allocate(std::size_t bytes, char const* kind);
  /// False if `p` is nothing that was allocated.
  bool free(void* p);
  /// Of an allocation; 0 if `p` is none.
  std::size_t bytes_of(void const* p) const {
    auto const it = contains(p) ? pieces_.find(index(p)) : pieces_.end();
    return it == pieces_.end() ? 0 : it->second.bytes;
  }
  /// Allocated again, nothing written.
  void renew(void* p);
  bool contains(void const* p) const {
    return reinterpret_cast<std::uintptr_t>(p) - reinterpret_cast<std::uintptr_t>(base_) < size_;
  }
  /// Bytes that the host or a copy wrote, reads, or moves with their states.
  void wrote(void const* p, std::size_t bytes);
  void copied(void* to, void const* from, std::size_t bytes);
  /// Throws `fault` unless all bytes are one allocation's.
  void require(void const* p, std::size_t bytes, char const* what) const;
  /// The first byte of the range that nobody wrote, or `bytes`.
  std::size_t unwritten(void const* p, std::size_t bytes) const;
  /// Where `p` lies, in words.
  std::string place(void const* p) const;

  /// An access of a kernel, checked; `used` says which of the bytes count. What it finds wrong it returns in
  /// words, empty if nothing; throws `fault` where no device would go on.
  std::string kernel(access a, void const* p, std::size_t bytes, std::uint32_t used, agent const& who,
                     void const* stored);
  /// The work that makes the next accesses.
  void begin_work(stamp const& s) { history_.begin(s); }
  void begin_launch(std::uint32_t first_block) {
    ++launch_;
    history_.launched(first_block);
    traffic_ = {};
  }
  /// A copy or the like, of the current work. Returns what other work, in no order with it, does with these
  /// bytes; empty if nothing.
  std::string touched(void const* p, std::size_t bytes, bool writes);
  traffic const& moved() const { return traffic_; }

  bool look_for_races = true;

private:
  enum state : std::uint8_t { allocated = 1, written = 2, copying = 4 };
  /// Who else visited, not in order with the last: lanes of its warp, warps of its block, blocks of its
  /// cluster, other clusters.
  enum mark : std::uint8_t { atomically = 1, lanes = 2, warps = 4, blocks = 8, clusters = 16 };
  struct visit {
    std::uint32_t block;
    std::uint16_t thread;
    std::uint8_t marks, rank;
    std::uint32_t block_barriers;
    std::uint16_t warp_barriers;
    std::uint16_t arrivals;  ///< the most of all who are marked
  };
  static_assert(sizeof(visit) == 16);
  struct visits {
    visit read, write;
  };
  struct piece {
    std::size_t bytes;
    char const* kind;
    std::uint32_t since;  ///< the history's serial number
  };
  static bool cluster_waited(visit const& before, agent const& who);
  bool ordered(visit const& before, agent const& who, std::size_t at) const;
  bool kernel_came_before(std::uint32_t block, std::size_t at) const;
  history::range const* open(std::byte const* p, std::size_t bytes, bool writes) const;
  /// The last visit, with marks for those before that it is not in order with.
  static visit joined(visit const& before, agent const& who);
  std::size_t index(void const* p) const {
    return static_cast<std::size_t>(static_cast<std::byte const*>(p) - base_);
  }

  std::size_t size_ = std::size_t{4} << 30;
  std::byte* base_ = nullptr;
  std::uint8_t* states_ = nullptr;
  visits* visits_ = nullptr;
  std::uint32_t *read_in_ = nullptr, *written_in_ = nullptr;  ///< the launch that last touched a sector
  std::uint32_t launch_ = 0;
  traffic traffic_;
  history history_;
  std::size_t next_ = 256;
  std::map<std::size_t, piece> pieces_;            ///< by their first byte
  std::multimap<std::size_t, std::size_t> spare_;  ///< given back, by size
};

}  // namespace emulator
