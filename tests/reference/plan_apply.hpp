// Applies a sparse linear plan, the form that all methods share: per entry a
// fate, a target or a span, and three coefficients. Everything is read from the track as it was.
#pragma once

#include "track.hpp"

namespace reference {

enum class fate { keep, merge, share, spread, drop };

struct linear_plan {
  std::vector<fate> fates;
  indices target;  // merge, share: the owner's slot; spread: the first slot of the span
  indices span;    // spread: its length
  std::vector<double> key_weight, value_weight, degree_weight;
};

// All kept, all coefficients 1, targets the entries themselves, spans 0.
inline linear_plan keep_all(std::size_t n) {
  linear_plan plan;
  plan.fates.assign(n, fate::keep);
  for (std::size_t i = 0; i < n; ++i) plan.target.push_back(i);
  plan.span.assign(n, 0);
  plan.key_weight = plan.value_weight = plan.degree_weight = std::vector<double>(n, 1.0);
  return plan;
}

struct member {
  double norm;  // ||k_i|| before merging (EMS, section 4: the scalar each token keeps)
  long position;
  std::size_t owner;  // slot after compaction
};

struct applied_plan {
  track_state after;
  std::vector<int> new_slot;    // per old entry, -1 if its slot is gone
  std::vector<member> members;  // by owner, within an owner by old slot
  std::size_t near_rounding = 0;
};

inline bool has_fate(linear_plan const& plan, std::size_t i, fate one, fate other) {
  return plan.fates[i] == one || plan.fates[i] == other;
}

// An owner is an entry that stays and that others merge into or share: its fate is keep, or merge or
// share with itself as target. Its set: itself and the entries whose fate is merge or share with that
// target. A slot is an owner or lies in a span, not both.
inline bool stays(linear_plan const& plan, std::size_t i) {
  return plan.fates[i] == fate::keep || (has_fate(plan, i, fate::merge, fate::share) && plan.target[i] == i);
}

inline indices set_of(linear_plan const& plan, std::size_t owner) {
  indices set;
  for (std::size_t i = 0; i < plan.fates.size(); ++i)
    if (i == owner || (has_fate(plan, i, fate::merge, fate::share) && plan.target[i] == owner))
      set.push_back(i);
  return set;
}

// merge, share: key[p] = sum key_weight_i key_i and value[p] = sum value_weight_i value_i over p's set;
// degree[p] = sum degree_weight_i degree_i; score[p] = the sum of the scores of p and of
// what merges into it; p's position stays.
inline void apply_merges(track_state const& track, linear_plan const& plan, store_function const& store,
                         track_state& merged, std::size_t& near_rounding) {
  for (std::size_t p = 0; p < track.size(); ++p) {
    if (!stays(plan, p)) continue;
    indices const set = set_of(plan, p);
    if (set.size() < 2) continue;
    std::vector<double> key_weights, value_weights;
    merged.degree[p] = merged.score[p] = 0;
    for (std::size_t const i : set) {
      key_weights.push_back(plan.key_weight[i]);
      value_weights.push_back(plan.value_weight[i]);
      merged.degree[p] += plan.degree_weight[i] * track.degree[i];
      bool const merges = i == p || plan.fates[i] == fate::merge;  // a member keeps its own score
      if (merges) merged.score[p] += track.score[i];
    }
    merged.keys[p] = blend(track.keys, set, key_weights, store, near_rounding);
    merged.values[p] = blend(track.values, set, value_weights, store, near_rounding);
  }
}

// spread: each slot k of the span gets value_weight_k (V_k + sum value_weight_i V_i) and degree
// degree_weight_k degree_k + sum degree_weight_i degree_i over the entries i spread over it.
// Keys, positions and scores of the span stay; what falls on a slot that goes, goes.
inline void apply_spreads(track_state const& track, linear_plan const& plan, store_function const& store,
                          track_state& merged, std::size_t& near_rounding) {
  for (std::size_t k = 0; k < track.size(); ++k) {
    if (!stays(plan, k)) continue;
    indices sources{k};
    std::vector<double> weights{plan.value_weight[k]};
    double degree = plan.degree_weight[k] * track.degree[k];
    for (std::size_t i = 0; i < track.size(); ++i) {
      if (plan.fates[i] != fate::spread || k < plan.target[i] || k >= plan.target[i] + plan.span[i]) continue;
      sources.push_back(i);
      weights.push_back(plan.value_weight[k] * plan.value_weight[i]);
      degree += plan.degree_weight[i] * track.degree[i];
    }
    if (sources.size() < 2) continue;
    merged.values[k] = blend(track.values, sources, weights, store, near_rounding);
    merged.degree[k] = degree;
  }
}

inline applied_plan plan_apply(track_state const& track, linear_plan const& plan,
                               store_function const& store = store_exactly) {
  applied_plan result;
  track_state merged = track;
  apply_merges(track, plan, store, merged, result.near_rounding);
  apply_spreads(track, plan, store, merged, result.near_rounding);
  indices kept;
  for (std::size_t i = 0; i < track.size(); ++i) {
    result.new_slot.push_back(stays(plan, i) ? static_cast<int>(kept.size()) : -1);
    if (stays(plan, i)) kept.push_back(i);
  }
  result.after = pick(merged, kept);
  for (std::size_t slot = 0; slot < kept.size(); ++slot) {
    for (std::size_t const i : set_of(plan, kept[slot])) {  // merged entries are no members, nor are owners
      if (i == kept[slot] || plan.fates[i] != fate::share) continue;
      result.members.push_back({norm(track.keys[i]), track.position[i], slot});
    }
  }
  return result;
}

}  // namespace reference
