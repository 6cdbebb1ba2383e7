// SPDX-License-Identifier: Apache-2.0
// Budgets that several tracks share: which tracks share them, and what each track contributes and gets.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// The budget scope: which tracks of a sequence share their budgets.
enum class budget_scope : std::uint8_t {
  head,        ///< no tracks: every track keeps to its own
  layer,       ///< all KV heads of a layer
  all_layers,  ///< all KV heads of all layers
};

/// Number of tracks that share their budgets. They are neighbours in the order of a wave.
inline std::uint32_t tracks_per_budget(budget_scope over, shape const& s) {
  return over == budget_scope::head ? 1 : over == budget_scope::layer ? s.kv_heads : s.kv_heads * s.layers;
}

namespace detail {

/// What a track contributes to its budget scope, and what it gets. Entries compete by score. Fields marked
/// (leader) are valid in the state of the first track, for all tracks of the scope.
struct share_state {
  std::uint32_t own;          ///< the track's own budget, which selectors go by
  std::uint32_t reserve;      ///< entries that the scope never takes from it: the floor of its own budget
  std::uint32_t floor;        ///< entries that it keeps: the reserve, or what is pinned if that is more
  std::uint32_t due;          ///< contribution to the budget of the scope: max(own, floor)
  std::uint32_t fixed;        ///< entries that do not compete
  std::uint32_t keys;         ///< entries that compete
  std::uint32_t least, most;  ///< least and largest number of competing entries that stay
  std::uint32_t above;        ///< competing entries found to stay so far
  std::uint32_t quota;        ///< number of competing entries that stay
  std::uint32_t wanted;       ///< (leader) number of competing entries that stay in all tracks
  std::uint32_t prefix;       ///< (leader) leading digits of the lowest order key that stays
  std::uint32_t total;        ///< (leader) entries that are to stay in all tracks
  std::uint32_t budget;  ///< (leader) the sum of their own budgets, or of their entries where those are fewer

  /// `count`, limited to the range from least to most.
  KVMELD_HD std::uint32_t clamped(std::uint32_t count) const { return max_of(least, min_of(most, count)); }
};

/// Counts that each track of a budget scope leaves for the others: one for each value of a digit.
constexpr std::uint32_t budget_counts = 256;

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
