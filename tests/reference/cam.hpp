// CaM: an evicted entry's value is spread evenly over m local targets (paper 004, Eq. 9, 14, 15;
// exactly m targets, all evictions at once from the original values).
//
// The lossless case, Theorem 3.2 / Eq. 10: with M = 1 and mean(A of the targets) = A_i the paper's
// perturbation (avg(A) - A_i) V_i is 0. It leaves the softmax as it was; an engine's softmax no longer
// holds entry i, so that `paper` then returns O / (1 - A_i), and `mass_corrected` returns O.
#pragma once

#include "eviction.hpp"

namespace reference {

enum class cam_variant { paper, mass_corrected };

// What mass_corrected means where degrees are not 1 (the paper has degree 1 only, where
// the two agree). With r = sum of M / m over the evictions:
// proportional: V = (V_k + sum M V_i / m) / (1 + r), degree n_k (1 + r): exact iff mean(A of targets) = A_i;
// conserved: a true centroid of n_k and M n_i / m tokens: exact iff mean(A_k / n_k of targets) = A_i / n_i.
enum class mass_rule { proportional, conserved };

// The first m entries of the longest run without bad entries from `first_local` on; of equal runs the first.
inline indices cam_targets(track_state const& track, std::size_t first_local, std::size_t m) {
  indices longest, current;
  for (std::size_t i = first_local; i < track.size(); ++i) {
    if (track.bad[i])
      current.clear();
    else
      current.push_back(i);
    if (current.size() > longest.size()) longest = current;
  }
  if (longest.size() > m) longest.resize(m);
  return longest;
}

// Eq. 14: clamp(evicted / denominator, 0, 1), 0/0 = 0 and x/0 = 1.
inline double clamped_ratio(double evicted, double denominator) {
  if (!(evicted > 0)) return 0;
  if (!(denominator > 0)) return 1;
  return std::min(1.0, evicted / denominator);
}

// Eq. 14 as printed: the denominator is the mean accumulated attention of the targets.
inline double merge_rate(std::vector<double> const& scores, std::size_t evicted, indices const& targets) {
  double sum = 0;
  for (std::size_t const k : targets) sum += scores[k];
  return clamped_ratio(scores[evicted], targets.empty() ? 0.0 : sum / static_cast<double>(targets.size()));
}

// `reference_max`: the denominator is the largest accumulated attention of the sinks and recents.
inline double merge_rate_reference_max(std::vector<double> const& scores, std::size_t evicted,
                                       indices const& sinks_and_recents) {
  double largest = 0;
  for (std::size_t const k : sinks_and_recents) largest = std::max(largest, scores[k]);
  return clamped_ratio(scores[evicted], largest);
}

// `threshold`: M = 1 iff p > 0.5 (Theorem 3.3's condition avg < 2 A_i).
inline double threshold_mask(double rate) { return rate > 0.5 ? 1.0 : 0.0; }

// Evicts `evicted` and spreads each value with its mask (0 or 1, or p itself for `expected`) over the
// targets. Keys, positions and scores of the targets stay (no transfer of accumulated attention).
// A bad evicted entry spreads nothing. Targets must be neither evicted nor bad.
inline outcome cam_merge(track_state const& track, indices const& evicted, std::vector<double> const& mask,
                         indices const& targets, cam_variant variant,
                         mass_rule rule = mass_rule::proportional,
                         store_function const& store = store_exactly) {
  outcome result;
  track_state merged = track;
  double const m = static_cast<double>(targets.size());
  for (std::size_t const k : targets) {
    bool const centroid = variant == cam_variant::mass_corrected && rule == mass_rule::conserved;
    double mass = centroid ? track.degree[k] : 1.0;  // in units of V_k's own coefficient
    indices sources{k};
    std::vector<double> weights{mass};
    for (std::size_t e = 0; e < evicted.size(); ++e) {
      if (!(mask[e] > 0) || track.bad[evicted[e]]) continue;
      sources.push_back(evicted[e]);
      weights.push_back(mask[e] / m * (centroid ? track.degree[evicted[e]] : 1.0));
      mass += weights.back();
    }
    if (sources.size() == 1) continue;
    if (variant == cam_variant::mass_corrected) {
      for (double& w : weights) w /= mass;
      merged.degree[k] = centroid ? mass : track.degree[k] * mass;
    }
    merged.values[k] = blend(track.values, sources, weights, store, result.near_rounding);
  }
  indices kept;
  for (std::size_t i = 0; i < track.size(); ++i) {
    bool const goes = std::find(evicted.begin(), evicted.end(), i) != evicted.end();
    result.target.push_back(goes ? -1 : static_cast<int>(i));
    if (!goes) kept.push_back(i);
  }
  result.after = pick(merged, kept);
  return result;
}

}  // namespace reference
