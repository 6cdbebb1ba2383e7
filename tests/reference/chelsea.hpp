// Chelsea: rounds of chunked soft matching (paper 001, sections 5.1 to 5.3, appendix C for the
// schedule; what the paper leaves open is as in the library).
#pragma once

#include "track.hpp"

namespace reference {

enum class star_weighting { degree, average };

struct chelsea_options {
  std::size_t sinks = 16, recents = 64, chunk = 256;
  // r_i = max(floor, r_init - alpha * min(m, i)); these are Llama-2's numbers.
  double r_init = 0.45, alpha = 0.05, floor = 0.0;
  std::size_t m = 3, first_step = 0;
  std::size_t budget = 0;
  std::size_t max_rounds = ~std::size_t{0};
  star_weighting weighting = star_weighting::degree;
};

struct chelsea_outcome : outcome {
  indices removed;            // entries removed, per round
  std::size_t next_step = 0;  // the i of the round that would follow
};

struct edge {
  std::size_t a, b;  // places in the compacted track of this round
  double similarity;
  double ahead = no_gap;  // by how much b is more similar than the next best B
};

inline double ratio_at(chelsea_options const& options, std::size_t i) {
  return std::max(options.floor,
                  options.r_init - options.alpha * static_cast<double>(std::min(options.m, i)));
}

inline std::size_t edges_wanted(double ratio, std::size_t middle) {
  return std::max<std::size_t>(1, floor_count(ratio, middle));
}

// The middle of a round: behind the sinks, before the recents. Bad entries keep their places in it.
inline indices chelsea_middle(track_state const& track, chelsea_options const& options) {
  indices middle;
  for (std::size_t i = options.sinks; i + options.recents < track.size(); ++i) middle.push_back(i);
  return middle;
}

// One edge per A entry (0-based 0, 2, 4, ... of its chunk) to the most similar B (1, 3, 5, ...) of
// that chunk; ties: the lower B. A chunk of one entry has no edge. No edge begins or ends at a bad entry.
inline std::vector<edge> draw_edges(track_state const& track, indices const& middle, std::size_t chunk) {
  std::vector<edge> edges;
  for (std::size_t first = 0; first < middle.size(); first += chunk) {
    std::size_t const end = std::min(first + chunk, middle.size());
    for (std::size_t a = first; a < end; a += 2) {
      if (track.bad[middle[a]]) continue;
      row const& key = track.keys[middle[a]];
      indices targets;
      for (std::size_t b = first + 1; b < end; b += 2)
        if (!track.bad[middle[b]]) targets.push_back(middle[b]);
      if (targets.empty()) continue;
      edge best{middle[a], targets.front(), cosine(key, track.keys[targets.front()])};
      for (std::size_t const b : targets) {
        double const similarity = cosine(key, track.keys[b]);
        if (similarity > best.similarity) best = edge{middle[a], b, similarity};
      }
      for (std::size_t const b : targets)  // equal rows tie whatever the arithmetic
        if (b != best.b && track.keys[b] != track.keys[best.b])
          best.ahead = std::min(best.ahead, best.similarity - cosine(key, track.keys[b]));
      edges.push_back(best);
    }
  }
  return edges;
}

// The `count` most similar edges of all chunks; ties: the lower A.
inline std::vector<edge> best_edges(track_state const& track, std::vector<edge> edges, std::size_t count,
                                    double& margin) {
  std::sort(edges.begin(), edges.end(), [](edge const& x, edge const& y) {
    return x.similarity > y.similarity || (x.similarity == y.similarity && x.a < y.a);
  });
  for (std::size_t kept = 0; kept < count; ++kept) {
    margin = std::min(margin, edges[kept].ahead);
    // Only the gap to the cut matters, but equal rows at the cut may hide a close third edge behind them.
    for (std::size_t left = count; left < edges.size(); ++left) {
      bool const same = track.keys[edges[kept].a] == track.keys[edges[left].a] &&
                        track.keys[edges[kept].b] == track.keys[edges[left].b];
      if (!same) margin = std::min(margin, edges[kept].similarity - edges[left].similarity);
    }
  }
  edges.resize(count);
  return edges;
}

// Rounds until the budget is met, or no edge can be drawn (reached = false). Where sinks + recents
// leave no room in the budget, nothing is done and reached is false.
// Keys are rounded by `store` after each round; values once, from the original values.
inline chelsea_outcome chelsea(track_state const& original, chelsea_options const& options,
                               store_function const& store = store_exactly) {
  chelsea_outcome result;
  std::size_t const n = original.size();
  track_state track = original;                // compacted after each round
  indices slot;                                // compacted place -> old slot
  std::vector<indices> members(n);             // per old slot: the old entries that lie in it
  std::vector<double> average_weight(n, 1.0);  // product of 1/#S over the rounds
  for (std::size_t i = 0; i < n; ++i) {
    slot.push_back(i);
    members[i] = {i};
  }
  bool const refused = options.sinks + options.recents >= options.budget;
  std::size_t step = options.first_step;
  for (std::size_t round = 0; track.size() > options.budget && !refused && round < options.max_rounds;
       ++round) {
    indices const middle = chelsea_middle(track, options);
    std::vector<edge> edges = draw_edges(track, middle, options.chunk);
    if (edges.empty()) break;
    std::size_t count = edges_wanted(ratio_at(options, step), middle.size());
    count = std::min({count, edges.size(), track.size() - options.budget});
    edges = best_edges(track, edges, count, result.margin);

    std::vector<indices> star(track.size());  // per B: its A's
    std::vector<char> gone(track.size(), 0);
    for (edge const& e : edges) {
      star[e.b].push_back(e.a);
      gone[e.a] = 1;
    }
    track_state next = track;
    for (std::size_t b = 0; b < star.size(); ++b) {
      if (star[b].empty()) continue;
      indices all = star[b];
      all.push_back(b);
      std::sort(all.begin(), all.end());
      double degree = 0, score = 0;
      for (std::size_t const i : all) {
        degree += track.degree[i];
        score += track.score[i];
      }
      std::vector<double> weights;
      for (std::size_t const i : all)
        weights.push_back(options.weighting == star_weighting::degree
                              ? track.degree[i] / degree
                              : 1.0 / static_cast<double>(all.size()));
      next.keys[b] = blend(track.keys, all, weights, store, result.near_rounding);
      next.degree[b] = degree;
      next.score[b] = score;
      for (std::size_t const i : all)
        for (std::size_t const token : members[slot[i]])
          average_weight[token] /= static_cast<double>(all.size());
      for (std::size_t const a : star[b])
        members[slot[b]].insert(members[slot[b]].end(), members[slot[a]].begin(), members[slot[a]].end());
    }
    indices kept, kept_slot;
    for (std::size_t i = 0; i < track.size(); ++i) {
      if (gone[i]) continue;
      kept.push_back(i);
      kept_slot.push_back(slot[i]);
    }
    result.removed.push_back(track.size() - kept.size());
    track = pick(next, kept);
    slot = kept_slot;
    ++step;
  }

  result.target.assign(n, -1);
  for (std::size_t place = 0; place < slot.size(); ++place) {
    indices& all = members[slot[place]];
    for (std::size_t const token : all) result.target[token] = static_cast<int>(slot[place]);
    if (all.size() < 2) continue;
    std::sort(all.begin(), all.end());
    std::vector<double> weights;
    for (std::size_t const token : all)
      weights.push_back(options.weighting == star_weighting::degree
                            ? original.degree[token] / track.degree[place]
                            : average_weight[token]);
    track.values[place] = blend(original.values, all, weights, store, result.near_rounding);
  }
  result.reached = track.size() <= options.budget;
  result.after = track;
  result.next_step = step;
  return result;
}

}  // namespace reference
