// Budgets that tracks share, by naive loops: who keeps how much where entries compete by score, candidates by similarity,
// or consecutive sets by one threshold. Everything competing is sorted in one list.
#pragma once

#include "chelsea.hpp"
#include "kvmerger.hpp"

#include <numeric>

namespace reference {

// A track of a split: its own budget, the share of it that it always keeps, its pinned ends.
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

// How many competitors of each track are among the `wanted` best (ties: the earlier track, the lower index), where
// track t may win at most most[t].
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

// Entries that each track keeps, by score: its reserve and what `protect` of its best are kept whole come first, the
// rest of all tracks competes.
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

// Tracks after merging, and how close decisions were.
struct split_outcome {
  std::vector<track_state> after;
  double margin = no_gap;
};

// A round's stars: every A of `edges` goes into its B.
inline track_state merge_stars(track_state const& track, std::vector<edge> const& edges) {
  track_state next = track;
  std::vector<char> gone(track.size(), 0);
  for (edge const& e : edges) {
    gone[e.a] = 1;
    for (double& x : next.keys[e.b]) x *= next.degree[e.b];
    for (std::size_t c = 0; c < next.keys[e.b].size(); ++c)
      next.keys[e.b][c] += track.degree[e.a] * track.keys[e.a][c];
    next.degree[e.b] += track.degree[e.a];
    for (double& x : next.keys[e.b]) x /= next.degree[e.b];
    next.score[e.b] += track.score[e.a];
  }
  indices kept;
  for (std::size_t i = 0; i < track.size(); ++i)
    if (!gone[i]) kept.push_back(i);
  return pick(next, kept);
}

// Chelsea over several tracks: each round does as many merges as the tracks would each do, the best of all; no track goes
// below its floor, and the last round ends on the sum.
inline split_outcome chelsea_over(std::vector<track_state> tracks, std::vector<sharer> const& shares,
                                  chelsea_options options) {
  split_outcome result;
  std::size_t budget = 0;
  for (sharer const& s : shares) budget += s.budget;
  for (std::size_t step = options.first_step;; ++step) {
    std::size_t held = 0, due = 0, allowed = 0;
    std::vector<std::vector<edge>> edges;
    std::vector<competitor> all;
    indices most;
    for (std::size_t t = 0; t < tracks.size(); ++t) {
      indices const middle = chelsea_middle(tracks[t], options);
      edges.push_back(draw_edges(tracks[t], middle, options.chunk));
      std::size_t numbers = 0;
      for (std::size_t const i : middle) numbers += tracks[t].bad[i] ? 0 : 1;
      std::size_t const stays = tracks[t].size() - numbers + (numbers == 0 ? 0 : 1);
      std::size_t const floor = std::max(shares[t].reserve, stays);
      most.push_back(tracks[t].size() - std::min(floor, tracks[t].size()));
      held += tracks[t].size();
      due += std::max(shares[t].budget, floor);
      std::size_t const wanted = edges_wanted(ratio_at(options, step), middle.size());
      allowed += std::min(wanted, most.back());
      for (edge const& e : edges.back()) all.push_back({e.similarity, t, e.a});
    }
    if (held <= budget || held <= due) break;
    indices const won = winners(all, std::min(allowed, held - due), most, result.margin);
    std::size_t merged = 0;
    for (std::size_t t = 0; t < tracks.size(); ++t) {
      tracks[t] = merge_stars(tracks[t], best_edges(tracks[t], edges[t], won[t], result.margin));
      merged += won[t];
    }
    if (merged == 0) break;
  }
  result.after = tracks;
  return result;
}

// KVMerger over several tracks: bisection of one threshold that leaves enough sets in all of them, each
// counting for its floor at least; tracks that are below theirs get one of their own; then the most similar neighbours
// of all tracks join. heavies[t] are protected in track t.
inline split_outcome kvmerger_over(std::vector<track_state> const& tracks, std::vector<sharer> const& shares,
                                   std::vector<kvmerger_options> options, std::size_t bisections) {
  split_outcome result;
  std::size_t const n = tracks.size();
  std::size_t budget = 0, held = 0;
  indices others(n), least(n), field(n);
  result.after = tracks;
  auto const sets_at = [&](std::size_t t, double theta) {
    kvmerger_options o = options[t];
    o.theta = theta;
    set_result found = sets_for_theta(tracks[t], o);
    result.margin = std::min(result.margin, found.margin);
    return found.sets;
  };
  for (std::size_t t = 0; t < n; ++t) {
    budget += shares[t].budget;
    held += tracks[t].size();
    field[t] = mergeable_entries(tracks[t], options[t], result.margin).size();
    others[t] = tracks[t].size() - field[t];
    std::size_t const fewest = sets_at(t, -2).size();  // what gaps and bad entries keep apart
    least[t] = std::max(shares[t].reserve, others[t] + fewest) - others[t];
  }
  if (held <= budget) return result;
  // Narrows until [low, high] is as small as asked; enough(theta) decides.
  auto const bisect = [&](double low, double high, auto enough) {
    for (std::size_t i = 0; i < bisections; ++i) {
      double const middle = 0.5 * (low + high);
      (enough(middle) ? high : low) = middle;
    }
    return high;
  };
  double const theta = bisect(-1.0625, 1.0625, [&](double x) {
    std::size_t kept = 0;
    for (std::size_t t = 0; t < n; ++t)
      kept += others[t] + (field[t] == 0 ? 0 : std::max(least[t], sets_at(t, x).size()));
    return kept >= budget;
  });
  std::vector<merging_sets> sets(n);
  std::vector<competitor> all;
  indices most(n, 0);
  std::size_t kept = 0;
  for (std::size_t t = 0; t < n; ++t) {
    if (field[t] != 0) sets[t] = sets_at(t, theta);
    if (sets[t].size() < least[t])
      sets[t] = sets_at(t, bisect(theta, 1.0625, [&](double x) { return sets_at(t, x).size() >= least[t]; }));
    for (std::size_t b = 0; b + 1 < sets[t].size(); ++b) {
      if (tracks[t].bad[sets[t][b].back()] || tracks[t].bad[sets[t][b + 1].back()]) continue;
      all.push_back({cosine(tracks[t].keys[sets[t][b].back()], tracks[t].keys[sets[t][b + 1].back()]), t, b});
    }
    most[t] = sets[t].size() - std::min(least[t], sets[t].size());
    kept += others[t] + sets[t].size();
  }
  indices const joins = winners(all, kept - budget, most, result.margin);
  for (std::size_t t = 0; t < n; ++t) {
    set_result const joined =
        merge_adjacent(tracks[t].keys, sets[t], joins[t], options[t].break_at_gap, tracks[t].bad);
    result.margin = std::min(result.margin, joined.margin);
    outcome const merged = apply_sets(tracks[t], joined.sets, options[t]);
    result.margin = std::min(result.margin, merged.margin);
    result.after[t] = merged.after;
  }
  return result;
}

}  // namespace reference
