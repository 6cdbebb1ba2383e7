// SPDX-License-Identifier: Apache-2.0
// Score channels: the floats that a policy keeps per entry, and how they merge.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// How a channel's values become one when entries merge.
enum class channel_rule : std::uint8_t {
  sum,       ///< adds up: the set stands for all of its members
  max,       ///< the strongest member counts
  pivot,     ///< the pivot's own value stays
  weighted,  ///< mean, weighted by the value weights of the merge
  weight,    ///< what the members weighed in merges so far: see carried_weight
};

/// A channel: one float per entry. Moving, merging, resetting and serialising treat all channels alike.
struct channel {
  std::uint32_t tag;  ///< what the channel means, for readers of a ledger
  channel_rule rule;  ///< how the channel merges
  float initial;      ///< value of a new entry
};

/// Tags of the ready-made scores.
namespace channel_tag {
enum : std::uint32_t {
  accumulated_attention = 1,
  window_past = 2,
  window_current = 3,
  hits_past = 4,
  hits_current = 5,
  merge_weight = 6,  ///< what an entry's merges have weighed so far; 0 until it first merges: then its window
                     ///< attention counts
  given_score = 7,
  max_attention = 8,
  chunk_attention = 9,
  squared_attention = 10,
  learned_score = 11,
  user = 1000,
};
}  // namespace channel_tag

constexpr std::uint32_t max_channels = 8;  ///< channels that a policy may have

/// The channels of a policy.
struct channel_list {
  /// The channels; the first `count` are in use.
  channel at[max_channels] = {};
  std::uint32_t count = 0;  ///< channels in use

  /// Adds a channel. There are at most max_channels.
  constexpr void add(channel c) { at[count++] = c; }
  /// Index of the channel with this tag; `count` if there is none.
  KVMELD_HD constexpr std::uint32_t find(std::uint32_t tag) const {
    std::uint32_t i = 0;
    while (i < count && at[i].tag != tag) ++i;
    return i;
  }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
