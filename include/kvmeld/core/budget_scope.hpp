// Budgets that several tracks share: which tracks, and what each of them contributes and gets.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Which tracks of a sequence share their budgets.
enum class budget_scope : std::uint8_t {
  head,        ///< none: every track keeps to its own
  layer,       ///< all KV heads of a layer
  all_layers,  ///< all KV heads of all layers
};

/// Tracks that share their budgets: neighbours in the order of a wave.
inline std::uint32_t tracks_per_split(budget_scope over, shape const& s) {
  return over == budget_scope::head ? 1 : over == budget_scope::layer ? s.kv_heads : s.kv_heads * s.layers;
}

/// What a track contributes to a split, and what it gets. Entries compete by score. Marked (leader): the
/// member of the split's first track counts for all its tracks.
struct share_state {
  std::uint32_t own;          ///< its own budget, which selectors go by
  std::uint32_t reserve;      ///< entries that the split never takes from it: the floor of its own budget
  std::uint32_t floor;        ///< entries that it keeps: the reserve, or what is pinned if that is more
  std::uint32_t due;          ///< contribution to the split's budget: max(own, floor)
  std::uint32_t fixed;        ///< entries that do not compete
  std::uint32_t keys;         ///< entries that compete
  std::uint32_t least, most;  ///< how many of them stay, at least and at most
  std::uint32_t above;        ///< competing entries found to stay so far
  std::uint32_t quota;        ///< how many of them stay
  std::uint32_t wanted;       ///< (leader) how many stay in all tracks
  std::uint32_t prefix;       ///< (leader) leading digits of the lowest order key that stays
  std::uint32_t total;        ///< (leader) entries that are to stay in all tracks
  std::uint32_t budget;  ///< (leader) the sum of their own budgets, or of their entries where those are fewer

  /// `count` within least and most.
  KVMELD_HD std::uint32_t clamped(std::uint32_t count) const { return max_of(least, min_of(most, count)); }
};

/// Counts per track that the tracks of a split leave for each other: one for each value of a digit.
constexpr std::uint32_t split_counts = 256;

}  // namespace KVMELD_ABI
}  // namespace kvmeld
