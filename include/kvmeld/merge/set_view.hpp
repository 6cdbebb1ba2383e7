// SPDX-License-Identifier: Apache-2.0
// What the author of a merge function sees of a set: its members, one of which stays.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

/// Reads rows of the keys for a set_view, whose type does not depend on their layout.
struct key_reader {
  void const* keys = nullptr;
  std::uint32_t channels = 0;
  /// out[c] = element channel + c of the row, for `count` channels. By one lane.
  void (*load)(void const* keys, track where, slot_t s, std::uint32_t channel, std::uint32_t count,
               float* out) = nullptr;
};

template <class Keys>
KVMELD_HD void load_key(void const* keys, track where, slot_t s, std::uint32_t channel, std::uint32_t count,
                        float* out) {
  static_cast<Keys const*>(keys)->load_tile(serial_team(nullptr, 0), where, s, 1, channel, count, out, count);
}

/// The reader of a layout, which has to outlive it.
template <class Keys> KVMELD_HD key_reader reader_of(Keys const& keys) {
  return {&keys, keys.channels(), &load_key<Keys>};
}

}  // namespace detail

/// One set of entries that become one entry. Members are numbered from 0 to size() - 1, in the order of their
/// tokens. One of them is the pivot, which the identifier chose: its slot and its position stay, whatever the
/// weights are.
class set_view {
public:
  /// A view of the set `m` of a tile's track, whose keys `keys` reads. `wave`, `t` and `m` have to outlive
  /// it. The library makes views.
  KVMELD_HD set_view(wave_ref const& wave, tile const& t, slot_t pivot, member_list const& m,
                     detail::key_reader const& keys)
      : wave_(wave), t_(t), pivot_(pivot), members_(m), keys_(keys) {}

  /// Number of members, at least 2.
  KVMELD_HD std::uint32_t size() const { return members_.count; }
  /// Whether member `i` is the pivot.
  KVMELD_HD bool is_pivot(std::uint32_t i) const { return slot(i) == pivot_; }
  /// Number of tokens that member `i` stands for.
  KVMELD_HD float degree(std::uint32_t i) const { return wave_.ledger.degree[in_ledger(i)]; }
  /// Token position of member `i`.
  KVMELD_HD position_t position(std::uint32_t i) const { return wave_.ledger.position[in_ledger(i)]; }
  /// Score of member `i`. The merge function has to state `needs_score`.
  KVMELD_HD float score(std::uint32_t i) const { return wave_.score[wave_.at(t_.item, slot(i))]; }
  /// What the policy's score tells.
  KVMELD_HD score_kind scores() const { return wave_.scores; }
  /// Similarity of member `i` and the pivot, as the identifier found it; 1 for the pivot. The merge function
  /// has to state `needs_similarity`.
  KVMELD_HD float similarity(std::uint32_t i) const {
    return is_pivot(i) ? 1.0f : wave_.similarity(t_.item, slot(i));
  }
  /// Number of channels of a key.
  KVMELD_HD std::uint32_t key_dim() const { return keys_.channels; }
  /// Element `channel` of the key of member `i`, as float. Reads the element from the tensor.
  KVMELD_HD float key(std::uint32_t i, std::uint32_t channel) const {
    float x = 0.0f;
    keys_.load(keys_.keys, t_.where, slot(i), channel, 1, &x);
    return x * wave_.ledger.norm_factor(t_.where, slot(i));
  }
  /// The norm of the key of member `i`: finite, 0 for a row of zeros. Reads the row from the tensor in each
  /// call: for long rows and large sets the cooperative form of a merge function is faster.
  KVMELD_HD float key_norm(std::uint32_t i) const {
    if (wave_.ledger.is_direction(t_.where, slot(i))) return wave_.ledger.norm_factor(t_.where, slot(i));
    float partials[partial_sums] = {}, piece[partial_sums];
    for (std::uint32_t c = 0; c < keys_.channels; c += partial_sums) {
      std::uint32_t const n = min_of(partial_sums, keys_.channels - c);
      keys_.load(keys_.keys, t_.where, slot(i), c, n, piece);
      for (std::uint32_t j = 0; j < partial_sums; ++j) {
        if (j < n) partials[j] += piece[j] * piece[j];
      }
    }
    return finite_norm(sum_partials(partials), keys_.channels, [&](std::uint32_t c) {
      float x = 0.0f;
      keys_.load(keys_.keys, t_.where, slot(i), c, 1, &x);
      return x;
    });
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
  detail::key_reader keys_;
};

namespace merge {

/// What a merge function has where it does not say otherwise; derive from it. It is for merge functions that
/// answer `float weight(set_view, i)`: degrees add, and no scratch is needed.
struct defaults {
  constexpr bool carries_degree() const { return true; }
  std::size_t scratch_bytes(shape const&, int) const { return 0; }
};

}  // namespace merge
}  // namespace KVMELD_ABI
}  // namespace kvmeld
