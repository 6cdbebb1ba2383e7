// The Kokkos backend: phases as team policies on any execution space.
#pragma once

#include <kvmeld/backend/host/tuned/host_kernels.hpp>
#include <kvmeld/backend/host/tuned/host_team.hpp>
#include <kvmeld/backend/host/tuned/instruction_set.hpp>
#include <kvmeld/backend/host/tuned/tuned_kernels.hpp>
#include <kvmeld/backend/kokkos/kokkos_memory.hpp>
#include <kvmeld/backend/kokkos/kokkos_team.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/executor.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

static_assert(KOKKOS_VERSION >= 30400, "kvmeld/kokkos.hpp: Kokkos is older than 3.4");

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Numbers that travel inside a launch: the list may change when the call returns, and nothing waits.
struct number_batch {
  static constexpr std::uint32_t most = 256;
  std::uint32_t numbers[most];
  std::uint32_t* to;
  KOKKOS_INLINE_FUNCTION void operator()(std::uint32_t i) const { to[i] = numbers[i]; }
};

struct nothing {
  template <class Member> KOKKOS_INLINE_FUNCTION void operator()(Member const&) const {}
};

/// A phase on tiles league_rank, league_rank + league_size, ... of all items.
template <class Space, class Phase, class Source> struct kokkos_tiles {
  static constexpr bool on_host = runs_on_host<Space>::value;
  using member = typename Kokkos::TeamPolicy<Space>::member_type;
  using team = kokkos_team<member, std::conditional_t<on_host, host_team, serial_team>>;

  Phase phase;
  Source source;
  std::uint64_t per_item, total;
  std::size_t scratch_bytes;
  int level;
  host_kernels const* kernels;  // null: generic forms

  static constexpr std::size_t kernel_bytes(host_kernels const* kernels) {
    return kernels == nullptr ? 0 : host_team::tuned_bytes;
  }

  KOKKOS_INLINE_FUNCTION void operator()(member const& m) const {
    std::byte* scratch = nullptr;
    std::size_t const bytes = scratch_bytes + (on_host ? kernel_bytes(kernels) : 0);
    if (bytes != 0) scratch = static_cast<std::byte*>(m.team_scratch(level).get_shmem_aligned(bytes, 64));
    for (auto n = static_cast<std::uint64_t>(m.league_rank()); n < total;
         n += static_cast<std::uint64_t>(m.league_size())) {
      auto const item = static_cast<std::uint32_t>(n / per_item);
      if (source.idle(item)) continue;
      tile const t{source.where(item), item, static_cast<std::uint32_t>(n % per_item)};
      if constexpr (on_host) {
        phase(team(m, scratch, scratch_bytes, kernels, scratch + scratch_bytes), t);
      } else {
        phase(team(m, scratch, scratch_bytes), t);
      }
      m.team_barrier();  // the next tile takes the same scratch
    }
  }
};

}  // namespace detail

/// Bytes of a device in host memory, some time after begin(). Kokkos has nothing to ask how far a space is: done() waits.
template <class Space> class kokkos_transfer {
public:
  /// Enqueues the copy. Allocates where it is larger than any before.
  template <class Executor> void begin(Executor& executor, void const* from, std::size_t bytes) {
    if (bytes > host_.size()) host_ = kokkos_memory<Kokkos::HostSpace>(bytes);
    Kokkos::deep_copy(executor.space(), detail::view_bytes<Kokkos::HostSpace>(host_.data(), bytes),
                      detail::view_bytes<typename Space::memory_space>(from, bytes));
  }
  /// Waits, and returns true.
  template <class Executor> bool done(Executor& executor) const {
    executor.space().fence();
    return true;
  }
  void* data() const { return host_.data(); }

private:
  kokkos_memory<Kokkos::HostSpace> host_;
};

/// Runs phases on an instance of a Kokkos execution space, one team per tile; make it between Kokkos::initialize and
/// finalize. On spaces of this machine's cores everything has happened when a call returns, teams are of one lane unless asked
/// otherwise, and use the host backend's kernels. On devices launches are enqueued on the instance, `download` waits, and
/// teams have up to 256 lanes and the generic forms; where Kokkos runs on CUDA, cuda_executor(space.cuda_stream()) is the
/// faster choice. Plans do not depend on the space or the team size. Kokkos allocates its team scratch when a launch first
/// needs more of it: call `reserve` first where allocation on the run path matters. Cannot be recorded in a graph.
/// `Immediate` false treats a host space as a device: no launch is waited for.
template <class Space = Kokkos::DefaultExecutionSpace, bool Immediate = runs_on_host<Space>::value>
class kokkos_executor {
  static constexpr bool on_host = runs_on_host<Space>::value;
  static_assert(on_host || !Immediate,
                "kvmeld: the host cannot read this execution space's memory at any time");

public:
  /// Where phases run.
  using execution_space = Space;
  using memory = kokkos_memory<typename Space::memory_space>;
  using transfer = kokkos_transfer<Space>;
  static constexpr bool immediate = Immediate;
  static constexpr std::uint32_t staged_numbers = 1u << 16;  ///< numbers of the staging area, on devices

  /// `team_size` 0: one lane on a host, 256 or as many as fit on a device. Refuses what the space cannot run.
  explicit kokkos_executor(Space space = {}, std::uint32_t team_size = 0, tuning t = tuning::on,
                           instruction_set wanted = best_instruction_set())
      : space_(std::move(space)), tuning_(t) {
    std::uint32_t const most = most_lanes();
    if (team_size > most) {
      report(message("kokkos_executor: team_size is ", team_size, "; allowed on ", Space::name(),
                     " are 0 to ", most));
    }
    lanes_ = team_size == 0 ? min_of(most, on_host ? 1u : 256u) : min_of(most, team_size);
    bool const alone = on_host && lanes_ == 1;
    kernels_ = alone && t == tuning::on ? kernels_of(wanted) : nullptr;
    if constexpr (!immediate) staging_ = allocate(staged_numbers * sizeof(std::uint32_t));
  }

  /// The largest team that this space can run; single phases may allow less.
  static std::uint32_t most_lanes() {
    return static_cast<std::uint32_t>(
        team_policy(1, 1).team_size_max(detail::nothing{}, Kokkos::ParallelForTag()));
  }
  /// The instance that launches and copies are enqueued on.
  Space const& space() const { return space_; }
  tuning tuning_mode() const { return tuning_; }
  int lanes() const { return static_cast<int>(lanes_); }
  /// Tracks of a default wave.
  std::uint32_t workers() const {
    auto const threads = static_cast<std::uint32_t>(space_.concurrency());
    return max_of(1u, threads / (on_host ? lanes_ : 16 * lanes_));
  }

  memory allocate(std::size_t bytes) const { return memory(bytes); }
  void clear(void* to, std::size_t bytes) const {
    if (bytes == 0) return;
    Kokkos::deep_copy(space_, device_bytes(to, bytes), static_cast<unsigned char>(0));
    if constexpr (immediate) space_.fence();
  }
  /// Small pieces travel inside launches, so that nothing waits.
  void upload(void* to, void const* host, std::size_t bytes) const {
    if (bytes == 0) return;
    if (!immediate && bytes % sizeof(std::uint32_t) == 0 && bytes <= 16 * sizeof(detail::number_batch)) {
      return write(static_cast<std::uint32_t*>(to),
                   {static_cast<std::uint32_t const*>(host), bytes / sizeof(std::uint32_t)});
    }
    Kokkos::deep_copy(space_, device_bytes(to, bytes), detail::view_bytes<Kokkos::HostSpace>(host, bytes));
    space_.fence();
  }
  void download(void* host, void const* from, std::size_t bytes) const {
    if (bytes == 0) return;
    Kokkos::deep_copy(space_, detail::view_bytes<Kokkos::HostSpace>(host, bytes), device_bytes(from, bytes));
    space_.fence();
  }
  /// On hosts the list as it is; on devices a copy, valid until staged_numbers more numbers have been staged. Longer lists
  /// get more room, once.
  index_list stage(index_list list) {
    if constexpr (immediate) {
      return list;
    } else {
      if (list.size() > staging_.size() / sizeof(std::uint32_t)) {
        space_.fence();  // launches may still read what goes
        staging_ = allocate(2 * list.size() * sizeof(std::uint32_t));
        next_ = 0;
      }
      if (next_ + list.size() > staging_.size() / sizeof(std::uint32_t)) next_ = 0;
      std::uint32_t* const to = static_cast<std::uint32_t*>(staging_.data()) + next_;
      write(to, list);
      next_ += list.size();
      return {to, list.size()};
    }
  }
  static constexpr bool records() { return false; }
  static constexpr bool remembers(void*, void (*)(void*)) { return false; }
  static constexpr std::uint32_t limit(char const*, std::uint32_t wanted, std::uint32_t) { return wanted; }

  /// Makes Kokkos allocate `bytes` of scratch per team now.
  void reserve(std::size_t bytes) const {
    bytes += detail::kokkos_tiles<Space, detail::nothing, detail::nothing>::kernel_bytes(kernels_);
    if (bytes == 0) return;
    Kokkos::parallel_for(
        policy(1, lanes_).set_scratch_size(level_of(bytes), Kokkos::PerTeam(static_cast<int>(padded(bytes)))),
        detail::nothing{});
    if constexpr (immediate) space_.fence();
  }

  /// One launch: all tiles of `items` tracks, where source.where(item) is the track. `extent` sizes the grid.
  template <class Phase, class Source>
  void run(Phase const& phase, shape const& extent, std::uint32_t items, Source const& source) const {
    using tiles = detail::kokkos_tiles<Space, Phase, Source>;
    std::uint64_t const per_item = phase.tiles(extent);
    std::uint64_t const total = per_item * items;
    if (total == 0) return;
    auto const league = static_cast<int>(min_of<std::uint64_t>(total, most_teams()));
    tiles work{phase, source, per_item, total, 0, 0, kernels_};
    std::uint32_t lanes = lanes_;
    for (;;) {
      work.scratch_bytes = phase.scratch_bytes(static_cast<int>(lanes));
      std::size_t const bytes = work.scratch_bytes + tiles::kernel_bytes(kernels_);
      work.level = level_of(bytes);
      auto p = policy(league, lanes);
      if (bytes != 0) p.set_scratch_size(work.level, Kokkos::PerTeam(static_cast<int>(padded(bytes))));
      if constexpr (!on_host) {  // this phase's registers may not allow as many
        auto const most = static_cast<std::uint32_t>(p.team_size_max(work, Kokkos::ParallelForTag()));
        if (most < lanes) {
          lanes = most;
          continue;
        }
      }
      Kokkos::parallel_for(p, work);
      break;
    }
    if constexpr (immediate) space_.fence();
  }

private:
  // On devices no block may want more registers than 256 lanes have.
  using team_policy = std::conditional_t<on_host, Kokkos::TeamPolicy<Space>,
                                         Kokkos::TeamPolicy<Space, Kokkos::LaunchBounds<256, 1>>>;

  /// On hosts a thread's share of the teams is fixed: Kokkos' threads that take teams as they come meet at barriers that
  /// spin, for seconds where other programs have the cores. Teams take every so many-th tile instead, which evens out what
  /// tiles differ in.
  std::uint64_t most_teams() const {
    return on_host ? 4 * static_cast<std::uint64_t>(space_.concurrency()) : std::uint64_t{1} << 30;
  }
  team_policy policy(int league, std::uint32_t lanes) const {
    return team_policy(space_, league, static_cast<int>(lanes));
  }
  /// Where scratch lies: near the lanes while it is small, which on hosts is the same memory.
  static int level_of(std::size_t bytes) {
    return on_host || padded(bytes) > static_cast<std::size_t>(Kokkos::TeamPolicy<Space>::scratch_size_max(0))
               ? 1
               : 0;
  }
  static std::size_t padded(std::size_t bytes) { return bytes + 64; }  // for the alignment
  static detail::byte_view<typename Space::memory_space> device_bytes(void const* p, std::size_t bytes) {
    return detail::view_bytes<typename Space::memory_space>(p, bytes);
  }
  void write(std::uint32_t* to, index_list list) const {
    for (std::size_t i = 0; i < list.size(); i += detail::number_batch::most) {
      detail::number_batch batch{};
      std::size_t const n = min_of<std::size_t>(detail::number_batch::most, list.size() - i);
      for (std::size_t j = 0; j < n; ++j) batch.numbers[j] = list[i + j];
      batch.to = to + i;
      using range = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::uint32_t>>;
      Kokkos::parallel_for(range(space_, 0u, static_cast<std::uint32_t>(n)), batch);
    }
  }

  Space space_;
  tuning tuning_;
  std::uint32_t lanes_ = 1;
  host_kernels const* kernels_ = nullptr;
  memory staging_;
  std::size_t next_ = 0;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
