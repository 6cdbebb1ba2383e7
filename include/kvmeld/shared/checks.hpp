// SPDX-License-Identifier: Apache-2.0
// What is refused because of members of shared entries: calls, options, plans and saved bytes.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Why a call is refused if the policy shares entries.
inline std::string shares_problem(char const* call, char const* because) {
  return refusal(call, "policy", "one that shares entries", "one that does not, because ", because);
}

/// The same for the policy that a ledger belongs to; empty if it shares nothing.
inline std::string shares_problem(char const* call, ledger_ref const& l, char const* because) {
  return l.members.capacity == 0 ? std::string() : shares_problem(call, because);
}

/// Why options.members is too large for a cache of so many tracks; empty if it is not.
inline std::string members_problem(std::uint32_t members, std::uint32_t tracks) {
  if (members > largest::members) {
    return refusal("options", "members", members, "at most ", largest::members);
  }
  std::uint64_t const all = std::uint64_t{tracks} * members;
  if (all <= largest::all_members) return {};
  return refusal("options", "members of all tracks", all, "at most ", largest::all_members);
}

/// Why what a plan does to members cannot be applied; empty if it can. `merges`[slot]: a set that merges has
/// its pivot or a source there. The rest of the plan is valid.
inline std::string plan_members_problem(ledger_ref const& l, track where, plan_ref const& plan,
                                        std::uint32_t item, std::vector<std::uint8_t> const& merges,
                                        std::string const& track_name) {
  std::uint32_t shared = 0;
  for (slot_t s = 0; s < l.length[where.index]; ++s)
    shared += plan.fates[plan.at(item, s)] == fate::share ? 1u : 0u;
  std::uint32_t living = shared;
  for (std::uint32_t m = 0; m < l.members.held(where); ++m) {
    slot_t const owner = l.members.owner[l.members.at(where, m)];
    if (merges[owner] != 0 || plan.fates[plan.at(item, owner)] == fate::spread) {
      return refusal(
          "plan", message("set of slot ", owner, " of ", track_name), "one that merges or spreads",
          "one of shared entries, because members belong to the slot (its fate is keep, share or drop)");
    }
    living += plan.members.keeps(item, m) && plan.fates[plan.at(item, owner)] != fate::drop ? 1u : 0u;
  }
  if (living <= l.members.capacity || shared == 0) return {};
  return refusal("plan", message("number of members of ", track_name), living, "at most ", l.members.capacity,
                 ", the options.members");
}

/// Why the number of members of a track of a saved ledger is too large; empty if it is not. `counts` is the
/// array that was just read.
inline std::string saved_count_problem(ledger_ref const& l, std::byte const* counts, track t) {
  member_ref const& m = l.members;
  if (m.capacity == 0 || counts != reinterpret_cast<std::byte const*>(m.count) || m.held(t) <= m.capacity)
    return {};
  return refusal("resume", "number of members of a track of the saved ledger", m.held(t), "at most ",
                 m.capacity, ", the options.members of this cache");
}

/// How the members of a track of a saved ledger contradict its other numbers; null if they do not. `merged`:
/// entries and tokens that a compression may have merged are those before.
inline char const* members_contradiction(ledger_ref const& l, track t, slot_t merged_slots,
                                         std::uint32_t merged_tokens) {
  member_ref const& members = l.members;
  for (std::uint32_t m = 0; m < members.held(t); ++m) {
    std::size_t const i = members.at(t, m);
    if (members.owner[i] >= l.length[t.index]) return "a member of an entry it does not hold";
    if (members.owner[i] >= merged_slots) return "a member of an entry that came after its last compression";
    if (m > 0 && members.owner[i] < members.owner[i - 1]) return "members that are not ordered by owner";
    if (!is_finite(members.norm[i]) || members.norm[i] < 0.0f)
      return "a member whose norm is negative or no number";
    position_t const position = members.position[i];
    if (position < 0 || std::int64_t{position} >= std::int64_t{merged_tokens})
      return "a member whose position is not that of a token seen before its last compression";
  }
  return nullptr;
}

/// Why a shift from position `first` on cannot rotate keys: a slot is shared by tokens on both sides. Empty
/// if it can.
inline std::string divided_slot_problem(char const* call, ledger_ref const& l, track t, position_t first,
                                        std::string const& track_name) {
  for (std::uint32_t m = 0; m < l.members.held(t); ++m) {
    std::size_t const i = l.members.at(t, m);
    slot_t const owner = l.members.owner[i];
    if ((l.members.position[i] < first) == (l.position[l.at(t, owner)] < first)) continue;
    return refusal(call, "first", first, "0, because slot ", owner, " of ", track_name,
                   " is shared by tokens on both sides of it (or shift without rotation)");
  }
  return {};
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
