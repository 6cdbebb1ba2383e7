// SPDX-License-Identifier: Apache-2.0
// Checks whether a plan may be applied: for plans written by hand, and for tests.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/shared/checks.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Why the plan of one track cannot be applied; empty if it can. Host only. Checks fates, targets, spans,
/// weights, the frozen beginning, rows with NaN or infinity, and the room for shared members. `shielded`:
/// entries at the beginning that may not change, if they are more than the frozen ones.
inline std::string plan_problem(ledger_ref const& l, track where, plan_ref const& plan, std::uint32_t item,
                                std::uint32_t shielded = 0) {
  shielded = max_of(shielded, l.frozen[where.sequence]);
  std::uint32_t const n = l.length[where.index];
  std::string const track_name =
      message("track (layer ", where.layer, ", sequence ", where.sequence, ", head ", where.kv_head, ")");
  auto const bad = [&](char const* what, slot_t s, auto const& value, auto const&... condition) {
    return refusal("plan", message(what, " of slot ", s, " of ", track_name), value, condition...);
  };
  if (plan.old_length[item] != n) {
    return refusal("plan", message("old_length of ", track_name), plan.old_length[item], n,
                   ", the entries that the track holds (plan again)");
  }
  std::vector<std::uint8_t> receives(n, 0);
  std::vector<std::uint8_t> owns(n, 0);
  for (slot_t s = 0; s < n; ++s) {
    std::size_t const i = plan.at(item, s);
    if (plan.fates[i] > fate::drop) return bad("fate", s, static_cast<int>(plan.fates[i]), "0 to 4");
    char const* const what = fate_name(plan.fates[i]);
    std::pair<char const*, float> const weights[] = {{"key_weight", plan.key_weight[i]},
                                                     {"value_weight", plan.value_weight[i]},
                                                     {"degree_weight", plan.degree_weight[i]}};
    for (auto const& [name, w] : weights) {
      if (!is_finite(w) || w > largest::plan_weight || w < -largest::plan_weight) {
        return bad(name, s, w, "a number of magnitude at most ", largest::plan_weight);
      }
    }
    float const share = plan.degree_weight[i];
    if (share < 0.0f) return bad("degree_weight", s, share, "at least 0");
    if (share * l.degree[l.at(where, s)] > largest::degree) {
      return bad("degree_weight * degree", s, share * l.degree[l.at(where, s)], "at most ", largest::degree);
    }
    if (plan.fates[i] == fate::keep) {
      if (share == 0.0f) return bad("degree_weight", s, share, "above 0, because the entry is kept");
      if (plan.target[i] != s) return bad("target", s, plan.target[i], s, ", because the entry is kept");
      continue;
    }
    if (s < shielded) {
      return bad("fate", s, what, "keep, because the slot lies in the frozen beginning of ", shielded,
                 " entries");
    }
    if (plan.fates[i] == fate::drop) continue;
    if (!l.usable(where, s))
      return bad("fate", s, what, "keep or drop, because the row holds NaN or infinity");
    std::uint32_t const span = plan.fates[i] == fate::spread ? plan.span[i] : 1;
    if (plan.target[i] >= n)
      return bad("target", s, plan.target[i], "less than ", n, ", the entries of the track");
    if (span == 0 || span > n - plan.target[i]) {
      return bad("span", s, span, "1 to ", n - plan.target[i], ", the entries from target ", plan.target[i],
                 " on");
    }
    for (std::uint32_t k = 0; k < span; ++k) {
      slot_t const to = plan.target[i] + k;
      if (plan.fates[plan.at(item, to)] != fate::keep) return bad("target", s, to, "a slot that is kept");
      if (!l.usable(where, to)) return bad("target", s, to, "a slot whose row holds no NaN or infinity");
      if (to < shielded) {
        return bad("target", s, to, "at least ", shielded, ", because the entries before are frozen");
      }
      (plan.fates[i] == fate::spread ? receives : owns)[to] = 1;
      if (receives[to] != 0 && owns[to] != 0) {
        return bad("target", s, to, "a slot that takes in either a set or a spread, not both");
      }
    }
  }
  // A set is merged or shared as a whole.
  std::vector<std::uint8_t> merges(n, 0);
  std::vector<std::uint8_t> shares(n, 0);
  for (slot_t s = 0; s < n; ++s) {
    std::size_t const i = plan.at(item, s);
    if (plan.fates[i] == fate::merge) merges[plan.target[i]] = merges[s] = 1;
    if (plan.fates[i] == fate::share) shares[plan.target[i]] = 1;
  }
  for (slot_t s = 0; s < n; ++s) {
    if (merges[s] != 0 && shares[s] != 0) {
      return bad("set", s, "one of merged and shared entries", "one of either merged or shared entries");
    }
  }
  return detail::plan_members_problem(l, where, plan, item, merges, track_name);
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
