// An executor whose teams have several lanes, each a thread behind a checking barrier: what a block of a
// device is, on a machine that ThreadSanitizer understands. Scratch is poisoned, exactly as large as
// declared, and guarded.
#pragma once

#include "checking_barrier.hpp"
#include "thread_pool.hpp"

#include <kvmeld/backend/host/host_executor.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <sstream>
#include <vector>

namespace support {

// What the lanes of one team share: the barrier, the values of collective calls, the scratch.
class team_board {
public:
  explicit team_board(std::uint32_t lanes) : barrier(lanes) {
    for (auto& v : values) v.resize(lanes);
  }

  static constexpr std::size_t guard = 64;
  static constexpr unsigned char guard_byte = 0xA5, poison_byte = 0xFF;

  // `bytes` of scratch with a guard on either side; the capacity never grows beyond what was declared.
  void prepare(std::size_t bytes) {
    declared = bytes;
    std::size_t const whole = bytes + 2 * guard;
    if (memory.size() < whole) memory = kvmeld::host_memory(whole);
    if (memory.size() < whole) throw std::bad_alloc();
    std::memset(memory.data(), guard_byte, whole);
    poison();
  }
  void poison() { std::memset(scratch(), poison_byte, declared); }
  std::byte* scratch() { return static_cast<std::byte*>(memory.data()) + guard; }
  void check_guards() {
    auto const* const bytes = static_cast<unsigned char const*>(memory.data());
    for (std::size_t i = 0; i < guard; ++i) {
      if (bytes[i] == guard_byte && bytes[guard + declared + i] == guard_byte) continue;
      found("a phase wrote beyond the " + std::to_string(declared) + " bytes of scratch it declared");
      return;
    }
  }

  checking_barrier barrier;
  std::vector<std::uint32_t> values[2];  // alternate, so that one barrier per collective call is enough
  kvmeld::host_memory memory;
  std::size_t declared = 0;
};

// The team of kvmeld/exec/team.hpp as one lane sees it. The places of calls come from default arguments.
class lane_team {
public:
  lane_team(team_board& board, std::uint32_t lane, std::uint32_t lanes)
      : board_(board), lane_(lane), lanes_(lanes) {}
  lane_team(lane_team const&) = delete;
  lane_team& operator=(lane_team const&) = delete;

  std::uint32_t lane() const { return lane_; }
  std::uint32_t lanes() const { return lanes_; }

  void sync(char const* file = __builtin_FILE(), int line = __builtin_LINE()) const {
    place_.note("sync", file, line, 0);
    board_.barrier.arrive(lane_, place_);
  }
  template <class Op>
  std::uint32_t reduce(std::uint32_t x, Op op, char const* file = __builtin_FILE(),
                       int line = __builtin_LINE()) const {
    std::vector<std::uint32_t> const& all = exchange("reduce", x, file, line);
    std::uint32_t result = all[0];
    for (std::uint32_t i = 1; i < lanes_; ++i) result = op(result, all[i]);
    return result;
  }
  kvmeld::scan_result scan(std::uint32_t x, char const* file = __builtin_FILE(),
                           int line = __builtin_LINE()) const {
    std::vector<std::uint32_t> const& all = exchange("scan", x, file, line);
    kvmeld::scan_result result{0, 0};
    for (std::uint32_t i = 0; i < lanes_; ++i) {
      if (i == lane_) result.before = result.total;
      result.total += all[i];
    }
    return result;
  }
  // No barrier, but noted: a lane that leaves one out is found at the next barrier.
  template <class F>
  void for_each(std::uint32_t n, F f, char const* file = __builtin_FILE(),
                int line = __builtin_LINE()) const {
    place_.note("for_each", file, line, n);
    for (std::uint32_t i = lane_; i < n; i += lanes_) f(i);
  }
  std::uint32_t fetch_add(std::uint32_t* where, std::uint32_t x) const {
    return __atomic_fetch_add(where, x, __ATOMIC_RELAXED);
  }
  template <class T>
  T* scratch(std::size_t n, char const* file = __builtin_FILE(), int line = __builtin_LINE()) const {
    place_.note("scratch", file, line, n * sizeof(T));
    std::size_t const begin = used_;
    used_ += kvmeld::scratch_size(n * sizeof(T));
    if (used_ > board_.declared && lane_ == 0) {
      found("scratch at " + place_.text() + ": " + std::to_string(used_) + " bytes asked for, " +
            std::to_string(board_.declared) + " declared");
    }
    return reinterpret_cast<T*>(board_.scratch() + begin);
  }

  // Called by the executor around a tile.
  void begin_tile() const {
    used_ = 0;
    if (lane_ == 0) board_.poison();
    settle("begin of tile");
  }
  void end_tile() const {
    settle("end of tile");
    if (lane_ == 0) board_.check_guards();
  }

private:
  void settle(char const* what) const {
    place_.note(what, "the executor", 0, 0);
    board_.barrier.arrive(lane_, place_);
  }
  std::vector<std::uint32_t> const& exchange(char const* what, std::uint32_t x, char const* file,
                                             int line) const {
    std::vector<std::uint32_t>& values = board_.values[exchanges_++ % 2];
    values[lane_] = x;
    place_.note(what, file, line, 0);
    board_.barrier.arrive(lane_, place_);
    return values;
  }

  team_board& board_;
  std::uint32_t lane_, lanes_;
  mutable place place_;
  mutable std::size_t used_ = 0;
  mutable std::uint32_t exchanges_ = 0;
};

enum class tile_order { ascending, descending };

// `teams` teams of `lanes` lanes; team i takes every teams-th tile. Copies share the threads.
class lane_executor : public kvmeld::executor_base {
public:
  using memory = kvmeld::host_memory;
  static constexpr bool immediate = true;

  explicit lane_executor(std::uint32_t lanes, std::uint32_t teams = 1,
                         tile_order order = tile_order::ascending)
      : lanes_(lanes), teams_(teams), order_(order), pool_(std::make_shared<thread_pool>(lanes * teams)) {
    for (std::uint32_t i = 0; i < teams; ++i) boards_.push_back(std::make_shared<team_board>(lanes));
  }

  memory allocate(std::size_t bytes) const { return memory(bytes); }
  void clear(void* to, std::size_t bytes) const { std::memset(to, 0, bytes); }
  void upload(void* to, void const* host, std::size_t bytes) const { std::memcpy(to, host, bytes); }
  void download(void* host, void const* from, std::size_t bytes) const { std::memcpy(host, from, bytes); }
  kvmeld::index_list stage(kvmeld::index_list list) const { return list; }
  std::uint32_t workers() const { return teams_; }
  int lanes() const { return static_cast<int>(lanes_); }
  void reserve(std::size_t) {}

  template <class Phase, class Source>
  void run(Phase const& phase, kvmeld::shape const& extent, std::uint32_t items, Source const& source) {
    run_teams(phase, extent, items, source, [](team_board& board, std::uint32_t lane, std::uint32_t lanes) {
      return lane_team(board, lane, lanes);
    });
  }

protected:
  // make(board, lane, lanes): the team as one lane sees it.
  template <class Phase, class Source, class Make>
  void run_teams(Phase const& phase, kvmeld::shape const& extent, std::uint32_t items, Source const& source,
                 Make make) {
    std::uint64_t const per_item = phase.tiles(extent);
    std::uint64_t const total = per_item * items;
    if (total == 0) return;
    for (auto const& board : boards_) board->prepare(phase.scratch_bytes(lanes()));
    if (rehearses()) return;
    for (auto const& board : boards_) board->barrier.mend();
    pool_->run([&](std::uint32_t thread) {
      std::uint32_t const number = thread / lanes_;
      auto const team = make(*boards_[number], thread % lanes_, lanes_);
      for (std::uint64_t i = number; i < total; i += teams_) {
        std::uint64_t const n = order_ == tile_order::ascending ? i : total - 1 - i;
        auto const item = static_cast<std::uint32_t>(n / per_item);
        if (source.idle(item)) continue;
        team.begin_tile();
        phase(team, kvmeld::tile{source.where(item), item, static_cast<std::uint32_t>(n % per_item)});
        team.end_tile();
      }
    });
  }

private:
  std::uint32_t lanes_, teams_;
  tile_order order_;
  std::shared_ptr<thread_pool> pool_;
  std::vector<std::shared_ptr<team_board>> boards_;
};

}  // namespace support
