// SPDX-License-Identifier: Apache-2.0
// Members of shared entries (EMS), as arrays: those of the ledger, those of a plan, and those of a wave. All
// of them are empty if the policy shares nothing: their capacity is 0. `shared/` has what works on them.
#pragma once

#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/workspace.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Members of shared entries (EMS): tokens that keep a norm and a position of their own inside another entry.
/// The token that owns the slot is not a member: its position, channels and own_norm are those of the slot.
/// Members are ordered by owner, and within one owner in the order in which they came.
struct member_ref {
  float* norm = nullptr;                   ///< [tracks][capacity] ||k|| before merging
  position_t* position = nullptr;          ///< [tracks][capacity]
  slot_t* owner = nullptr;                 ///< [tracks][capacity] slot of the entry it belongs to
  float* channel_data[max_channels] = {};  ///< [tracks][capacity] each: score channels per member
  std::uint32_t* count = nullptr;          ///< [tracks] number of members
  float* own_norm =
      nullptr;  ///< [tracks][slots] > 0: the row is a direction; own_norm times the row is its token's key
  std::uint32_t capacity = 0;  ///< members per track; 0: the policy shares nothing

  /// Index of member `m` in the arrays of members.
  KVMELD_HD std::size_t at(track t, std::uint32_t m) const { return std::size_t{t.index} * capacity + m; }
  /// Number of members of a track; 0 if the policy shares nothing, or if only the host's mirror is at hand.
  KVMELD_HD std::uint32_t held(track t) const { return count == nullptr ? 0 : count[t.index]; }
  /// The first member of a track whose owner is slot `s` or a later one.
  KVMELD_HD std::uint32_t first_of(track t, slot_t s) const {
    std::uint32_t low = 0, high = count[t.index];
    while (low < high) {
      std::uint32_t const middle = low + (high - low) / 2;
      if (owner[at(t, middle)] < s) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  /// Calls f(position) for every member of a track.
  template <class F> void for_each_position(track t, F f) const {
    for (std::uint32_t m = 0; m < held(t); ++m) f(position[at(t, m)]);
  }
  /// own_norm of the entry with index `i` in the arrays of entries; 0 if its row is a key.
  KVMELD_HD float norm_of_row(std::size_t i) const { return own_norm == nullptr ? 0.0f : own_norm[i]; }
  /// The same number of members, without arrays.
  member_ref without_arrays() const {
    member_ref m;
    m.capacity = capacity;
    return m;
  }
};

/// Which members of shared entries a plan keeps.
struct kept_members {
  std::uint8_t* kept = nullptr;  ///< [tracks of a wave][stride] 0: the member goes
  std::uint32_t stride = 0;      ///< members per track; 0: the policy shares nothing

  /// The flags of a track.
  KVMELD_HD std::uint8_t* of(std::uint32_t item) const { return kept + std::size_t{item} * stride; }
  /// Whether a member stays.
  KVMELD_HD bool keeps(std::uint32_t item, std::uint32_t m) const { return stride == 0 || of(item)[m] != 0; }
  /// The flags from track `item` on.
  KVMELD_HD kept_members from(std::uint32_t item) const { return {of(item), stride}; }
};

/// Room of a wave for the members of its tracks.
struct member_room {
  float* score = nullptr;          ///< [tracks][capacity] importance of each member
  std::uint32_t* order = nullptr;  ///< [tracks][2 capacity]: room to sort members in
  std::uint32_t capacity = 0;      ///< members per track; 0: the policy shares nothing

  /// The scores of a track.
  KVMELD_HD float* score_of(std::uint32_t item) const { return score + std::size_t{item} * capacity; }
  /// The room of a track.
  KVMELD_HD std::uint32_t* order_of(std::uint32_t item) const {
    return order + std::size_t{item} * 2 * capacity;
  }
};

namespace detail {

/// Sizes (arena without memory) or carves the ledger's arrays of members.
inline member_ref carve_members(arena& a, shape const& extent, channel_list const& channels,
                                std::uint32_t per_track) {
  member_ref m;
  m.capacity = per_track;
  if (per_track == 0) return m;
  std::size_t const members = std::size_t{extent.tracks()} * per_track;
  m.norm = a.take<float>(members);
  m.position = a.take<position_t>(members);
  m.owner = a.take<slot_t>(members);
  for (std::uint32_t c = 0; c < channels.count; ++c) m.channel_data[c] = a.take<float>(members);
  m.count = a.take<std::uint32_t>(extent.tracks());
  m.own_norm = a.take<float>(extent.slots());
  return m;
}

/// The numbers of members, as for_each_field (core/fields.hpp) visits arrays. `FieldOf` is field_of.
KVMELD_CALLS_ARGUMENTS
template <class FieldOf, class F, class... Members>
KVMELD_HD void for_each_count_of_members(F& visit, member_ref const& first, Members const&... others) {
  if (first.capacity != 0) visit(FieldOf::track, 1, first.count, others.count...);
}

/// All other arrays of members, likewise. They have `channels` score channels.
KVMELD_CALLS_ARGUMENTS
template <class FieldOf, class F, class... Members>
KVMELD_HD void for_each_array_of_members(F& visit, std::uint32_t channels, member_ref const& first,
                                         Members const&... others) {
  if (first.capacity == 0) return;
  visit(FieldOf::entry, 1, first.own_norm, others.own_norm...);
  visit(FieldOf::member, 1, first.norm, others.norm...);
  visit(FieldOf::member, 1, first.position, others.position...);
  visit(FieldOf::member, 1, first.owner, others.owner...);
  for (std::uint32_t c = 0; c < channels; ++c)
    visit(FieldOf::member, 1, first.channel_data[c], others.channel_data[c]...);
}

/// The same as carve_members for the flags of a plan of `tracks` tracks.
inline kept_members carve_kept_members(arena& a, std::uint32_t tracks, std::uint32_t per_track) {
  if (per_track == 0) return {};
  return {a.take<std::uint8_t>(std::size_t{tracks} * per_track), per_track};
}

/// The same for the room of a wave of `tracks` tracks.
inline member_room carve_member_room(arena& a, std::uint32_t tracks, std::uint32_t per_track) {
  if (per_track == 0) return {};
  float* const score = a.take<float>(std::size_t{tracks} * per_track);
  return {score, a.take<std::uint32_t>(std::size_t{tracks} * 2 * per_track), per_track};
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
