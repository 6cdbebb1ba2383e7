// EMS, evict then merge: one compression (paper 002, section 4.2 and appendix A;
// what the paper leaves open is as in the library).
#pragma once

#include "ems_score.hpp"

namespace reference {

struct ems_options {
  std::size_t budget = 256, window = 32, n_protect = 0, sinks = 0;
  double gamma = 4, tau = 0.6;
  std::size_t kernel = 7;
  bool literal_product = false;  // also two negative cosines make a positive R (Eq. 4 as printed)
  bool collapsed = false;        // a merged slot is one key of its own again, without members
};

struct ems_outcome {
  ems_state after;
  std::vector<int> slot_target;       // per old slot: the old slot it ended in, itself if kept, -1 if dropped
  std::vector<int> member_owner;      // per old member: its owner (old slot), -1 if dropped
  std::size_t members_outranked = 0;  // dropped by the ranking (their owners may have gone as well)
  double score_margin = no_gap, similarity_margin = no_gap;
  [[nodiscard]] double margin() const { return std::min(score_margin, similarity_margin); }
  bool reached = true;
  std::size_t near_rounding = 0;
};

// ---- tiers (section 4.2, token partition) -------------------------------------------------------

// Something to rank. Where two are equal and have equal sources, no arithmetic can tell them apart.
struct ems_ranked {
  double score = 0;
  std::size_t index = 0;  // a slot, or (behind the slots) a member
  row source;             // what the score is the mean of
};

inline std::vector<ems_ranked> ems_slot_scores(ems_state const& state, ems_options const& options) {
  double const alignment = ems_alignment(state);
  std::vector<double> raw;
  for (ems_slot const& slot : state.slots) raw.push_back(ems_global_local(slot.score, alignment));
  std::size_t const n = raw.size(), before = n > options.window ? n - options.window : 0;
  std::vector<double> const pooled = pool(raw, before, pooling::mean, options.kernel);
  std::vector<ems_ranked> ranked;
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t const half = i < before ? options.kernel / 2 : 0;
    std::size_t const end = i < before ? std::min(before, i + half + 1) : i + 1;
    row source;
    for (std::size_t s = i > half ? i - half : 0; s < end; ++s) source.push_back(raw[s]);
    ranked.push_back({pooled[i], i, source});
  }
  return ranked;
}

// Takes the `count` best (ties: the lower index) out of `all`, in ascending order.
inline indices ems_take_best(std::vector<ems_ranked>& all, std::size_t count, double& margin) {
  std::sort(all.begin(), all.end(), [](ems_ranked const& x, ems_ranked const& y) {
    return x.score > y.score || (x.score == y.score && x.index < y.index);
  });
  count = std::min(count, all.size());
  indices taken;
  for (std::size_t t = 0; t < count; ++t) {
    taken.push_back(all[t].index);
    for (std::size_t left = count; left < all.size(); ++left)
      if (all[t].source != all[left].source) margin = std::min(margin, all[t].score - all[left].score);
  }
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
  std::sort(taken.begin(), taken.end());
  return taken;
}

struct ems_tiers {
  indices pinned, protect, centres, to_be_merged;  // slots
  indices members;                                 // members that stay, if their slot does
  bool reached = true;
};

// Pinned: sinks, the window, bad slots. Of the others the best n_protect stay intact (they are no targets),
// the next best are centres up to the budget. Slots left over and all members compete for (gamma - 1) budget
// places (slots before members on ties); the rest is irrelevant.
inline ems_tiers ems_partition(ems_state const& state, ems_options const& options, double& margin) {
  ems_tiers tiers;
  std::size_t const n = state.slots.size();
  std::vector<ems_ranked> rest;
  for (ems_ranked const& slot : ems_slot_scores(state, options)) {
    std::size_t const i = slot.index;
    bool const pinned = i < options.sinks || i + options.window >= n || state.slots[i].bad;
    if (pinned)
      tiers.pinned.push_back(i);
    else
      rest.push_back(slot);
  }
  tiers.reached = tiers.pinned.size() <= options.budget;
  std::size_t const room = tiers.reached ? options.budget - tiers.pinned.size() : 0;
  tiers.protect = ems_take_best(rest, std::min(options.n_protect, room), margin);
  tiers.centres = ems_take_best(rest, room - tiers.protect.size(), margin);
  double const alignment = ems_alignment(state);
  for (std::size_t m = 0; m < state.members.size(); ++m) {
    double const score = ems_global_local(state.members[m].score, alignment);
    rest.push_back({score, n + m, {score}});
  }
  for (std::size_t const i : ems_take_best(rest, floor_count(options.gamma - 1, options.budget), margin)) {
    if (i < n)
      tiers.to_be_merged.push_back(i);
    else
      tiers.members.push_back(i - n);
  }
  return tiers;
}

// ---- matching (Eq. 4 and 6) ---------------------------------------------------------------------

// The centre with the highest R = cos(k, k_c) cos(v, v_c), ties to the lower slot; -1, the zero class,
// where none has R >= tau. Cosines from the rows as they are stored.
inline int ems_match(ems_state const& state, std::size_t i, indices const& centres,
                     ems_options const& options, double& margin) {
  ems_slot const& slot = state.slots[i];
  int best = -1;
  double best_r = 0;
  std::vector<double> similarity;
  for (std::size_t const c : centres) {
    double const k = cosine(slot.key, state.slots[c].key), v = cosine(slot.value, state.slots[c].value);
    bool const eligible = options.literal_product || (k > 0 && v > 0);
    if (!options.literal_product && options.tau <= 0)  // the sign decides
      for (double const x : {k, v})
        if (x != 0) margin = std::min(margin, std::fabs(x));
    similarity.push_back(eligible ? k * v : -no_gap);
    if (!eligible) continue;
    margin = std::min(margin, std::fabs(k * v - options.tau));
    if (k * v < options.tau || (best >= 0 && k * v <= best_r)) continue;
    best = static_cast<int>(c);
    best_r = k * v;
  }
  for (std::size_t place = 0; best >= 0 && place < centres.size(); ++place) {
    ems_slot const& other = state.slots[centres[place]];
    ems_slot const& chosen = state.slots[static_cast<std::size_t>(best)];
    bool const same = other.key == chosen.key && other.value == chosen.value;
    if (!same) margin = std::min(margin, std::fabs(best_r - similarity[place]));
  }
  return best;
}

// ---- merging (Eq. 7) ----------------------------------------------------------------------------

inline double ems_norm(ems_slot const& slot) { return slot.own_norm > 0 ? slot.own_norm : norm(slot.key); }

inline row ems_direction(ems_slot const& slot) {
  double const length = norm(slot.key);
  row direction = slot.key;
  if (slot.own_norm > 0 || !(length > 0)) return direction;
  for (double& x : direction) x /= length;
  return direction;
}

inline double ems_weight(ems_slot const& slot) {
  return slot.merge_weight > 0 ? slot.merge_weight : slot.score.local();
}

// What becomes of the centre `p` when the slots `set` (p among them, two or more) become one.
inline ems_slot ems_merge(ems_state const& state, std::size_t p, indices const& set, bool collapsed,
                          store_function const& store, std::size_t& near_rounding) {
  double sum = 0;
  for (std::size_t const i : set) sum += ems_weight(state.slots[i]);
  matrix directions, values;
  indices places;
  std::vector<double> weights;
  double mean_norm = 0;
  ems_slot merged = state.slots[p];
  merged.degree = 0;
  merged.merge_weight = sum;
  if (collapsed) merged.score = {};
  for (std::size_t const i : set) {
    ems_slot const& slot = state.slots[i];
    places.push_back(places.size());
    directions.push_back(ems_direction(slot));
    values.push_back(slot.value);
    weights.push_back(sum > 0 ? ems_weight(slot) / sum : 1.0 / static_cast<double>(set.size()));
    mean_norm += weights.back() * ems_norm(slot);
    merged.degree += slot.degree;
    if (!collapsed) continue;
    merged.score.global += slot.score.global;
    merged.score.past += slot.score.past;
    merged.score.current += slot.score.current;
  }
  merged.value = blend(values, places, weights, store, near_rounding);
  merged.own_norm = collapsed ? 0.0 : ems_norm(state.slots[p]);
  if (collapsed)
    for (double& w : weights) w *= mean_norm;
  merged.key = blend(directions, places, weights, store, near_rounding);
  return merged;
}

// One compression down to `budget` slots; a state of no more slots than that stays as it is. Slots keep
// their order. Members of the result: those that were members before, in their order, then the slots merged
// now, in theirs. A member that the ranking drops takes 1 from its owner's degree.
inline ems_outcome ems_compress(ems_state const& before, ems_options const& options,
                                store_function const& store = store_exactly) {
  ems_outcome result;
  std::size_t const n = before.slots.size();
  for (std::size_t i = 0; i < n; ++i) result.slot_target.push_back(static_cast<int>(i));
  for (ems_member const& m : before.members) result.member_owner.push_back(static_cast<int>(m.owner));
  result.after = before;
  if (n <= options.budget) return result;

  ems_tiers const tiers = ems_partition(before, options, result.score_margin);
  result.reached = tiers.reached;
  result.slot_target.assign(n, -1);
  for (indices const* kept : {&tiers.pinned, &tiers.protect, &tiers.centres})
    for (std::size_t const i : *kept) result.slot_target[i] = static_cast<int>(i);
  for (std::size_t const i : tiers.to_be_merged)
    result.slot_target[i] = ems_match(before, i, tiers.centres, options, result.similarity_margin);

  ems_state ranked = before;  // without the members that the ranking drops
  for (std::size_t m = 0; m < before.members.size(); ++m) {
    std::size_t const owner = before.members[m].owner;
    if (std::binary_search(tiers.members.begin(), tiers.members.end(), m)) {
      result.member_owner[m] = result.slot_target[owner];
    } else {
      result.member_owner[m] = -1;
      ranked.slots[owner].degree -= 1;
      ++result.members_outranked;
    }
  }

  result.after = {};
  result.after.rows_in_window = before.rows_in_window;
  std::vector<std::size_t> new_slot(n, 0);
  for (std::size_t p = 0; p < n; ++p) {
    if (result.slot_target[p] != static_cast<int>(p)) continue;
    indices set;
    for (std::size_t i = 0; i < n; ++i)
      if (result.slot_target[i] == static_cast<int>(p)) set.push_back(i);
    new_slot[p] = result.after.slots.size();
    result.after.slots.push_back(
        set.size() < 2 ? ranked.slots[p]
                       : ems_merge(ranked, p, set, options.collapsed, store, result.near_rounding));
  }
  for (std::size_t m = 0; m < before.members.size(); ++m) {
    if (result.member_owner[m] < 0) continue;
    result.after.members.push_back(before.members[m]);
    result.after.members.back().owner = new_slot[static_cast<std::size_t>(result.member_owner[m])];
  }
  for (std::size_t i = 0; i < n && !options.collapsed; ++i) {
    int const target = result.slot_target[i];
    if (target < 0 || target == static_cast<int>(i)) continue;
    ems_slot const& slot = before.slots[i];
    result.after.members.push_back(
        {ems_norm(slot), slot.position, new_slot[static_cast<std::size_t>(target)], slot.score});
  }
  return result;
}

}  // namespace reference
