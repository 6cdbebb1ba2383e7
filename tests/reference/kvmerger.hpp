// KVMerger: consecutive similar keys form a set, a set becomes one entry at its pivot's place with
// Gaussian weights. "000" and "003" are the two versions of the paper;
// where they contradict each other the code says which it follows.
#pragma once

#include "track.hpp"

namespace reference {

using merging_sets = std::vector<indices>;  // oldest set first, each ascending, singletons included

enum class anchor_rule { fixed, chain };
enum class pivot_rule { highest_score, newest };
enum class sigma_rule { mean_l2, eq7_000, fixed };

struct kvmerger_options {
  double theta = 0.75;
  anchor_rule anchor = anchor_rule::fixed;
  bool break_at_gap = false;
  sigma_rule sigma = sigma_rule::mean_l2;
  double fixed_sigma = 5;
  pivot_rule pivot = pivot_rule::highest_score;
  std::size_t recents = 0, heavies = 0;
};

struct set_result {
  merging_sets sets;
  double margin = no_gap;
  bool reached = true;
};

// K_m (step 2): what is neither recent, nor one of the `heavies` best scores of the others.
inline indices mergeable_entries(track_state const& track, kvmerger_options const& options, double& margin) {
  indices older;
  for (std::size_t i = 0; i + options.recents < track.size(); ++i) older.push_back(i);
  indices const heavy = best_scores(track.score, older, options.heavies, margin);
  indices result;
  for (std::size_t const i : older)
    if (!std::binary_search(heavy.begin(), heavy.end(), i)) result.push_back(i);
  return result;
}

// Step 3 (000 and 003, Algorithm 1), from the newest entry of K_m to the oldest. The anchor is the
// set's newest entry, or with `chain` (003's `i = j`) the entry added last. The last set is appended,
// which the printed algorithm forgets. A bad entry of K_m is a set of its own, which ends those beside it.
inline set_result sets_for_theta(track_state const& track, kvmerger_options const& options) {
  set_result result;
  indices const middle = mergeable_entries(track, options, result.margin);
  if (middle.empty()) return result;
  indices current{middle.back()};  // newest first
  for (std::size_t step = middle.size() - 1; step-- > 0;) {
    std::size_t const i = middle[step];
    std::size_t const anchor = options.anchor == anchor_rule::fixed ? current.front() : current.back();
    bool joins = !(options.break_at_gap && i + 1 != current.back());
    joins = joins && !track.bad[i] && !track.bad[current.back()];
    if (joins) {
      double const similarity = cosine(track.keys[i], track.keys[anchor]);
      result.margin = std::min(result.margin, std::fabs(similarity - options.theta));
      joins = similarity > options.theta;
    }
    if (!joins) {
      result.sets.emplace_back(current.rbegin(), current.rend());
      current.clear();
    }
    current.push_back(i);
  }
  result.sets.emplace_back(current.rbegin(), current.rend());
  std::reverse(result.sets.begin(), result.sets.end());
  return result;
}

// The fallback to a budget (theta fixes no exact size): removes `count`
// boundaries between neighbouring sets, those whose two anchors (the sets' newest entries) are most
// similar; ties: the older boundary. All boundaries are judged from the sets as given.
// With break_at_gap, a boundary at which slots are missing stays; so does one beside a `bad` entry.
inline set_result merge_adjacent(matrix const& keys, merging_sets const& sets, std::size_t count,
                                 bool break_at_gap = false, std::vector<char> const& bad = {}) {
  set_result result;
  std::vector<double> similarity(sets.size(), 0.0);  // boundary b lies between the sets b and b + 1
  indices boundaries;
  for (std::size_t b = 0; b + 1 < sets.size(); ++b) {
    if (break_at_gap && sets[b].back() + 1 != sets[b + 1].front()) continue;
    if (!bad.empty() && (bad[sets[b].back()] || bad[sets[b + 1].back()])) continue;
    similarity[b] = cosine(keys[sets[b].back()], keys[sets[b + 1].back()]);
    boundaries.push_back(b);
  }
  result.reached = count <= boundaries.size();
  double score_margin = no_gap;  // not used: for cosines only boundaries of equal rows are a true tie
  indices const removed = best_scores(similarity, boundaries, count, score_margin);
  auto const anchor = [&](std::size_t set) { return keys[sets[set].back()]; };
  for (std::size_t const taken : removed)
    for (std::size_t const left : boundaries) {
      if (std::binary_search(removed.begin(), removed.end(), left)) continue;
      bool const same = anchor(taken) == anchor(left) && anchor(taken + 1) == anchor(left + 1);
      if (!same) result.margin = std::min(result.margin, similarity[taken] - similarity[left]);
    }
  for (std::size_t s = 0; s < sets.size(); ++s) {
    bool const joins = s > 0 && std::binary_search(removed.begin(), removed.end(), s - 1);
    if (joins)
      result.sets.back().insert(result.sets.back().end(), sets[s].begin(), sets[s].end());
    else
      result.sets.push_back(sets[s]);
  }
  return result;
}

// Step 4: the highest score (ties: the lower slot), or the newest entry (003's averaging baseline).
inline std::size_t pivot_of(track_state const& track, indices const& set, pivot_rule rule, double& margin) {
  if (rule == pivot_rule::newest) return set.back();
  return best_scores(track.score, set, 1, margin).front();
}

// mean_l2 (000 section 6.3): the mean distance from the pivot to the remaining members.
// eq7_000 (000 Eq. 7): the sum of squared distances over sqrt(2) times the size of the set, where the
// sum runs over the whole set: the pivot adds 0 to the sum, and 1 to the size.
inline double sigma_of(track_state const& track, indices const& set, std::size_t pivot,
                       kvmerger_options const& options) {
  if (options.sigma == sigma_rule::fixed) return options.fixed_sigma;
  double distances = 0, squares = 0;
  for (std::size_t const i : set) {
    double const square = squared_distance(track.keys[pivot], track.keys[i]);
    squares += square;
    distances += std::sqrt(square);
  }
  double const size = static_cast<double>(set.size());
  if (options.sigma == sigma_rule::eq7_000) return squares / (std::sqrt(2.0) * size);
  return size > 1 ? distances / (size - 1) : 0.0;
}

// Step 5 (000 Eq. 7 and 8): w_i = g_i / sum g, g_i = exp(-||k_p - k_i||^2 / 2 sigma^2); sigma = 0: uniform.
inline std::vector<double> gaussian_weights(track_state const& track, indices const& set, std::size_t pivot,
                                            kvmerger_options const& options) {
  double const sigma = sigma_of(track, set, pivot, options);
  if (!(sigma > 0)) return std::vector<double>(set.size(), 1.0 / static_cast<double>(set.size()));
  std::vector<double> weights;
  double total = 0;
  for (std::size_t const i : set) {
    weights.push_back(std::exp(-squared_distance(track.keys[pivot], track.keys[i]) / (2 * sigma * sigma)));
    total += weights.back();
  }
  for (double& w : weights) w /= total;
  return weights;
}

// Steps 4 to 6 for given sets. Entries in no set, and in sets of one, stay as they are; a merged entry
// lies in the pivot's slot, with its position, and with the sums of degree and score.
inline outcome apply_sets(track_state const& track, merging_sets const& sets, kvmerger_options const& options,
                          store_function const& store = store_exactly) {
  outcome result;
  track_state merged = track;
  for (std::size_t i = 0; i < track.size(); ++i) result.target.push_back(static_cast<int>(i));
  for (indices const& set : sets) {
    if (set.size() < 2) continue;
    std::size_t const pivot = pivot_of(track, set, options.pivot, result.margin);
    std::vector<double> const weights = gaussian_weights(track, set, pivot, options);
    merged.keys[pivot] = blend(track.keys, set, weights, store, result.near_rounding);
    merged.values[pivot] = blend(track.values, set, weights, store, result.near_rounding);
    merged.degree[pivot] = merged.score[pivot] = 0;
    for (std::size_t const i : set) {
      merged.degree[pivot] += track.degree[i];
      merged.score[pivot] += track.score[i];
      result.target[i] = static_cast<int>(pivot);
    }
  }
  indices kept;
  for (std::size_t i = 0; i < track.size(); ++i)
    if (result.target[i] == static_cast<int>(i)) kept.push_back(i);
  result.after = pick(merged, kept);
  return result;
}

// The whole method at a given theta, however many entries that leaves.
inline outcome kvmerger(track_state const& track, kvmerger_options const& options,
                        store_function const& store = store_exactly) {
  set_result const found = sets_for_theta(track, options);
  outcome result = apply_sets(track, found.sets, options, store);
  result.margin = std::min(result.margin, found.margin);
  return result;
}

// The same, then as many boundaries removed as the budget still asks for. The bisection that found
// theta is not mirrored here: pass the theta that it found.
inline outcome kvmerger_to_budget(track_state const& track, kvmerger_options const& options,
                                  std::size_t budget, store_function const& store = store_exactly) {
  set_result found = sets_for_theta(track, options);
  std::size_t length = track.size();
  for (indices const& set : found.sets) length -= set.size() - 1;
  if (length > budget) {
    set_result const joined =
        merge_adjacent(track.keys, found.sets, length - budget, options.break_at_gap, track.bad);
    found.sets = joined.sets;
    found.reached = joined.reached;
    found.margin = std::min(found.margin, joined.margin);
  }
  outcome result = apply_sets(track, found.sets, options, store);
  result.margin = std::min(result.margin, found.margin);
  result.reached = found.reached;
  return result;
}

}  // namespace reference
