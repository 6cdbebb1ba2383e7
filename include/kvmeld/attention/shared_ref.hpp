// What attention needs to see of a cache whose entries are shared: directions, and members with their norms.
#pragma once

#include <kvmeld/attention/cache_ref.hpp>
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

/// Ref of a policy that shares entries (EMS). Slot s stands for its own token, whose key is norm_factor(t, s)
/// times the row, and for members(t, s), whose keys are their norm times the row (rotated for their own
/// positions, where keys are stored unrotated); all of them have the slot's value. Trivially copyable, as
/// cache_ref. `log_degree` is not offered: degrees would count the members twice.
template <class Keys, class Values> struct shared_ref {
  Keys keys;          ///< the engine's keys
  Values values;      ///< the engine's values
  ledger_ref ledger;  ///< lengths, members and the rest, in memory of the executor

  /// The track of a layer of the group, a sequence and a KV head.
  KVMELD_HD track where(std::uint32_t layer, std::uint32_t sequence, std::uint32_t kv_head) const {
    return make_track(ledger.extent, layer, sequence, kv_head);
  }
  /// Slots held, pending ones included.
  KVMELD_HD std::uint32_t length(track t) const { return ledger.length[t.index]; }
  /// Tokens that attention expands them to.
  KVMELD_HD std::uint32_t tokens(track t) const { return length(t) + ledger.members.count[t.index]; }
  /// Position of the slot's own token.
  KVMELD_HD position_t position(track t, slot_t s) const { return ledger.position[ledger.at(t, s)]; }
  /// Factor of the row that gives the key of the slot's own token.
  KVMELD_HD float norm_factor(track t, slot_t s) const { return ledger.norm_factor(t, s); }
  /// Norm of a member's key.
  KVMELD_HD float member_norm(track t, std::uint32_t m) const {
    return ledger.members.norm[ledger.member_at(t, m)];
  }
  /// Token position of a member.
  KVMELD_HD position_t member_position(track t, std::uint32_t m) const {
    return ledger.members.position[ledger.member_at(t, m)];
  }
  /// The slot in which a member lives.
  KVMELD_HD slot_t member_owner(track t, std::uint32_t m) const {
    return ledger.members.owner[ledger.member_at(t, m)];
  }
  /// First member whose owner is `s` or later.
  KVMELD_HD std::uint32_t first_member(track t, slot_t s) const { return first_member_of(ledger, t, s); }
  /// Members that live in slot s.
  KVMELD_HD member_range members(track t, slot_t s) const {
    return {first_member(t, s), first_member(t, s + 1)};
  }
  /// Extents of the cache.
  KVMELD_HD shape const& extent() const { return ledger.extent; }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
