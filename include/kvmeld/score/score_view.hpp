// SPDX-License-Identifier: Apache-2.0
// What the author of a score sees of a track: its entries, or the members of its shared entries.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The entries of one track, numbered by slot, as a score sees them. Rows of keys and values come beside the
/// view, for scores that state `reads_rows` (track_rows).
class score_view {
public:
  /// A view of the first `length` entries of a track, `limit` of which may stay. `ledger` has to outlive it;
  /// `room` is the memory of room(). The library makes views.
  KVMELD_HD score_view(ledger_ref const& ledger, track where, std::uint32_t length, std::uint32_t limit,
                       float* room = nullptr)
      : ledger_(ledger),
        where_(where),
        length_(length),
        limit_(limit),
        data_(ledger.channel_data),
        at_(ledger.from(where)),
        room_(room) {}

  /// Number of entries.
  KVMELD_HD std::uint32_t length() const { return length_; }
  /// Number of entries that may stay: the track's own budget.
  KVMELD_HD std::uint32_t limit() const { return limit_; }
  /// Number of entries at the beginning that are frozen, and stay.
  KVMELD_HD std::uint32_t frozen() const {
    std::uint32_t const n = ledger_.frozen[where_.sequence];
    return n < length_ ? n : length_;
  }
  /// Value of channel `c` of entry `i`.
  KVMELD_HD float channel(std::uint32_t c, std::uint32_t i) const { return data_[c][at_(i)]; }
  /// Sets channel `c` of entry `i`, for a score that is computed once and then stays with the entry.
  KVMELD_HD void keep(std::uint32_t c, std::uint32_t i, float x) const { data_[c][at_(i)] = x; }
  /// Number of tokens that entry `i` stands for.
  KVMELD_HD float degree(std::uint32_t i) const { return of_members_ ? 1.0f : ledger_.degree[at_(i)]; }
  /// Token position of entry `i`.
  KVMELD_HD position_t position(std::uint32_t i) const {
    return (of_members_ ? ledger_.members.position : ledger_.position)[at_(i)];
  }
  /// False if the rows of entry `i` were inspected and hold NaN or infinity.
  KVMELD_HD bool usable(std::uint32_t i) const {
    return of_members_ || (ledger_.flags[at_(i)] & entry_flag::nonfinite) == 0;
  }
  /// length() uninitialised floats that `evaluate` may use; not of members.
  KVMELD_HD float* room() const { return room_; }
  /// What the score keeps of the track, as its `absorb` left it; empty without a table.
  KVMELD_HD span<float const> table() const { return {ledger_.table_of(where_), ledger_.table_floats}; }
  /// Tokens seen: the position of the next one.
  KVMELD_HD std::uint32_t tokens() const { return ledger_.tokens(where_.sequence); }
  /// Which track this is.
  KVMELD_HD track where() const { return where_; }
  /// Rows of attention that the track observed.
  KVMELD_HD std::uint32_t observed_rows() const { return ledger_.word(where_, track_word::observed_rows); }
  /// Query heads that read the track.
  KVMELD_HD std::uint32_t queries_per_kv_head() const { return ledger_.extent.queries_per_kv_head; }

  /// The members of the track's shared entries, as a view of their own.
  KVMELD_HD score_view members() const {
    score_view v(ledger_, where_, ledger_.members.held(where_), limit_);
    v.data_ = ledger_.members.channel_data;
    v.at_ = entry_indices(ledger_.members.at(where_, 0));
    v.of_members_ = true;
    return v;
  }
  /// Whether this view is of members. Members have no neighbours.
  KVMELD_HD bool of_members() const { return of_members_; }

private:
  ledger_ref const& ledger_;
  track where_;
  std::uint32_t length_, limit_;
  float* const* data_;
  entry_indices at_;
  float* room_;
  bool of_members_ = false;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
