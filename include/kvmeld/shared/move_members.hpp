// SPDX-License-Identifier: Apache-2.0
// Members follow their entries: they stay, move to other slots, or get other positions.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Writes into a plan that all members stay. Collective; no barrier.
template <class Team> KVMELD_HD void keep_members(Team const& team, wave_ref const& wave, tile const& t) {
  team.for_each(wave.ledger.members.held(t.where),
                [&](std::uint32_t m) { wave.plan.members.of(t.item)[m] = 1; });
}

/// Moves members of kept owners, as many at a time as there are lanes, and removes the others. Collective;
/// barrier at the end.
template <class Team> KVMELD_HD void compact_members(Team const& team, wave_ref const& wave, tile const& t) {
  plan_ref const& plan = wave.plan;
  member_ref const& m = wave.ledger.members;
  if (m.capacity == 0) return;
  std::uint32_t const count = m.count[t.where.index];
  std::size_t const base = m.at(t.where, 0);
  std::uint32_t kept = 0;
  for (std::uint32_t first = 0; first < count; first += team.lanes()) {
    std::uint32_t const i = first + team.lane();
    std::size_t const owner = i < count ? plan.at(t.item, m.owner[base + i]) : 0;
    bool const stays = i < count && plan.fates[owner] == fate::keep;
    scan_result const places = team.scan(stays ? 1u : 0u);
    std::size_t const from = base + i, to = base + kept + places.before;
    auto const shift = [&](auto* array) {
      auto held = array[base];
      if (stays) held = array[from];
      team.sync();
      if (stays) array[to] = held;
    };
    shift(m.norm);
    shift(m.position);
    for (std::uint32_t c = 0; c < wave.ledger.channels.count; ++c) shift(m.channel_data[c]);
    team.sync();
    if (stays) m.owner[to] = plan.new_slot[owner];
    kept += places.total;
  }
  team.sync();
  if (team.lane() == 0) m.count[t.where.index] = kept;
}

/// Adds `offset` to the positions of members from `first` on. Collective; no barrier.
template <class Team>
KVMELD_HD void shift_members(Team const& team, ledger_ref const& l, track t, position_t first,
                             position_t offset) {
  team.for_each(l.members.held(t), [&](std::uint32_t m) {
    position_t& position = l.members.position[l.members.at(t, m)];
    if (position >= first) position += offset;
  });
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
