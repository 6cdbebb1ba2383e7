// Shared entries keep their members' norms and positions (EMS section 4.2): collected before keys merge.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/team.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// For every entry that `map` shares, and for every owner of one, appends a member (norm of its key, key weight,
/// position, owner slot) in slot order. Runs before merge_rows_phase; owners are slots before compaction.
/// A track whose members do not fit keeps none of them: plan_problem refuses that.
template <class Keys> struct share_members_phase {
  Keys keys;
  wave_ref wave;
  plan_ref map;

  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int lanes) const {
    return scratch_size(static_cast<std::size_t>(lanes) * keys.channels() * sizeof(float));
  }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    member_ref const& members = wave.ledger.members;
    if (members.capacity == 0) return;
    std::uint32_t const n = wave.state[t.item].length;
    slot_t* const list = wave.field + wave.at(t.item, 0);  // free between rounds
    fate const* const what = map.what + map.at(t.item, 0);
    slot_t const* const target = map.target + map.at(t.item, 0);
    // Owners: kept entries that something shares. candidates[].key is free here and marks them.
    candidate* const owner = wave.candidates + wave.at(t.item, 0);
    team.for_each(n, [&](std::uint32_t s) { owner[s].key = 0; });
    team.sync();
    team.for_each(n, [&](std::uint32_t s) {
      if (what[s] == fate::share) team.fetch_add(&owner[target[s]].key, 1);
    });
    team.sync();
    std::uint32_t const before = members.count[t.where.index];
    std::uint32_t const added = compact_indices(
        team, n, [&](std::uint32_t s) { return what[s] == fate::share || owner[s].key != 0; },
        [&](std::uint32_t rank, std::uint32_t s) { list[rank] = s; });
    std::uint32_t const room = members.capacity - before;
    std::uint32_t const taken = added <= room ? added : 0;
    std::uint32_t const d = keys.channels();
    float* const rows = team.template scratch<float>(std::size_t{team.lanes()} * d);
    for (std::uint32_t i = 0; i < taken; i += team.lanes()) {
      std::uint32_t const count = min_of(taken - i, team.lanes());
      for (std::uint32_t r = 0; r < count; ++r) {
        keys.load_tile(team, t.where, list[i + r], 1, 0, d, rows + std::size_t{r} * d, d);
      }
      team.sync();
      team.for_each(count, [&](std::uint32_t r) {
        float const* const row = rows + std::size_t{r} * d;
        slot_t const s = list[i + r];
        std::size_t const m = wave.ledger.member_at(t.where, before + i + r);
        members.norm[m] = std::sqrt(dot(row, row, d));
        members.weight[m] = map.key_weight[map.at(t.item, s)];
        members.position[m] = wave.ledger.position[wave.ledger.at(t.where, s)];
        members.owner[m] = what[s] == fate::share ? target[s] : s;
      });
      team.sync();
    }
    if (team.lane() == 0) members.count[t.where.index] = before + taken;
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
