// SPDX-License-Identifier: Apache-2.0
// The plan: a sparse linear map from the entries of a track to the entries of the shorter track. It can be
// looked at before it is applied.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/members.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/workspace.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// An edge that an identifier proposes: `source` may become part of `target`.
struct candidate {
  std::uint32_t key;      ///< order_key of the similarity; 0: there is no candidate
  slot_t source, target;  ///< slots of the track
};

/// Arrays are [tracks of a wave][capacity], indexed by the slots before the plan. The rows x' after the plan
/// are:
/// - fate keep, slot p with sources: x'_p is the sum of weight_i x_i over p itself and all i with target p
///   and fate merge or share
/// - fate spread, slot i: the values of the span_i slots k from target_i on take x_i in: x'_k = weight_k (x_k
///   + sum_i weight_i x_i). Keys do not change.
/// - fate drop: the entry is gone
/// Degrees change in the same way: d'_p = sum degree_weight_i d_i. A spread adds degree_weight_i d_i to each
/// of its targets. Kept entries then move to new_slot, in ascending order.
struct plan_ref {
  fate* fates = nullptr;                ///< fate of each entry
  slot_t* target = nullptr;             ///< slot of the pivot; first slot of a spread; else the own slot
  slot_t* span = nullptr;               ///< slots a spread reaches; 0 otherwise
  float* key_weight = nullptr;          ///< weight of the entry in its pivot's key
  float* value_weight = nullptr;        ///< weight of the entry in its pivot's value, or in its targets'
  float* degree_weight = nullptr;       ///< weight of the entry's degree in its pivot's, or in its targets'
  slot_t* new_slot = nullptr;           ///< slot of a kept entry after the plan; valid after new_slots_phase
  std::uint32_t* old_length = nullptr;  ///< [tracks of a wave] the length the plan was made for
  std::uint32_t* new_length = nullptr;  ///< [tracks of a wave] the length after the plan
  std::uint32_t stride = 0;             ///< slots per track
  kept_members members;                 ///< which members of shared entries stay

  /// Index of slot s of track `item` in the per-entry arrays.
  KVMELD_HD std::size_t at(std::uint32_t item, slot_t s) const { return std::size_t{item} * stride + s; }
  /// True if what is spread from slot `source` reaches slot p.
  KVMELD_HD bool reaches(std::uint32_t item, slot_t source, slot_t p) const {
    std::size_t const e = at(item, source);
    return p >= target[e] && p - target[e] < span[e];
  }
};

/// Sizes (arena without memory) or carves a plan for `tracks` tracks of `capacity` slots and `members`
/// members, with lengths of `most` tracks if these are more.
inline plan_ref carve_plan(arena& a, std::uint32_t tracks, std::uint32_t capacity, std::uint32_t members = 0,
                           std::uint32_t most = 0) {
  std::size_t const n = std::size_t{tracks} * capacity;
  plan_ref p;
  p.stride = capacity;
  p.members = detail::carve_kept_members(a, tracks, members);
  p.fates = a.take<fate>(n);
  p.target = a.take<slot_t>(n);
  p.span = a.take<slot_t>(n);
  p.key_weight = a.take<float>(n);
  p.value_weight = a.take<float>(n);
  p.degree_weight = a.take<float>(n);
  p.new_slot = a.take<slot_t>(n);
  p.old_length = a.take<std::uint32_t>(max_of(tracks, most));
  p.new_length = a.take<std::uint32_t>(max_of(tracks, most));
  return p;
}

/// Writes into the plan that entry `s` of track `item` stays as it is.
KVMELD_HD inline void keep_entry(plan_ref const& p, std::uint32_t item, slot_t s) {
  std::size_t const i = p.at(item, s);
  p.fates[i] = fate::keep;
  p.target[i] = s;
  p.span[i] = 0;
  p.key_weight[i] = 1.0f;
  p.value_weight[i] = 1.0f;
  p.degree_weight[i] = 1.0f;
}

/// Writes into the plan that the first `n` entries of track `item` stay as they are. Array by array, so that
/// compilers fill whole vectors. Collective; no barrier.
template <class Team>
KVMELD_HD void keep_entries(Team const& team, plan_ref const& p, std::uint32_t item, std::uint32_t n) {
  std::size_t const base = p.at(item, 0);
  auto const fill = [&](auto* x, auto value) {
    x += base;
    team.for_each(n, [=](std::uint32_t i) { x[i] = value; });
  };
  slot_t* const target = p.target + base;
  team.for_each(n, [=](std::uint32_t i) { target[i] = i; });
  fill(p.fates, fate::keep);
  fill(p.span, slot_t{0});
  fill(p.key_weight, 1.0f);
  fill(p.value_weight, 1.0f);
  fill(p.degree_weight, 1.0f);
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
