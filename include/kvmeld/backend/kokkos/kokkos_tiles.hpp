// SPDX-License-Identifier: Apache-2.0
// The functors that Kokkos runs: a phase on its tiles, and numbers to write to device memory.
#pragma once

#include <kvmeld/backend/host/tuned/host_kernels.hpp>
#include <kvmeld/backend/host/tuned/host_team.hpp>
#include <kvmeld/backend/kokkos/kokkos_team.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>

#include <Kokkos_Core.hpp>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// The type of a team of one lane on `Space`. It brings the host's kernels, unless a device compiler compiles
/// it.
template <class Space>
using team_alone =
    std::conditional_t<runs_on_host<Space>::value && compiles_host_kernels, host_team, serial_team>;

/// Numbers that are passed as a launch argument. The list may change when the call returns, and nothing
/// waits.
struct number_batch {
  static constexpr std::uint32_t most = 900;  // arguments of a launch fit into 4 KB
  std::uint32_t* to;
  std::uint32_t numbers[most];
  KOKKOS_INLINE_FUNCTION void operator()(std::uint32_t i) const { to[i] = numbers[i]; }
};

struct nothing {
  template <class Member> KOKKOS_INLINE_FUNCTION void operator()(Member const&) const {}
};

/// A team runs the tiles league_rank, league_rank + league_size, ... of all items.
template <class Space, class Alone, class Phase, class Source> struct kokkos_tiles {
  using member = typename Kokkos::TeamPolicy<Space>::member_type;
  using team = kokkos_team<member, Alone>;
  static constexpr bool brings_kernels = std::is_same<Alone, host_team>::value;

  Phase phase;
  Source source;
  std::uint64_t per_item, total;
  std::size_t scratch_bytes, all_bytes;  // the phase's scratch; the same and the kernels' memory
  int level;
  host_kernels const* kernels;  // null: generic forms

  KOKKOS_INLINE_FUNCTION void operator()(member const& m) const {
    std::byte* scratch = nullptr;
    if (all_bytes != 0) {
      scratch = static_cast<std::byte*>(m.team_scratch(level).get_shmem_aligned(all_bytes, 64));
      assert(scratch != nullptr && "Kokkos gave less scratch than the policy asks for");
    }
    for (auto n = static_cast<std::uint64_t>(m.league_rank()); n < total;
         n += static_cast<std::uint64_t>(m.league_size())) {
      auto const item = static_cast<std::uint32_t>(n / per_item);
      if (source.idle(item)) continue;
      tile const t{source.where(item), item, static_cast<std::uint32_t>(n % per_item)};
      if constexpr (brings_kernels) {
        phase(team(m, scratch, scratch_bytes, kernels, scratch + scratch_bytes), t);
      } else {
        phase(team(m, scratch, scratch_bytes), t);
      }
      m.team_barrier();  // the next tile uses the same scratch
    }
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
