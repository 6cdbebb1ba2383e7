// Budgets that tracks share, by naive loops: everything that competes is sorted in one list.
#pragma once

#include "chelsea.hpp"
#include "kvmerger.hpp"

#include <numeric>

namespace reference {

// A track of a budget scope: its own budget, the share of it that it always keeps, its pinned ends.
struct sharer {
  std::size_t budget = 0, reserve = 0, sinks = 0, recents = 0;
};

inline std::size_t reserve_of(double floor, std::size_t budget, std::size_t length) {
  return std::min(length, std::max<std::size_t>(1, floor_count(floor, budget)));
}

// One competitor: `what` of track `of`.
struct competitor {
  double score;
  std::size_t of, what;
};

// How many competitors of each track are among the `wanted` best (ties: the earlier track, the lower index),
// where track t may win at most most[t].
inline indices winners(std::vector<competitor> all, std::size_t wanted, indices most, double& margin) {
  std::sort(all.begin(), all.end(), [](competitor const& a, competitor const& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.of != b.of ? a.of < b.of : a.what < b.what;
  });
  indices won(most.size(), 0);
  double last = no_gap;
  for (competitor const& c : all) {
    if (won[c.of] == most[c.of]) continue;
    if (wanted == 0) {
      if (last != no_gap) note_score_gap(margin, last, c.score);
      break;
    }
    ++won[c.of];
    --wanted;
    last = c.score;
  }
  return won;
}

// Entries that each track keeps, by score: its reserve and what `protect` of its best are kept whole come
// first, the rest of all tracks competes.
inline indices limits_by_score(std::vector<std::vector<double>> const& scores,
                               std::vector<sharer> const& tracks, std::size_t protect) {
  std::size_t budget = 0, held = 0, sure = 0;
  std::vector<competitor> all;
  indices limit, most;
  for (std::size_t t = 0; t < tracks.size(); ++t) {
    sharer const& s = tracks[t];
    std::size_t const n = scores[t].size();
    budget += s.budget;
    held += n;
    std::size_t const ends = std::min(n, s.sinks) + std::min(n - std::min(n, s.sinks), s.recents);
    limit.push_back(std::min(n, std::max(s.reserve, ends + protect)));
    sure += limit.back();
    indices middle(n - ends);
    std::iota(middle.begin(), middle.end(), std::min(n, s.sinks));
    std::stable_sort(middle.begin(), middle.end(),
                     [&](std::size_t a, std::size_t b) { return scores[t][a] > scores[t][b]; });
    for (std::size_t i = limit.back() - ends; i < middle.size(); ++i)
      all.push_back({scores[t][middle[i]], t, middle[i]});
    most.push_back(n);
  }
  double margin = no_gap;
  indices const won = winners(all, std::min(budget, held) - sure, most, margin);
  for (std::size_t t = 0; t < tracks.size(); ++t) limit[t] += won[t];
  return limit;
}

}  // namespace reference
