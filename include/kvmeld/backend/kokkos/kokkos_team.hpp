// SPDX-License-Identifier: Apache-2.0
// A member of a Kokkos team as a lane: the interface of exec/team.hpp on any execution space.
#pragma once

#include <kvmeld/backend/host/tuned/host_team.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/exec/team.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Whether an execution space runs on this machine's cores and in its memory.
template <class Space>
struct runs_on_host
    : std::bool_constant<
          Kokkos::SpaceAccessibility<Space, Kokkos::HostSpace>::accessible &&
          Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Space::memory_space>::accessible> {};

namespace detail {

template <class Op> struct kokkos_reducer;
template <> struct kokkos_reducer<op_sum> { using type = Kokkos::Sum<std::uint32_t>; };
template <> struct kokkos_reducer<op_max> { using type = Kokkos::Max<std::uint32_t>; };
template <> struct kokkos_reducer<op_min> { using type = Kokkos::Min<std::uint32_t>; };

}  // namespace detail

/// A lane of a Kokkos team. `Member` is the TeamPolicy's member type. `Alone` is the type of a team of one
/// lane. `Alone` owns the scratch, and on hosts it brings the tuned kernels; teams of several lanes get no
/// kernels. Every lane makes one for the same tile. All lanes make the same collective calls.
template <class Member, class Alone> class kokkos_team : public Alone {
public:
  /// Makes a lane of the team of `member`; `scratch` are the arguments of the constructor of `Alone`.
  template <class... Scratch>
  KOKKOS_INLINE_FUNCTION kokkos_team(Member const& member, Scratch... scratch)
      : Alone(scratch...), member_(member) {}

  KOKKOS_INLINE_FUNCTION std::uint32_t lane() const {
    return static_cast<std::uint32_t>(member_.team_rank());
  }
  KOKKOS_INLINE_FUNCTION std::uint32_t lanes() const {
    return static_cast<std::uint32_t>(member_.team_size());
  }
  KOKKOS_INLINE_FUNCTION void sync() const { member_.team_barrier(); }
  template <class Op> KOKKOS_INLINE_FUNCTION std::uint32_t reduce(std::uint32_t x, Op) const {
    member_.team_reduce(typename detail::kokkos_reducer<Op>::type(x));
    return x;
  }
  KOKKOS_INLINE_FUNCTION scan_result scan(std::uint32_t x) const {
    if (lanes() == 1) return {0, x};
    scan_result s{member_.team_scan(x), 0};
    s.total = s.before + x;  // right on the last lane, which sends it to the others
    member_.team_broadcast(s.total, member_.team_size() - 1);
    sync();  // on Kokkos' Threads the next call could overwrite what lanes still read
    return s;
  }
  /// Calls f(i) for all i < n, shared out over the lanes. Neighbouring indices go to neighbouring lanes;
  /// TeamThreadRange does not promise that.
  template <class F> KOKKOS_INLINE_FUNCTION void for_each(std::uint32_t n, F f) const {
    if constexpr (std::is_same<Alone, host_team>::value) {
      if (lanes() == 1) return Alone::for_each(n, f);  // compilers vectorise a loop with step 1
    }
    for (std::uint32_t i = lane(); i < n; i += lanes()) f(i);
  }
  KOKKOS_INLINE_FUNCTION std::uint32_t fetch_add(std::uint32_t* where, std::uint32_t x) const {
    return Kokkos::atomic_fetch_add(where, x);
  }

private:
  Member const& member_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
