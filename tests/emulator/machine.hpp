// Runs a grid of PTX on the CPU: thread after thread, each as far as the next place where it has to wait for
// others. No order of threads but the one that barriers make can be relied on, so that a missing one shows.
#pragma once

#include "memory.hpp"
#include "program.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace emulator {

struct extent3 {
  unsigned x = 1, y = 1, z = 1;
  std::size_t count() const { return std::size_t{x} * y * z; }
};

/// What all lanes of a warp, all threads of a block, or all threads of a cluster do together.
enum class collective : std::uint16_t { none, barrier, cluster_wait, warp_barrier, shuffle, vote, multiply };

class block;
class cluster;

struct frame {
  function const* f = nullptr;
  instruction const* back = nullptr;
  call_site const* call = nullptr;
  std::vector<std::uint64_t> registers;
  std::vector<std::byte> parameters, local;
};

struct thread {
  enum class state { running, waiting, done };
  std::uint64_t* r = nullptr;  ///< registers of the current frame
  instruction const* pc = nullptr;
  state now = state::done;
  block* where = nullptr;
  agent who;
  std::vector<frame> frames;
  std::size_t depth = 0;
  std::uint32_t tid[3] = {};
  struct copy {
    std::byte* to;
    std::byte const* from;
    unsigned bytes;
    std::size_t group;
    instruction const* at;
    bool landed;
  };
  std::vector<copy> copies;  ///< asynchronous ones that nobody has waited for
  std::size_t copy_group = 0;
  /// Has arrived at a barrier of the cluster and not waited since; did so without ordering memory; has
  /// waited at one, so that the other blocks are known to run.
  bool arrived = false, relaxed = false, met = false;
  std::uint32_t phase = 0;  ///< of the cluster's barrier, when the thread arrived

  unsigned lane() const { return who.thread % 32u; }
  void wait() {
    now = state::waiting;
    --pc;
  }
};

template <class T> T get(thread const& t, std::uint16_t slot) {
  T x;
  std::memcpy(&x, &t.r[slot], sizeof x);
  return x;
}
template <class T> void put(thread& t, std::uint16_t slot, T x) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  t.r[slot] = bits;
}

/// A launch as the runtime hands it over.
struct launch {
  function const* kernel = nullptr;
  extent3 grid, block;
  unsigned cluster = 1;  ///< blocks of a cluster, along x
  std::size_t dynamic_shared = 0;
  std::vector<std::byte> parameters;
};

struct launch_figures {
  std::uint64_t steps = 0;  ///< instructions of all threads
  traffic moved;
};

/// Runs launches one after another.
class machine {
public:
  enum class order { forward, backward, shuffled };

  explicit machine(memory& device) : device_(device) {}

  /// Throws `fault` where a device would stop; what is wrong without stopping it goes to `report`.
  launch_figures run(launch const& l);

  memory& device() { return device_; }
  /// Notes a finding once for each place in a kernel and each kind of finding.
  void report(std::string const& kernel, std::string const& place, std::string const& what);
  std::size_t findings() const { return findings_; }

  enum class landing { late, early, shuffled };

  order threads = order::shuffled;
  landing copies = landing::shuffled;  ///< when asynchronous copies take place
  std::uint32_t seed = 1;

private:
  friend class block;
  friend class cluster;
  memory& device_;
  std::uint32_t blocks_ = 1;
  std::size_t findings_ = 0;
  std::set<std::string> known_;
  std::vector<thread> threads_;     ///< kept from cluster to cluster
  std::vector<std::byte*> shared_;  ///< of each block of a cluster
  std::size_t shared_bytes_ = 0;
};

/// A block while it runs.
class block {
public:
  block(cluster& c, extent3 index, unsigned rank, std::uint32_t number, std::uint32_t first);
  /// Every warp goes as far as it can. False if none moved.
  bool step();
  /// Names a thread that waits in vain.
  void check_end() const;

  cluster& of() const { return of_; }
  unsigned rank() const { return rank_; }
  std::byte* shared() const { return shared_; }
  /// Checks an access; ends the launch where no device would go on.
  void access(thread& t, instruction const& i, memory::access a, std::byte* p, std::size_t bytes,
              void const* stored);
  void enter(thread& t, function const& f, call_site const* call, instruction const* back);
  void leave(thread& t);
  void print(thread& t, call_site const& c);
  /// An asynchronous copy takes place now, or when its thread waits for it.
  void begin_copy(thread& t, instruction const& i, std::byte* to, std::byte const* from, unsigned bytes);
  /// Ends asynchronous copies of the thread's first groups.
  void finish_copies(thread& t, std::size_t groups);
  [[noreturn]] void stop(thread const& t, instruction const& i, std::string const& what) const;
  std::uint64_t steps() const { return steps_; }

private:
  friend class cluster;
  void run_thread(thread& t);
  void land(thread& t, thread::copy const& c);
  void visit_other(thread& t, instruction const& i, block& owner);
  void check_visits() const;
  bool run_warp(std::size_t warp);
  bool together(std::size_t warp);
  bool meet();
  void shuffle(std::vector<thread*> const& lanes, instruction const& i);
  void vote(std::vector<thread*> const& lanes, instruction const& i);
  void multiply(std::vector<thread*> const& lanes, instruction const& i);
  std::string place(thread const& t, instruction const& i) const;
  std::uint32_t random() { return random_ = random_ * 1664525u + 1013904223u; }

  cluster& of_;
  machine& m_;
  launch const& l_;
  extent3 index_;
  unsigned rank_;
  std::byte* shared_;
  std::size_t shared_bytes_;
  std::size_t count_;
  thread* threads_;
  std::uint64_t steps_ = 0;
  std::uint32_t random_;
  std::size_t running_;  ///< threads that have not ended
  /// The last access of another block to this one's shared memory, by arrivals at the cluster's barrier.
  struct foreign {
    std::uint16_t arrivals;
    std::string place, thread;
  };
  std::optional<foreign> foreign_;
  std::uint16_t waits_ = 0;  ///< the most of threads that ended
};

/// Blocks that run at the same time. Each launch has clusters; most have a single block each.
class cluster {
public:
  cluster(machine& m, launch const& l, extent3 first, std::uint32_t number, std::uint32_t first_block);
  cluster(cluster const&) = delete;
  cluster& operator=(cluster const&) = delete;
  void run();

  unsigned size() const { return static_cast<unsigned>(blocks_.size()); }
  block& at(unsigned rank) { return blocks_[rank]; }
  /// The block whose shared memory this is; null if it is none's.
  block* owner(std::byte const* p);
  /// The PTX window that holds the shared memory of all blocks: addresses of the block itself are as in its
  /// own window, others have their rank above.
  std::byte* in_window(block const& from, std::uint32_t address);
  std::uint32_t window(block const& to, std::uint32_t offset) const { return (to.rank() + 1) << 24 | offset; }

  void arrive(thread& t, instruction const& i, bool relaxed);
  void wait(thread& t, instruction const& i);
  std::uint64_t steps() const;

private:
  friend class block;
  bool meet();
  static void pass(thread& t);
  std::uint32_t random() { return random_ = random_ * 1664525u + 1013904223u; }

  machine& m_;
  launch const& l_;
  std::vector<block> blocks_;
  std::uint32_t phase_ = 0;
  std::uint32_t random_;
  std::optional<bool> relaxed_;  ///< how threads arrive in this phase
};

inline collective collective_of(instruction const& i) { return static_cast<collective>(i.detail >> 8); }

}  // namespace emulator
