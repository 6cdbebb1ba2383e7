// Members of shared entries: as earlier compressions may have left them, and what must hold of them after one
// more.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "support/random_cache.hpp"
#include "support/track_view.hpp"

namespace properties {

struct member_list {
  std::vector<std::uint32_t> owner;
  std::vector<long> position;
  std::vector<double> norm, own_norm;  // own norms per slot

  [[nodiscard]] std::size_t of(std::uint32_t slot) const {
    return static_cast<std::size_t>(std::count(owner.begin(), owner.end(), slot));
  }
};

inline member_list members_of(kvmeld::ledger_ref const& l, kvmeld::track t) {
  member_list out;
  if (l.members.capacity == 0) return out;
  for (std::uint32_t m = 0; m < l.members.count[t.index]; ++m) {
    std::size_t const i = l.members.at(t, m);
    out.owner.push_back(l.members.owner[i]);
    out.position.push_back(l.members.position[i]);
    out.norm.push_back(static_cast<double>(l.members.norm[i]));
  }
  for (std::uint32_t s = 0; s < l.length[t.index]; ++s)
    out.own_norm.push_back(static_cast<double>(l.members.own_norm[l.at(t, s)]));
  return out;
}

// Up to as many members as fit, at positions that no slot has.
inline void give_members(support::dice& d, kvmeld::ledger_ref const& l, kvmeld::track t, std::uint32_t n) {
  std::vector<std::uint32_t> owners(d.chance(0.4) ? 0 : d.below(l.members.capacity + 1));
  for (auto& owner : owners) owner = d.chance(0.3) ? n / 2 : d.below(n);
  std::sort(owners.begin(), owners.end());
  l.members.count[t.index] = static_cast<std::uint32_t>(owners.size());
  for (std::uint32_t s = 0; s < n; ++s) l.degree[l.at(t, s)] = 1.0f;
  for (std::uint32_t m = 0; m < owners.size(); ++m) {
    std::size_t const i = l.members.at(t, m);
    l.members.owner[i] = owners[m];
    l.members.position[i] = -1 - static_cast<int>(m);
    l.members.norm[i] = static_cast<float>(0.1 + d.uniform());
    l.members.own_norm[l.at(t, owners[m])] = static_cast<float>(0.1 + d.uniform());
    l.degree[l.at(t, owners[m])] += 1.0f;
    for (std::uint32_t c = 0; c < l.channels.count; ++c)
      l.members.channel_data[c][i] = static_cast<float>(d.chance(0.5) ? d.below(5) : 5 * d.uniform());
  }
}

inline void copy_members(kvmeld::ledger_ref const& from, kvmeld::track a, kvmeld::ledger_ref const& to,
                         kvmeld::track b) {
  if (from.members.capacity == 0) return;
  std::uint32_t const count = to.members.count[b.index] = from.members.count[a.index];
  for (std::uint32_t s = 0; s < from.length[a.index]; ++s)
    to.members.own_norm[to.at(b, s)] = from.members.own_norm[from.at(a, s)];
  for (std::uint32_t m = 0; m < count; ++m) {
    std::size_t const x = from.members.at(a, m), y = to.members.at(b, m);
    to.members.owner[y] = from.members.owner[x];
    to.members.position[y] = from.members.position[x];
    to.members.norm[y] = from.members.norm[x];
    for (std::uint32_t c = 0; c < from.channels.count; ++c)
      to.members.channel_data[c][y] = from.members.channel_data[c][x];
  }
}

// One track's members after compression against those before. One failed promise per bit.
template <class Policy, class Cache>
std::uint32_t broken_member_promises(Policy const& policy, std::uint32_t limit, Cache const& cache,
                                     kvmeld::track t, reference::track_state const& before,
                                     member_list const& old) {
  if constexpr (!kvmeld::shares_entries<typename Policy::merge_type>::value) {
    return 0;
  } else {
    enum : std::uint32_t {
      room = 1,
      order = 2,
      norms = 4,
      degrees = 8,
      twice = 16,
      strangers = 32,
      untouched = 64,
      moved = 128,
      lost = 256
    };
    kvmeld::ledger_ref const& l = cache.ledger();
    member_list const now = members_of(l, t);
    std::uint32_t broken = 0;
    auto const require = [&](bool holds, std::uint32_t bit) { broken |= holds ? 0 : bit; };
    if (before.size() <= limit) {
      require(now.owner == old.owner && now.position == old.position && now.norm == old.norm &&
                  now.own_norm == old.own_norm,
              untouched);
      return broken;
    }
    require(now.owner.size() <= l.members.capacity && now.owner.size() <= policy.select.others(limit), room);
    require(std::is_sorted(now.owner.begin(), now.owner.end()), order);
    std::map<long, std::uint32_t> slot_of, old_slot, old_member;  // by position
    std::uint32_t const held = l.length[t.index];
    for (std::uint32_t s = 0; s < held; ++s) slot_of[l.position[l.at(t, s)]] = s;
    for (std::uint32_t s = 0; s < before.size(); ++s) old_slot[before.position[s]] = s;
    for (std::uint32_t m = 0; m < old.owner.size(); ++m) old_member[old.position[m]] = m;
    std::set<long> seen;
    for (std::size_t m = 0; m < now.owner.size(); ++m) {
      require(now.owner[m] < held, order);
      require(now.norm[m] > 0 && kvmeld::is_finite(static_cast<float>(now.norm[m])), norms);
      require(seen.insert(now.position[m]).second && slot_of.count(now.position[m]) == 0, twice);
      auto const was = old_member.find(now.position[m]);
      if (was != old_member.end()) {  // a member before: its norm, and its owner if that is still there
        require(now.norm[m] == old.norm[was->second], norms);
        auto const owner = slot_of.find(before.position[old.owner[was->second]]);
        if (owner != slot_of.end()) require(owner->second == now.owner[m], moved);
        continue;
      }
      auto const entry = old_slot.find(now.position[m]);  // an entry before: no other token can be here
      require(entry != old_slot.end(), strangers);
      if (entry == old_slot.end()) continue;
      require(!before.bad[entry->second], strangers);
      if (old.own_norm[entry->second] > 0) require(now.norm[m] == old.own_norm[entry->second], norms);
    }
    for (std::uint32_t s = 0; s < held; ++s) {
      std::size_t const members = now.of(s);
      require(static_cast<double>(l.degree[l.at(t, s)]) == 1.0 + static_cast<double>(members), degrees);
      require(kvmeld::is_finite(static_cast<float>(now.own_norm[s])) && (members == 0 || now.own_norm[s] > 0),
              norms);
      std::uint32_t const was = old_slot[l.position[l.at(t, s)]];
      if (old.own_norm[was] > 0) require(now.own_norm[s] == old.own_norm[was], norms);
      bool fresh = false;  // took in an entry in this compression
      for (std::size_t m = 0; m < now.owner.size(); ++m)
        fresh = fresh || (now.owner[m] == s && old_slot.count(now.position[m]) != 0);
      auto const ref = cache.ref();
      if (!fresh)
        require(same_row(before.keys[was], ref.keys, t, s) && same_row(before.values[was], ref.values, t, s),
                lost);
    }
    return broken;
  }
}

}  // namespace properties
