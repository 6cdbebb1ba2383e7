// A merged entry that keeps its members' attention: for the query with attention p, sum over the set of p_i
// is what the merged entry receives. Solved for its degree here from logits and a normalisation, not from the
// closed form.
#pragma once

#include "track.hpp"

namespace reference {

struct merged_entry {
  row key, value;
  double degree = 0;
};

// p_i = d_i exp(x_i) / Z for an unknown Z: with Z = 1, x_i = log(p_i / d_i). The merged key sees the weighted
// mean of the x_i, and degree exp(mean) / 1 has to be sum p. Members without attention weigh nothing; if none
// has any, weights go by degree and degrees add. (p: not negative, finite.)
inline merged_entry merge_by_mass(track_state const& track, indices const& set, std::vector<double> const& p,
                                  store_function const& store, std::size_t& near_rounding) {
  double mass = 0, tokens = 0;
  for (std::size_t const i : set) {
    mass += p[i];
    tokens += track.degree[i];
  }
  std::vector<double> weights;
  merged_entry result;
  double logit = 0;
  for (std::size_t const i : set) {
    weights.push_back(mass > 0 ? p[i] / mass : track.degree[i] / tokens);
    if (p[i] > 0) logit += weights.back() * std::log(p[i] / track.degree[i]);
  }
  result.degree = mass > 0 ? mass / std::exp(logit) : tokens;
  result.key = blend(track.keys, set, weights, store, near_rounding);
  result.value = blend(track.values, set, weights, store, near_rounding);
  return result;
}

// Every set becomes its pivot's entry; scores add; target[i] is the pivot of i, i itself outside all sets.
inline outcome keep_mass(track_state const& track, indices const& target, std::vector<double> const& p,
                         store_function const& store = store_exactly) {
  outcome result;
  track_state merged = track;
  indices kept;
  for (std::size_t pivot = 0; pivot < track.size(); ++pivot) {
    result.target.push_back(static_cast<int>(target[pivot]));
    if (target[pivot] != pivot) continue;
    kept.push_back(pivot);
    indices set;
    double score = 0;
    for (std::size_t i = 0; i < track.size(); ++i) {
      if (target[i] != pivot) continue;
      set.push_back(i);
      score += track.score[i];
    }
    if (set.size() < 2) continue;
    merged_entry const entry = merge_by_mass(track, set, p, store, result.near_rounding);
    merged.keys[pivot] = entry.key;
    merged.values[pivot] = entry.value;
    merged.degree[pivot] = entry.degree;
    merged.score[pivot] = score;
  }
  result.after = pick(merged, kept);
  return result;
}

}  // namespace reference
