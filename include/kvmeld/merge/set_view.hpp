// What the author of a merge function sees of a set: its members, one of which stays.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// One set of entries that become one entry. Members are numbered from 0 to size() - 1, in the order of their
/// tokens. One of them is the pivot: the entry whose slot stays.
class set_view {
public:
  /// A view of the set `m` of a tile's track. `wave` and `t` have to outlive it. The library makes views.
  KVMELD_HD set_view(wave_ref const& wave, tile const& t, slot_t pivot, member_list const& m)
      : wave_(wave), t_(t), pivot_(pivot), members_(m) {}

  /// Number of members, at least 2.
  KVMELD_HD std::uint32_t size() const { return members_.count; }
  /// Whether member `i` is the pivot.
  KVMELD_HD bool is_pivot(std::uint32_t i) const { return slot(i) == pivot_; }
  /// Number of tokens that member `i` stands for.
  KVMELD_HD float degree(std::uint32_t i) const { return wave_.ledger.degree[in_ledger(i)]; }
  /// Token position of member `i`.
  KVMELD_HD position_t position(std::uint32_t i) const { return wave_.ledger.position[in_ledger(i)]; }
  /// Score of member `i`. The merge function has to declare `needs_score`.
  KVMELD_HD float score(std::uint32_t i) const { return wave_.score[wave_.at(t_.item, slot(i))]; }
  /// Similarity of member `i` and the pivot, as the identifier found it; 1 for the pivot. The merge function
  /// has to declare `needs_similarity`.
  KVMELD_HD float similarity(std::uint32_t i) const {
    return is_pivot(i) ? 1.0f : wave_.similarity(t_.item, slot(i));
  }
  /// The slot of member `i`: where its rows lie.
  KVMELD_HD slot_t slot(std::uint32_t i) const { return members_.slots[i]; }
  /// Which track this is.
  KVMELD_HD track where() const { return t_.where; }

private:
  KVMELD_HD std::size_t in_ledger(std::uint32_t i) const { return wave_.ledger.at(t_.where, slot(i)); }

  wave_ref const& wave_;
  tile const& t_;
  slot_t pivot_;
  member_list const& members_;
};

namespace merge {

/// What a merge function declares where it does not say otherwise; derive from it. It is for merge functions
/// that answer `float weight(set_view, i)`.
struct defaults {
  static constexpr bool needs_score = false;       ///< weighs by score
  static constexpr bool needs_similarity = false;  ///< weighs by similarity to the pivot
  static constexpr bool cooperative = false;       ///< `weigh` takes the whole team
  static constexpr bool sums_degrees = true;       ///< a result has the sum of its members' degrees
  constexpr bool carries_degree() const { return true; }
  std::size_t scratch_bytes(shape const&, int) const { return 0; }
};

}  // namespace merge
}  // namespace KVMELD_ABI
}  // namespace kvmeld
