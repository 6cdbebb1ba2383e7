// Whether a plan may be applied: for plans written by hand, and for tests.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Why the plan of one track cannot be applied; empty if it can. Host only. Checks fates, targets, spans, weights,
/// the frozen beginning, rows with NaN or infinity, and the room for shared members.
inline std::string plan_problem(ledger_ref const& l, track where, plan_ref const& plan, std::uint32_t item,
                                std::uint32_t shielded = 0) {
  shielded = max_of(shielded, l.frozen[where.sequence]);
  std::uint32_t const n = l.length[where.index];
  auto const name = [&](slot_t s) {
    return message("plan of track (layer ", where.layer, ", sequence ", where.sequence, ", head ",
                   where.kv_head, "), slot ", s, ": ");
  };
  if (plan.old_length[item] != n) {
    return message("plan of track (layer ", where.layer, ", sequence ", where.sequence, ", head ",
                   where.kv_head, ") was made for ", plan.old_length[item], " entries, but the track holds ",
                   n, "; plan again");
  }
  std::vector<std::uint8_t> receives(n, 0);
  std::vector<std::uint8_t> owns(n, 0);
  std::uint32_t shared = 0;
  for (slot_t s = 0; s < n; ++s) {
    std::size_t const i = plan.at(item, s);
    if (plan.what[i] > fate::drop)
      return name(s) + message("fate is ", int(plan.what[i]), "; allowed are 0 to 4");
    for (float w : {plan.key_weight[i], plan.value_weight[i], plan.degree_weight[i]}) {
      if (!is_finite(w)) return name(s) + "a weight is not finite; allowed are finite numbers";
    }
    float const share = plan.degree_weight[i];
    if (share < 0.0f || (plan.what[i] == fate::keep && share == 0.0f)) {
      return name(s) + message("degree weight is ", share,
                               "; allowed are numbers from 0 on, and above 0 for kept entries");
    }
    if (plan.what[i] == fate::keep) {
      if (plan.target[i] != s)
        return name(s) + message("is kept, but its target is ", plan.target[i], "; give ", s);
      continue;
    }
    if (s < shielded) {
      return name(s) + message("lies in the frozen beginning of ", shielded, "; allowed is keep");
    }
    if (plan.what[i] == fate::drop) continue;
    if (!l.usable(where, s)) return name(s) + "holds NaN or infinity; allowed are keep and drop";
    std::uint32_t const span = plan.what[i] == fate::spread ? plan.span[i] : 1;
    if (span == 0 || plan.target[i] >= n || span > n - plan.target[i]) {
      return name(s) + message("goes to ", span, " slots from ", plan.target[i],
                               " on; allowed is 1 or more within ", n);
    }
    for (std::uint32_t k = 0; k < span; ++k) {
      slot_t const to = plan.target[i] + k;
      if (plan.what[plan.at(item, to)] != fate::keep) {
        return name(s) + message("goes to slot ", to, ", which is not kept; targets must be kept");
      }
      if (!l.usable(where, to))
        return name(s) + message("goes to slot ", to, ", which holds NaN or infinity");
      if (to < shielded) return name(s) + message("goes to slot ", to, ", which is frozen");
      (plan.what[i] == fate::spread ? receives : owns)[to] = 1;
      if (receives[to] != 0 && owns[to] != 0) {
        return name(s) + message("goes to slot ", to,
                                 ", which takes in both a set and a spread; allowed is one of them");
      }
    }
    shared += plan.what[i] == fate::share ? 1 : 0;
  }
  // A set is merged or shared as a whole, and members move only with a shared entry.
  std::vector<std::uint8_t> merges(n, 0);
  std::vector<std::uint8_t> shares(n, 0);
  for (slot_t s = 0; s < n; ++s) {
    std::size_t const i = plan.at(item, s);
    if (plan.what[i] == fate::merge) merges[plan.target[i]] = merges[s] = 1;
    if (plan.what[i] == fate::share) shares[plan.target[i]] = 1;
  }
  for (slot_t s = 0; s < n; ++s) {
    if (merges[s] != 0 && shares[s] != 0) {
      return name(s) + "takes in both merged and shared entries; allowed is one of them";
    }
  }
  std::uint32_t const held = l.members.capacity == 0 ? 0 : l.members.count[where.index];
  std::uint32_t living = shared;
  for (std::uint32_t m = 0; m < held; ++m) {
    slot_t const owner = l.members.owner[l.member_at(where, m)];
    if (merges[owner] != 0 || plan.what[plan.at(item, owner)] == fate::spread) {
      return name(owner) + "owns members; allowed are keep, share and drop, with entries sharing into it";
    }
    living += plan.keeps_member(item, m) && plan.what[plan.at(item, owner)] != fate::drop ? 1u : 0u;
  }
  if (living > l.members.capacity && shared != 0) {
    return name(0) +
           message("the plan makes ", living, " members; allowed are limits.members = ", l.members.capacity);
  }
  return {};
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
