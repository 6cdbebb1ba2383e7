// Budgets that several tracks share: which tracks, by what they compete, and what each brings along and gets.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Which tracks of a sequence share their budgets.
enum class split : std::uint8_t {
  head,   ///< none: every track keeps to its own
  layer,  ///< all KV heads of a layer
  group,  ///< all KV heads of all layers
};

/// Tracks that share their budgets: neighbours in the order of a wave.
inline std::uint32_t tracks_per_split(split over, shape const& s) {
  return over == split::head ? 1 : over == split::layer ? s.kv_heads : s.kv_heads * s.layers;
}

/// By what the tracks of a split compete.
enum class split_measure : std::uint8_t {
  none,   ///< by nothing: such policies keep to budgets per head
  score,  ///< entries stay by score: what is best among all tracks
  edges,  ///< candidates merge by similarity, round by round: what is most alike in all tracks
  theta,  ///< consecutive sets: one threshold for all tracks
};

/// What a track brings into a split, and what it gets. Marked (leader): those of a split's first track count for all.
struct share_state {
  std::uint32_t own;      ///< its own budget, which selectors go by
  std::uint32_t reserve;  ///< entries that no split takes from it: the floor of its own budget
  std::uint32_t floor;    ///< entries that it keeps: the reserve, what is pinned and what cannot merge
  std::uint32_t due;      ///< what it adds to the split's budget: its own, or its floor where that is more
  std::uint32_t fixed;    ///< of a pool: what does not compete
  std::uint32_t keys;     ///< of a pool: keys that compete
  std::uint32_t least, most;  ///< of a pool: how many are taken of this track at least and at most
  std::uint32_t above;        ///< keys found to be taken so far; of a threshold, the sets above it
  std::uint32_t quota;        ///< how many are taken
  std::uint32_t wanted;       ///< (leader) how many are taken of all tracks
  std::uint32_t prefix;       ///< (leader) leading digits of the key that they are taken down to
  std::uint32_t total;        ///< (leader) entries that are to stay in all tracks
  std::uint32_t budget;  ///< (leader) the sum of their own budgets, or of their entries where those are fewer

  /// `count` within least and most.
  KVMELD_HD std::uint32_t clamped(std::uint32_t count) const { return max_of(least, min_of(most, count)); }
};

/// Counts per track that tracks of a split leave for each other: of digits, or of thresholds.
constexpr std::uint32_t split_counts = 256;

}  // namespace KVMELD_ABI
}  // namespace kvmeld
