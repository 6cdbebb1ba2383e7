// SPDX-License-Identifier: Apache-2.0
// Columns of storage, for layouts in which tokens are contiguous. Packs the elements of columns, and merges
// sets of slots. For one lane.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Sets whose slots lie in [first, first + slots); both are multiples of the lanes of a vector. The members
/// of set n are member[begin[n]] .. member[begin[n + 1] - 1] (slots, ascending). `order` lists the sets by
/// size. Bit i of `squares` says whether there are members among the `lanes` slots from first + i * lanes on.
struct column_set_list {
  std::uint32_t first, slots, count;
  std::uint32_t const *pivot, *begin, *order, *member;
  float const* weight;
  std::uint64_t const* squares;
};

/// Some sets with their members and weights, merged column by column. Sets are ordered by size, so that a
/// processor can predict its loops. Members are a list of ascending `slots` and their `count`. For one lane;
/// lives on the stack (25 KiB).
class column_sets {
public:
  static constexpr std::uint32_t max_sets = 512, max_members = 2048;
  static constexpr std::uint32_t max_slots = 1024;  ///< slots that a kernel's list covers at most
  static constexpr std::uint32_t max_lanes = 16, fewest_lanes = 4;
  /// Scratch of a kernel: rows of `lanes` elements for all slots, and for all merged entries.
  static constexpr std::size_t kernel_bytes(std::size_t element) {
    return (max_slots + max_sets) * max_lanes * element;
  }

  /// Lists a set; false if there is no room. The caller then merges what is listed, clears, and adds the set
  /// again. A set of more than `max_members` members never fits.
  template <class Members> bool add(slot_t pivot, Members const& m, float const* weight) {
    if (sets_ == max_sets || members_ + m.count > max_members) return false;
    pivot_[sets_] = pivot;
    begin_[sets_++] = members_;
    for (std::uint32_t j = 0; j < m.count; ++j) {
      slot_[members_] = m.slots[j];
      weight_[members_++] = weight[m.slots[j]];
    }
    begin_[sets_] = members_;
    if (sets_ == 1) low_ = high_ = m.slots[0];
    low_ = min_of(low_, m.slots[0]);
    high_ = max_of(high_, m.slots[m.count - 1]);
    return true;
  }
  void clear() { sets_ = members_ = 0; }

  /// Whether the slots of a set fit a kernel's list.
  template <class Members> static bool is_near(Members const& m) {
    return is_near(m.slots[0], m.slots[m.count - 1]);
  }
  /// Whether the slots of all listed sets and of this one fit a kernel's list.
  template <class Members> bool stays_near(Members const& m) const {
    return sets_ == 0 || is_near(min_of(low_, m.slots[0]), max_of(high_, m.slots[m.count - 1]));
  }
  /// Whether a kernel of `lanes` lanes can and should merge the sets: it reads no slot at or behind
  /// `capacity`, and so many of the slots are members that it may as well read all of them.
  bool suit(std::uint32_t lanes, std::uint32_t capacity) const {
    return is_near(low_, high_) && 4 * members_ >= high_ - low_ && high_ / lanes * lanes + lanes <= capacity;
  }

  /// Orders the sets by size. Sets are disjoint, so that their order does not change results.
  void sort() {
    std::uint32_t count[sizes + 1] = {};
    for (std::uint32_t i = 0; i < sets_; ++i) ++count[size(i) + 1];
    for (std::uint32_t s = 0; s < sizes; ++s) count[s + 1] += count[s];
    for (std::uint32_t i = 0; i < sets_; ++i) order_[count[size(i)]++] = i;
  }

  /// x[pivot] = sum of weight * x[member] of every set, in the order of the members.
  template <class T> void merge(T* x) const {
    for (std::uint32_t n = 0; n < sets_; ++n) {
      std::uint32_t const i = order_[n];
      float total = 0.0f;
      for (std::uint32_t j = begin_[i]; j < begin_[i + 1]; ++j) {
        total += weight_[j] * element_traits<T>::to_float(x[slot_[j]]);
      }
      x[pivot_[i]] = element_traits<T>::from_float(total);
    }
  }

  /// The sorted sets in the form that kernels of `lanes` lanes take.
  column_set_list list(std::uint32_t lanes) {
    slot_t const first = low_ / lanes * lanes;
    std::uint32_t const slots = high_ / lanes * lanes + lanes - first;
    for (std::uint64_t& s : squares_) s = 0;
    for (std::uint32_t j = 0; j < members_; ++j) {
      std::uint32_t const square = (slot_[j] - first) / lanes;
      squares_[square / 64] |= std::uint64_t{1} << square % 64;
    }
    return {first, slots, sets_, pivot_, begin_, order_, slot_, weight_, squares_};
  }

private:
  static constexpr std::uint32_t sizes = 16;
  static bool is_near(slot_t low, slot_t high) { return high - low / max_lanes * max_lanes < max_slots; }
  std::uint32_t size(std::uint32_t i) const { return min_of(begin_[i + 1] - begin_[i], sizes - 1); }

  std::uint32_t sets_ = 0, members_ = 0;
  slot_t low_ = 0, high_ = 0;
  slot_t pivot_[max_sets];
  std::uint32_t begin_[max_sets + 1] = {};
  std::uint32_t order_[max_sets];
  slot_t slot_[max_members];
  float weight_[max_members];
  std::uint64_t squares_[max_slots / fewest_lanes / 64];
};

/// x[pivot] = sum of weight * x[member] of every listed set, for `count` columns x of storage, `stride`
/// elements apart. Sorts the sets. No slot at or behind `capacity` is read. `scratch` has
/// kernel_bytes(sizeof(T)) bytes. The host's tuned form gives the same bits.
template <class Team, class T>
void merge_columns(Team const& team, column_sets& sets, T* columns, std::int64_t stride, std::uint32_t count,
                   std::uint32_t capacity, void* scratch) {
  sets.sort();
  std::uint32_t done = 0;
  with_kernels<T>(team, [&](auto const& kernels) {
    if (!sets.suit(kernels.lanes, capacity)) return;
    done = kernels.merge_columns(columns, stride, count, sets.list(kernels.lanes), scratch);
  });
  for (; done < count; ++done) sets.merge(columns + std::int64_t{done} * stride);
}

/// Packs the elements of from[0 .. n) whose bit is set into `to`, in order. `to` does not lie behind `from`.
/// Bits from n on are clear.
template <class Team, class T>
void pack_elements(Team const& team, T* to, T const* from, std::uint64_t const* bits, std::uint32_t n) {
  if constexpr (sizeof(T) == 4 || sizeof(T) == 2) {
    if (with_kernels(team, [&](auto const& kernels) { kernels.pack(to, from, bits, n); })) return;
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    if ((bits[i / 64] >> i % 64 & 1u) != 0) *to++ = from[i];
  }
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
