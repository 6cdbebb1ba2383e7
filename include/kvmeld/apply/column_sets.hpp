// Sets of a track listed for walks along columns: by size, so that a processor can foresee its loops.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Some sets with their members and weights, merged column by column. For one lane; lives on the stack (24 KiB).
class column_sets {
public:
  /// False if there is no room: merge what is listed, clear, and add again. Sets of more than `most_members` never fit.
  bool add(slot_t pivot, member_list const& m, float const* weight) {
    if (sets_ == most_sets || members_ + m.count > most_members) return false;
    pivot_[sets_] = pivot;
    begin_[sets_++] = members_;
    for (std::uint32_t j = 0; j < m.count; ++j) {
      slot_[members_] = m.slots[j];
      weight_[members_++] = weight[m.slots[j]];
    }
    begin_[sets_] = members_;
    return true;
  }
  void clear() { sets_ = members_ = 0; }

  /// Orders the sets by size; sets are disjoint, so that their order does not show.
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

private:
  static constexpr std::uint32_t most_sets = 512, most_members = 2048, sizes = 16;
  std::uint32_t size(std::uint32_t i) const { return min_of(begin_[i + 1] - begin_[i], sizes - 1); }

  std::uint32_t sets_ = 0, members_ = 0;
  slot_t pivot_[most_sets];
  std::uint32_t begin_[most_sets + 1] = {};
  std::uint32_t order_[most_sets];
  slot_t slot_[most_members];
  float weight_[most_members];
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
