// What Kokkos is given to run: a phase on tiles, numbers on their way.
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

/// A team of one lane where `Space` runs: with the host's kernels, unless the compiler of a device sees it.
template <class Space>
using team_alone =
    std::conditional_t<runs_on_host<Space>::value && compiles_host_kernels, host_team, serial_team>;

/// Numbers that travel inside a launch: the list may change when the call returns, and nothing waits.
struct number_batch {
  static constexpr std::uint32_t most = 900;  // arguments of a launch fit into 4 KB
  std::uint32_t* to;
  std::uint32_t numbers[most];
  KOKKOS_INLINE_FUNCTION void operator()(std::uint32_t i) const { to[i] = numbers[i]; }
};

struct nothing {
  template <class Member> KOKKOS_INLINE_FUNCTION void operator()(Member const&) const {}
};

/// A phase on tiles league_rank, league_rank + league_size, ... of all items.
template <class Space, class Alone, class Phase, class Source> struct kokkos_tiles {
  using member = typename Kokkos::TeamPolicy<Space>::member_type;
  using team = kokkos_team<member, Alone>;
  static constexpr bool brings_kernels = std::is_same<Alone, host_team>::value;

  Phase phase;
  Source source;
  std::uint64_t per_item, total;
  std::size_t scratch_bytes, all_bytes;  // the kernels' beside the phase's
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
      m.team_barrier();  // the next tile takes the same scratch
    }
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
