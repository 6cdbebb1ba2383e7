// SPDX-License-Identifier: Apache-2.0
// How the attention that an entry receives becomes a number: over the heads and rows of an observation, and
// into a channel.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>

#include <cmath>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// What one observation does to a channel. The new value is the old value of channel `base` (0 if `base` is
/// below 0) plus what the rows from `first_row` on give the entry: attention, or their `contribution`. With
/// row_fold::max it is the larger of the two.
struct channel_update {
  std::int32_t base;        ///< channel whose old value the sum starts from; below 0: none
  std::uint32_t first_row;  ///< first row of the block that counts
};

/// How the query heads of a KV head become one number per row.
enum class head_fold : std::uint8_t {
  mean,              ///< their mean
  max,               ///< the largest
  root_mean_square,  ///< the root of the mean of their squares
  each,              ///< no fold: channel c holds head c alone
};

/// How the rows of an observation become one number per entry.
enum class row_fold : std::uint8_t {
  sum,  ///< they add up
  max,  ///< the largest counts; of numbers of at least 0
};

/// How the attention that an entry receives becomes one number.
struct attention_fold {
  head_fold heads = head_fold::mean;  ///< first over the query heads of a row
  row_fold rows = row_fold::sum;      ///< then over the rows, those of earlier observations included
  /// 0: the attention of the engine. Otherwise a softmax of its own: tracks are cut into chunks of so many
  /// slots, and an observed query looks at the entries of the chunk that holds its token, at all of them
  std::uint32_t chunk = 0;
  std::uint32_t apart = 0;  ///< first slots of a track, which belong to no chunk

  /// `so_far` with one head's `p`. Start at 0, and take `folded` of the result. Not of head_fold::each.
  KVMELD_HD float add_head(float so_far, float p) const {
    return heads == head_fold::max ? max_of(so_far, p) : so_far + (heads == head_fold::mean ? p : p * p);
  }
  /// What `group` heads give together.
  KVMELD_HD float folded(float all, std::uint32_t group) const {
    if (heads == head_fold::max) return all;
    float const mean = all / static_cast<float>(group);
    return heads == head_fold::mean ? mean : std::sqrt(mean);
  }
  /// `so_far` with what one row, or several, gave.
  KVMELD_HD float add_rows(float so_far, float p) const {
    return rows == row_fold::max ? max_of(so_far, p) : so_far + p;
  }
  /// Whether it is a mean over heads and a sum over rows.
  KVMELD_HD bool is_sum_of_means() const { return heads == head_fold::mean && rows == row_fold::sum; }
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
