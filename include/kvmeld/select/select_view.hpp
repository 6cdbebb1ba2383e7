// SPDX-License-Identifier: Apache-2.0
// What the author of a selector sees of a track: its entries, their scores, and the role of each.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The entries of one track, numbered by slot, as a selector sees them.
class select_view {
public:
  /// A view of track `item` of a wave, which has to outlive it. The library makes views.
  KVMELD_HD select_view(wave_ref const& wave, std::uint32_t item)
      : wave_(wave),
        where_(wave.where(item)),
        item_(item),
        roles_(wave.roles + wave.at(item, 0)),
        scores_(wave.score + wave.at(item, 0)) {}

  /// Number of entries.
  KVMELD_HD std::uint32_t length() const { return wave_.state[item_].length; }
  /// Number of entries that may stay.
  KVMELD_HD std::uint32_t limit() const { return wave_.state[item_].limit; }
  /// Which track this is.
  KVMELD_HD track where() const { return where_; }
  /// Score of entry `i`, if the policy has a score.
  KVMELD_HD float score(std::uint32_t i) const { return scores_[i]; }
  /// Token position of entry `i`.
  KVMELD_HD position_t position(std::uint32_t i) const {
    return wave_.ledger.position[wave_.ledger.at(where_, i)];
  }
  /// Number of tokens that entry `i` stands for.
  KVMELD_HD float degree(std::uint32_t i) const { return wave_.ledger.degree[wave_.ledger.at(where_, i)]; }

  /// The role of entry `i`, for `assign` to write.
  KVMELD_HD role& role_of(std::uint32_t i) const { return roles_[i]; }
  /// The roles of all entries, for `assign` to write: length() of them.
  KVMELD_HD role* roles() const { return roles_; }
  /// The scores of all entries: length() of them.
  KVMELD_HD float const* scores() const { return scores_; }

  /// Number of members of shared entries; 0 if the policy shares none.
  KVMELD_HD std::uint32_t members() const { return wave_.ledger.members.held(where_); }
  /// Most tokens besides pinned entries and centres that a track can hold.
  KVMELD_HD std::uint32_t room_for_members() const {
    std::uint32_t const capacity = wave_.ledger.members.capacity;
    return capacity == 0 ? 0xffffffffu : capacity;
  }
  /// Score of member `m`.
  KVMELD_HD float member_score(std::uint32_t m) const { return wave_.members.score_of(item_)[m]; }
  /// Whether member `m` stays, for `assign` to write.
  KVMELD_HD void keep_member(std::uint32_t m, bool stays) const {
    wave_.plan.members.of(item_)[m] = stays ? 1 : 0;
  }

private:
  wave_ref const& wave_;
  track where_;
  std::uint32_t item_;
  role* roles_;
  float const* scores_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
