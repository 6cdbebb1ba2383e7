// SPDX-License-Identifier: Apache-2.0
// The Kokkos backend: phases run as team policies on any execution space.
#pragma once

#include <kvmeld/backend/host/tuned/host_kernels.hpp>
#include <kvmeld/backend/host/tuned/host_team.hpp>
#include <kvmeld/backend/host/tuned/instruction_set.hpp>
#include <kvmeld/backend/kokkos/kokkos_memory.hpp>
#include <kvmeld/backend/kokkos/kokkos_team.hpp>
#include <kvmeld/backend/kokkos/kokkos_tiles.hpp>
#include <kvmeld/backend/kokkos/kokkos_transfer.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/exec/staging_ring.hpp>
#include <kvmeld/exec/team.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <type_traits>
#include <utility>

static_assert(KOKKOS_VERSION >= 30400, "kvmeld/kokkos.hpp: Kokkos is older than 3.4");

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Runs phases on an instance of a Kokkos execution space, one team per tile. Construct it between
/// Kokkos::initialize and finalize. On spaces of this machine's cores all work is done when a call returns.
/// Teams there have one lane unless asked otherwise, and use the host backend's kernels where a host compiler
/// compiles them. On devices calls enqueue launches on the instance; `download` waits, and so does `upload`
/// of pieces that are too large for a launch. Teams there have up to 256 lanes and use the generic forms.
/// Where Kokkos runs on CUDA, cuda_executor(space.cuda_stream()) is the faster choice. Plans do not depend on
/// the space or the team size. Kokkos allocates team scratch when a launch first needs more of it, and waits
/// for the device when memory is freed: call `reserve` first where that matters on the run path. Copies are
/// independent and use the same instance. Calls cannot be recorded in a graph. `Immediate` false treats a
/// host space as a device: no launch is waited for.
template <class Space = Kokkos::DefaultExecutionSpace, bool Immediate = runs_on_host<Space>::value>
class kokkos_executor : public executor_base {
  static constexpr bool on_host = runs_on_host<Space>::value;
  static_assert(on_host || !Immediate,
                "kvmeld: the host cannot read this execution space's memory at any time");

public:
  using memory = kokkos_memory<typename Space::memory_space>;
  using transfer = kokkos_transfer<Space>;
  static constexpr bool immediate = Immediate;
  static constexpr std::uint32_t staged_numbers = 1u << 16;  ///< numbers of the staging area, on devices

  /// `team_size` 0 means one lane on a host, and on a device 256 or as many as fit. Refuses a size that the
  /// space cannot run.
  explicit kokkos_executor(Space space = {}, std::uint32_t team_size = 0, tuning t = tuning::on,
                           instruction_set wanted = best_instruction_set())
      : space_(std::move(space)), tuning_(t) {
    std::uint32_t const most = max_lanes(space_);
    if (team_size > most) {
      raise(refusal("kokkos_executor", "team_size", team_size, "at most ", most, " on ", Space::name()));
    }
    lanes_ = team_size == 0 ? min_of(most, on_host ? 1u : 256u) : min_of(most, team_size);
    bool const alone = std::is_same<team_alone, host_team>::value && lanes_ == 1;
    kernels_ = alone && t == tuning::on ? kernels_of(wanted) : nullptr;
    make_staging();
  }
  /// Copies instance, lanes and tuning. The copy has staging of its own.
  kokkos_executor(kokkos_executor const& other)
      : executor_base(),
        space_(other.space_),
        tuning_(other.tuning_),
        lanes_(other.lanes_),
        kernels_(other.kernels_) {
    make_staging();
  }
  /// Takes over all that the other executor holds.
  kokkos_executor(kokkos_executor&&) = default;
  /// Swaps with `other`, which then frees what this object held.
  kokkos_executor& operator=(kokkos_executor other) noexcept {
    std::swap(space_, other.space_);
    std::swap(tuning_, other.tuning_);
    std::swap(lanes_, other.lanes_);
    std::swap(kernels_, other.kernels_);
    std::swap(staging_, other.staging_);
    std::swap(reserved_, other.reserved_);
    return *this;
  }
  ~kokkos_executor() = default;

  /// Lanes of the largest team that an instance can run. Some phases allow fewer.
  static std::uint32_t max_lanes(Space const& space = {}) {
    return usable(team_policy(space, 1, 1).team_size_max(detail::nothing{}, Kokkos::ParallelForTag()));
  }
  /// The instance that launches and copies are enqueued on.
  Space const& space() const { return space_; }
  tuning tuning_mode() const { return tuning_; }
  int lanes() const { return static_cast<int>(lanes_); }
  /// A default wave has two tracks per worker or more.
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
  /// Small pieces are passed as launch arguments, so that nothing waits. Larger pieces are copied, and the
  /// call waits.
  void upload(void* to, void const* host, std::size_t bytes) const {
    if (bytes == 0) return;
    if (!immediate && bytes % sizeof(std::uint32_t) == 0 && bytes <= 16 * sizeof(detail::number_batch)) {
      return write(static_cast<std::uint32_t*>(to), host, bytes / sizeof(std::uint32_t));
    }
    Kokkos::deep_copy(space_, device_bytes(to, bytes), detail::view_bytes<Kokkos::HostSpace>(host, bytes));
    space_.fence();
  }
  void download(void* host, void const* from, std::size_t bytes) const {
    if (bytes == 0) return;
    Kokkos::deep_copy(space_, detail::view_bytes<Kokkos::HostSpace>(host, bytes), device_bytes(from, bytes));
    space_.fence();
  }
  /// On hosts returns the list itself. On devices returns a copy, which stays valid until a third of
  /// staged_numbers more have been staged. A list longer than that third allocates a larger ring, once.
  index_list stage(index_list list) {
    if constexpr (immediate) {
      return list;
    } else {
      std::uint32_t* const to =
          staging_.place(list.size(), [&](std::size_t bytes) { return allocate(bytes); });
      if (to == nullptr) {
        raise(refusal("kokkos_executor", "list in numbers", list.size(), detail::memory_to_be_had));
        return {nullptr, 0};
      }
      write(to, list.data(), list.size());
      return {to, list.size()};
    }
  }

  /// Makes Kokkos allocate `bytes` of scratch now, for every team that can run at once, if it has less.
  /// Refuses where there is no memory.
  status reserve(std::size_t bytes) const {
    if (make_room(bytes + kernel_bytes())) return {};
    return raise(refusal("kokkos_executor", "scratch per team in bytes", bytes, detail::memory_to_be_had));
  }

  /// One launch: runs `phase` on all tiles of `items` tracks; source.where(item) is the track of an item. The
  /// number of tiles per track comes from `extent`.
  template <class Phase, class Source>
  void run(Phase const& phase, shape const& extent, std::uint32_t items, Source const& source) const {
    using tiles = detail::kokkos_tiles<Space, team_alone, Phase, Source>;
    static_assert(on_host || sizeof(tiles) <= 4096, "kvmeld: a phase is too large for a launch's arguments");
    std::uint64_t const per_item = phase.tiles(extent);
    std::uint64_t const total = per_item * items;
    if (total == 0) return;
    tiles work{phase, source, per_item, total, 0, 0, 0, kernels_};
    for (std::uint32_t lanes = lanes_;;) {
      work.scratch_bytes = phase.scratch_bytes(static_cast<int>(lanes));
      work.all_bytes = work.scratch_bytes + kernel_bytes();
      if (rehearses()) {
        if (!make_room(work.all_bytes)) lacks(work.all_bytes);
        return;
      }
      check_scratch(work.all_bytes);
      work.level = level_of(work.all_bytes);
      auto p = policy(min_of(total, max_teams(work.level)), lanes);
      if (work.all_bytes != 0) {
        p.set_scratch_size(work.level, Kokkos::PerTeam(static_cast<int>(padded(work.all_bytes))));
      }
      if constexpr (!on_host) {  // registers may limit this phase to fewer lanes
        std::uint32_t const most = usable(p.team_size_max(work, Kokkos::ParallelForTag()));
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
  using team_alone = detail::team_alone<Space>;
  // On devices a block may use no more registers than 256 lanes can have. Functors are passed as launch
  // arguments. Kokkos would otherwise put them in a device buffer, and wait until the launch before has read
  // it.
  using light = Kokkos::Experimental::WorkItemProperty::HintLightWeight_t;
  using team_policy = std::conditional_t<on_host, Kokkos::TeamPolicy<Space>,
                                         Kokkos::TeamPolicy<Space, Kokkos::LaunchBounds<256, 1>, light>>;
  using number_range =
      std::conditional_t<on_host, Kokkos::RangePolicy<Space, Kokkos::IndexType<std::uint32_t>>,
                         Kokkos::RangePolicy<Space, Kokkos::IndexType<std::uint32_t>, light>>;
  static_assert(sizeof(detail::number_batch) <= 4096, "");

  /// The most teams of a launch. Each team takes tiles at a stride of the number of teams. On hosts each
  /// thread gets a fixed share of the teams: with dynamic shares Kokkos' threads meet at barriers that spin,
  /// for seconds where other programs use the cores. On devices scratch that does not fit near the lanes
  /// needs memory for every team.
  std::uint64_t max_teams(int level) const {
    auto const threads = static_cast<std::uint64_t>(space_.concurrency());
    if (on_host) return 4 * threads;
    return level == 0 ? std::uint64_t{1} << 22 : max_of<std::uint64_t>(1, threads / (4 * lanes_));
  }
  team_policy policy(std::uint64_t league, std::uint32_t lanes) const {
    return team_policy(space_, static_cast<int>(league), static_cast<int>(lanes));
  }
  /// The team size to use. Before Kokkos 3.7, team scans on devices need a power of two.
  static std::uint32_t usable(int lanes) {
    if (lanes < 1) raise(refusal("kokkos_executor", "lanes of a team on this space", lanes, "at least 1"));
    std::uint32_t n = static_cast<std::uint32_t>(lanes);
    if (!on_host && KOKKOS_VERSION < 30700) {
      while ((n & (n - 1)) != 0) n &= n - 1;
    }
    return n;
  }
  /// Makes Kokkos allocate scratch, by a launch that does nothing. Returns false where that fails.
  bool make_room(std::size_t bytes) const {
    if (bytes == 0) return true;
    int const level = level_of(bytes);
    if (bytes <= reserved_[level]) return true;
    check_scratch(bytes);
    std::uint64_t const teams = max_teams(level);
    auto p = policy(min_of<std::uint64_t>(teams, static_cast<std::uint64_t>(space_.concurrency())), lanes_);
    p.set_scratch_size(level, Kokkos::PerTeam(static_cast<int>(padded(bytes))));
#if KVMELD_EXCEPTIONS
    try {
      Kokkos::parallel_for(p, detail::nothing{});
    } catch (std::exception const&) {
      return false;
    }
#else
    Kokkos::parallel_for(p, detail::nothing{});
#endif
    if constexpr (immediate) space_.fence();
    reserved_[level] = bytes;
    return true;
  }
  /// The Kokkos level of scratch: 0, near the lanes, on devices while it fits there; otherwise 1.
  static int level_of(std::size_t bytes) {
    bool const far = on_host || padded(bytes) > static_cast<std::size_t>(team_policy::scratch_size_max(0));
    return far ? 1 : 0;
  }
  static void check_scratch(std::size_t bytes) {
    auto const most = static_cast<std::size_t>(team_policy::scratch_size_max(1));
    if (padded(bytes) > most) {
      raise(refusal("kokkos_executor", "scratch in bytes of a team", padded(bytes), "at most ", most, " on ",
                    Space::name()));
    }
  }
  static std::size_t padded(std::size_t bytes) { return bytes + 64; }  // for the alignment
  std::size_t kernel_bytes() const { return kernels_ == nullptr ? 0 : host_team::tuned_bytes; }
  static detail::byte_view<typename Space::memory_space> device_bytes(void const* p, std::size_t bytes) {
    return detail::view_bytes<typename Space::memory_space>(p, bytes);
  }
  void write(std::uint32_t* to, void const* from, std::size_t count) const {
    for (std::size_t i = 0; i < count; i += detail::number_batch::most) {
      detail::number_batch batch{};
      std::size_t const n = min_of<std::size_t>(detail::number_batch::most, count - i);
      std::memcpy(batch.numbers, static_cast<std::uint32_t const*>(from) + i, n * sizeof(std::uint32_t));
      batch.to = to + i;
      Kokkos::parallel_for(number_range(space_, 0u, static_cast<std::uint32_t>(n)), batch);
    }
  }
  void make_staging() {
    if constexpr (!immediate) {
      staging_ = detail::staging_ring<memory>(allocate(staged_numbers * sizeof(std::uint32_t)));
    }
  }

  Space space_;
  tuning tuning_;
  std::uint32_t lanes_ = 1;
  host_kernels const* kernels_ = nullptr;
  mutable std::size_t reserved_[2] = {0, 0};  ///< per scratch level: bytes per team that Kokkos has
  detail::staging_ring<memory> staging_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
