// D2O's token level (Wan et al., "D2O: Dynamic Discriminative Operations for Efficient Long-Context Inference
// of Large Language Models", ICLR 2025, arXiv 2406.13035): evict as H2O, then merge each evicted token into
// the nearest conserved one by key cosine if it is as near as a threshold that follows the track.
//
// The reading: tau_0 is the mean of the first evicted tokens' best similarities; later
// tau_t = beta * x + (1 - beta) * tau_{t-1}, and the tokens of this very compression are held against tau_t.
// The paper evicts one token a step, whose best similarity x is; of several, `latest` says which: the largest
// (Max(U_t) as printed), or the mean, which the published code takes. Weights: a conserved token's similarity
// with itself is 1, so that it weighs e against exp(u_i). Both paper and code also let the recent tokens be
// targets.
#pragma once

#include "track.hpp"

namespace reference {

enum class d2o_latest { maximum, mean };
enum class d2o_targets { heavy_hitters, conserved };

struct d2o_options {
  std::size_t budget = 0;
  double recent_share = 0.5;  // of the budget, as H2O
  double beta = 0.7;
  d2o_latest latest = d2o_latest::maximum;
  d2o_targets targets = d2o_targets::heavy_hitters;
  bool add_degrees = true, add_scores = true;  // ours; as printed a target stays one token with its own score
};

struct d2o_memory {  // of one track, between compressions
  bool started = false;
  double tau = 0;
};

struct d2o_outcome : outcome {
  d2o_memory memory;
  double similarity_margin = no_gap, score_margin = no_gap;  // margin is the smaller one
};

struct d2o_partition {
  indices kept, targets, evicted;  // ascending
};

// The recent tokens, bad ones, and of the others the heaviest up to the budget. Bad ones are no targets.
inline d2o_partition d2o_conserve(track_state const& track, d2o_options const& options, double& margin) {
  d2o_partition result;
  std::size_t const n = track.size(), recents = floor_count(options.recent_share, options.budget);
  indices older;
  std::vector<char> kept(n, 0);
  std::size_t pinned = 0;
  for (std::size_t i = 0; i < n; ++i) {
    kept[i] = i + recents >= n || track.bad[i];
    pinned += kept[i] ? 1 : 0;
    if (!kept[i]) older.push_back(i);
    if (kept[i] && !track.bad[i] && options.targets == d2o_targets::conserved) result.targets.push_back(i);
  }
  std::size_t const room = options.budget > pinned ? options.budget - pinned : 0;
  for (std::size_t const i : best_scores(track.score, older, room, margin)) {
    kept[i] = 1;
    result.targets.push_back(i);
  }
  std::sort(result.targets.begin(), result.targets.end());
  for (std::size_t i = 0; i < n; ++i) (kept[i] ? result.kept : result.evicted).push_back(i);
  return result;
}

struct nearest {
  std::size_t target = 0;
  double similarity = 0;
  double ahead = no_gap;  // of the next best target whose row is another
};

// Ties: the lower slot.
inline nearest nearest_target(matrix const& keys, std::size_t i, indices const& targets) {
  nearest best{targets.front(), cosine(keys[i], keys[targets.front()])};
  for (std::size_t const t : targets) {
    double const similarity = cosine(keys[i], keys[t]);
    if (similarity > best.similarity) best = {t, similarity};
  }
  for (std::size_t const t : targets)
    if (keys[t] != keys[best.target])
      best.ahead = std::min(best.ahead, best.similarity - cosine(keys[i], keys[t]));
  return best;
}

inline d2o_memory d2o_follow(d2o_memory memory, std::vector<nearest> const& found,
                             d2o_options const& options) {
  double largest = found.front().similarity, sum = 0;
  for (nearest const& f : found) {
    largest = std::max(largest, f.similarity);
    sum += f.similarity;
  }
  double const mean = sum / static_cast<double>(found.size());
  if (!memory.started) return {true, mean};
  double const latest = options.latest == d2o_latest::maximum ? largest : mean;
  return {true, options.beta * latest + (1 - options.beta) * memory.tau};
}

// One compression. At or under the budget, and where nothing is evicted or nothing can be a target, tau
// stays.
inline d2o_outcome d2o(track_state const& track, d2o_options const& options, d2o_memory memory = {},
                       store_function const& store = store_exactly) {
  d2o_outcome result;
  std::size_t const n = track.size();
  for (std::size_t i = 0; i < n; ++i) result.target.push_back(static_cast<int>(i));
  result.after = track;
  result.memory = memory;
  if (n <= options.budget) return result;
  d2o_partition const tiers = d2o_conserve(track, options, result.score_margin);
  std::vector<nearest> found;
  for (std::size_t const i : tiers.evicted)
    if (!tiers.targets.empty()) found.push_back(nearest_target(track.keys, i, tiers.targets));
  if (!found.empty()) result.memory = d2o_follow(memory, found, options);

  std::vector<indices> newcomers(n);
  std::vector<double> likeness(n, 1.0);  // u; a target is like itself
  // The first threshold of a single evicted token is its own similarity in any arithmetic.
  bool const exact = !memory.started && found.size() == 1;
  for (std::size_t e = 0; e < tiers.evicted.size(); ++e) {
    std::size_t const i = tiers.evicted[e];
    result.target[i] = -1;
    if (found.empty()) continue;
    if (!exact)
      result.similarity_margin =
          std::min(result.similarity_margin, std::fabs(found[e].similarity - result.memory.tau));
    if (found[e].similarity < result.memory.tau) continue;
    result.similarity_margin = std::min(result.similarity_margin, found[e].ahead);
    result.target[i] = static_cast<int>(found[e].target);
    newcomers[found[e].target].push_back(i);
    likeness[i] = found[e].similarity;
  }

  track_state merged = track;
  for (std::size_t const c : tiers.kept) {
    if (newcomers[c].empty()) continue;
    indices all = newcomers[c];
    all.push_back(c);
    std::sort(all.begin(), all.end());
    double total = 0;
    for (std::size_t const i : all) total += std::exp(likeness[i]);
    std::vector<double> weights;
    for (std::size_t const i : all) weights.push_back(std::exp(likeness[i]) / total);
    merged.keys[c] = blend(track.keys, all, weights, store, result.near_rounding);
    merged.values[c] = blend(track.values, all, weights, store, result.near_rounding);
    for (std::size_t const i : newcomers[c]) {
      if (options.add_degrees) merged.degree[c] += track.degree[i];
      if (options.add_scores) merged.score[c] += track.score[i];
    }
  }
  result.margin = std::min(result.score_margin, result.similarity_margin);
  result.after = pick(merged, tiers.kept);
  result.reached = tiers.kept.size() <= options.budget;
  return result;
}

}  // namespace reference
