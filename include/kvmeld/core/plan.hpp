// The plan: a sparse linear map from the entries of a track to its shorter self, inspectable before it is
// applied.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/workspace.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// An edge that an identifier proposes: `source` may become part of `target`.
struct candidate {
  std::uint32_t key;      ///< order_key of the similarity; 0 = none
  slot_t source, target;  ///< slots of the track
};

/// Arrays [tracks of a wave][capacity]. With x' the rows after the plan, over old slots:
/// - keep p with sources: x'_p = sum over i with target p, fate merge or share, and p itself, of weight_i x_i
/// - spread i: x'_k = weight_k (x_k + sum_i weight_i x_i) for span_i values from target_i on; keys unchanged
/// - drop i: gone
/// degrees likewise with degree_weight: d'_p = sum degree_weight_i d_i; spread adds degree_weight_i d_i to
/// each target. Kept entries then move to new_slot, in ascending order.
struct plan_ref {
  fate* fates = nullptr;                ///< fate of each entry
  slot_t* target = nullptr;             ///< own slot when kept
  slot_t* span = nullptr;               ///< slots a spread reaches; 0 otherwise
  float* key_weight = nullptr;          ///< of an entry in its pivot's key
  float* value_weight = nullptr;        ///< of an entry in its pivot's value, or its targets'
  float* degree_weight = nullptr;       ///< of an entry's degree in its pivot's, or its targets'
  slot_t* new_slot = nullptr;           ///< of kept entries, valid after `renumber`
  std::uint32_t* old_length = nullptr;  ///< [tracks of a wave] the length the plan was made for
  std::uint32_t* new_length = nullptr;  ///< [tracks of a wave]
  std::uint32_t stride = 0;             ///< slots per track
  std::uint8_t* member_kept =
      nullptr;  ///< [tracks of a wave][member_stride] 0: the member goes; null: the policy shares nothing
  std::uint32_t member_stride = 0;  ///< members per track

  /// Index into the arrays.
  KVMELD_HD std::size_t at(std::uint32_t item, slot_t s) const { return std::size_t{item} * stride + s; }
  /// True if what is spread from slot `source` reaches slot p.
  KVMELD_HD bool reaches(std::uint32_t item, slot_t source, slot_t p) const {
    std::size_t const e = at(item, source);
    return p >= target[e] && p - target[e] < span[e];
  }
  /// Whether a member of a shared entry stays.
  KVMELD_HD bool keeps_member(std::uint32_t item, std::uint32_t m) const {
    return member_kept == nullptr || member_kept[std::size_t{item} * member_stride + m] != 0;
  }
};

/// Sizes or carves a plan for `tracks` tracks of `capacity` slots and `members` members.
inline plan_ref carve_plan(arena& a, std::uint32_t tracks, std::uint32_t capacity,
                           std::uint32_t members = 0) {
  std::size_t const n = std::size_t{tracks} * capacity;
  plan_ref p;
  p.stride = capacity;
  p.member_stride = members;
  if (members != 0) p.member_kept = a.take<std::uint8_t>(std::size_t{tracks} * members);
  p.fates = a.take<fate>(n);
  p.target = a.take<slot_t>(n);
  p.span = a.take<slot_t>(n);
  p.key_weight = a.take<float>(n);
  p.value_weight = a.take<float>(n);
  p.degree_weight = a.take<float>(n);
  p.new_slot = a.take<slot_t>(n);
  p.old_length = a.take<std::uint32_t>(tracks);
  p.new_length = a.take<std::uint32_t>(tracks);
  return p;
}

/// Entry `s` of the item stays as it is.
KVMELD_HD inline void keep_entry(plan_ref const& p, std::uint32_t item, slot_t s) {
  std::size_t const i = p.at(item, s);
  p.fates[i] = fate::keep;
  p.target[i] = s;
  p.span[i] = 0;
  p.key_weight[i] = 1.0f;
  p.value_weight[i] = 1.0f;
  p.degree_weight[i] = 1.0f;
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
