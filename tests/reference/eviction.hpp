// Which entries do the eviction baselines keep? The rest goes to the zero class.
#pragma once

#include "scores.hpp"

namespace reference {

struct selection {
  indices kept;            // ascending
  double margin = no_gap;  // between the worst score kept and the best one evicted
};

// The first `sinks` entries and, after them, the most recent ones.
inline selection streaming_llm(std::size_t n, std::size_t sinks, std::size_t budget) {
  selection result;
  sinks = std::min(sinks, budget);
  std::size_t const recents = budget - sinks;
  for (std::size_t i = 0; i < n; ++i)
    if (n <= budget || i < sinks || i + recents >= n) result.kept.push_back(i);
  return result;
}

// The last `recents` entries and, of the others, the best scores up to the budget.
inline selection recents_and_best(std::vector<double> const& scores, std::size_t recents,
                                  std::size_t budget) {
  selection result;
  std::size_t const n = scores.size();
  if (n <= budget) {
    for (std::size_t i = 0; i < n; ++i) result.kept.push_back(i);
    return result;
  }
  recents = std::min(recents, budget);
  indices older;
  for (std::size_t i = 0; i + recents < n; ++i) older.push_back(i);
  result.kept = best_scores(scores, older, budget - recents, result.margin);
  for (std::size_t i = n - recents; i < n; ++i) result.kept.push_back(i);
  return result;
}

// H2O: half the budget (rounded down) for the most recent entries, the other half for the best scores.
inline selection h2o(std::vector<double> const& scores, std::size_t budget) {
  return recents_and_best(scores, budget / 2, budget);
}

// SnapKV: the last `window` entries and the best pooled local scores before them.
// `local`: attention of the last `window` queries, summed, not yet pooled.
inline selection snapkv(std::vector<double> const& local, std::size_t window, pooling how, std::size_t budget,
                        std::size_t kernel = 7) {
  std::size_t const before = local.size() > window ? local.size() - window : 0;
  return recents_and_best(pool(local, before, how, kernel), window, budget);
}

// Eviction as an outcome: what is not kept is dropped, what is kept stays bitwise the same.
inline outcome evict(track_state const& track, selection const& chosen) {
  outcome result;
  result.after = pick(track, chosen.kept);
  result.target.assign(track.size(), -1);
  for (std::size_t const i : chosen.kept) result.target[i] = static_cast<int>(i);
  result.margin = chosen.margin;
  return result;
}

}  // namespace reference
