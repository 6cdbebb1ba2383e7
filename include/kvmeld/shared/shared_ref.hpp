// SPDX-License-Identifier: Apache-2.0
// What attention reads of a cache whose entries are shared: directions, and members with their norms.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A range of a track's members, in ledger order.
struct member_range {
  std::uint32_t begin, end;  ///< member numbers, [begin, end)
};

/// What attention reads of a cache whose policy shares entries (EMS). Slot s stands for its own token and for
/// members(t, s). The key of its own token is norm_factor(t, s) times the row. The key of a member is the
/// member's norm times the row, rotated for the member's position where keys are stored unrotated. All of
/// them have the slot's value. Trivially copyable, like cache_ref. There is no `log_degree`, since degrees
/// would count the members twice.
///
/// Over it, attention::attend computes out[query] = sum over tokens of p v(slot of the token), where p is the
/// softmax of cap(scale q . row norm) over all visible tokens. A member is visible where its slot is; the
/// window uses the member's own position. Takes O(queries x (slots + members)) work per query head.
template <class Keys, class Values> struct shared_ref {
  Keys keys;          ///< the engine's keys
  Values values;      ///< the engine's values
  ledger_ref ledger;  ///< lengths, members and the rest, in memory of the executor

  /// The track of a layer of the group, a sequence and a KV head.
  KVMELD_HD track where(std::uint32_t layer, std::uint32_t sequence, std::uint32_t kv_head) const {
    return make_track(ledger.extent, layer, sequence, kv_head);
  }
  /// Slots in use, pending tokens included.
  KVMELD_HD std::uint32_t length(track t) const { return ledger.length[t.index]; }
  /// How many tokens attention expands the track's slots to.
  KVMELD_HD std::uint32_t tokens(track t) const { return length(t) + ledger.members.count[t.index]; }
  /// Position of the slot's own token.
  KVMELD_HD position_t position(track t, slot_t s) const { return ledger.position[ledger.at(t, s)]; }
  /// The factor by which the row is multiplied to give the key of the slot's own token.
  KVMELD_HD float norm_factor(track t, slot_t s) const { return ledger.norm_factor(t, s); }
  /// Norm of the key of member `m`.
  KVMELD_HD float member_norm(track t, std::uint32_t m) const {
    return ledger.members.norm[ledger.members.at(t, m)];
  }
  /// Token position of member `m`.
  KVMELD_HD position_t member_position(track t, std::uint32_t m) const {
    return ledger.members.position[ledger.members.at(t, m)];
  }
  /// The slot that member `m` belongs to.
  KVMELD_HD slot_t member_owner(track t, std::uint32_t m) const {
    return ledger.members.owner[ledger.members.at(t, m)];
  }
  /// Number of the first member that belongs to slot `s` or a later one.
  KVMELD_HD std::uint32_t first_member(track t, slot_t s) const { return ledger.members.first_of(t, s); }
  /// The members that belong to slot `s`.
  KVMELD_HD member_range members(track t, slot_t s) const {
    return {first_member(t, s), first_member(t, s + 1)};
  }
  /// Whether positions ascend from slot to slot: they do not, because members have positions of their own.
  KVMELD_HD static constexpr bool in_order() { return false; }
  /// Extents of the cache.
  KVMELD_HD shape const& extent() const { return ledger.extent; }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
