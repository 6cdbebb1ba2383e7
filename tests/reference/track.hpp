// The words that all reference loops share: a track in double precision, what became of it, and
// the row arithmetic. Nothing here is clever; nothing here comes from kvmeld.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace reference {

using row = std::vector<double>;
using matrix = std::vector<row>;                       // one row per entry
using indices = std::vector<std::size_t>;              // old slots, ascending unless said otherwise
using store_function = std::function<double(double)>;  // rounds to the storage type

// "No decision was close": larger than every gap between numbers that occur in tests.
inline constexpr double no_gap = 1e300;

inline double store_exactly(double x) { return x; }

struct track_state {
  matrix keys, values;
  std::vector<double> degree;
  std::vector<long> position;
  std::vector<double> score;
  std::vector<char> bad;  // NaN or infinity in the row: never merges, is never a target

  [[nodiscard]] std::size_t size() const { return keys.size(); }
};

struct outcome {
  track_state after;
  std::vector<int> target;  // per old entry: where it ended (old slot), itself if kept, -1 if dropped
  // The smallest gap between a decision taken and one not taken. Exact ties that no arithmetic can
  // resolve otherwise (equal given scores, bitwise equal rows) do not count: there the index decides.
  double margin = no_gap;
  bool reached = true;  // the budget, where there is one
  // Elements written so near to a rounding boundary of `store` that float arithmetic may round
  // them the other way. Where it is not 0, later rounds may differ although `margin` is large.
  std::size_t near_rounding = 0;
};

// A track of fresh tokens: degree 1, positions 0, 1, 2, ..., scores 0, no bad rows.
inline track_state fresh_track(matrix keys, matrix values) {
  track_state track;
  std::size_t const n = keys.size();
  track.keys = std::move(keys);
  track.values = std::move(values);
  track.degree.assign(n, 1.0);
  track.score.assign(n, 0.0);
  track.bad.assign(n, 0);
  for (std::size_t i = 0; i < n; ++i) track.position.push_back(static_cast<long>(i));
  return track;
}

// Counts from fractions are floored in double with 1e-9 added.
inline std::size_t floor_count(double ratio, std::size_t n) {
  return static_cast<std::size_t>(std::floor(ratio * static_cast<double>(n) + 1e-9));
}

inline double dot(row const& a, row const& b) {
  double sum = 0;
  for (std::size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

inline double norm(row const& a) { return std::sqrt(dot(a, a)); }

// A zero row has cosine 0 with everything.
inline double cosine(row const& a, row const& b) {
  double const length = norm(a) * norm(b);
  return length > 0 ? dot(a, b) / length : 0.0;
}

inline double squared_distance(row const& a, row const& b) {
  double sum = 0;
  for (std::size_t c = 0; c < a.size(); ++c) sum += (a[c] - b[c]) * (a[c] - b[c]);
  return sum;
}

// Notes the gap between a number that won and one that lost, unless they are equal (see `margin`).
inline void note_score_gap(double& margin, double taken, double left) {
  if (taken != left) margin = std::min(margin, std::fabs(taken - left));
}

// sum of weights[i] * rows[members[i]], each element rounded by `store`.
inline row blend(matrix const& rows, indices const& members, std::vector<double> const& weights,
                 store_function const& store, std::size_t& near_rounding) {
  row result(rows[members.front()].size());
  for (std::size_t c = 0; c < result.size(); ++c) {
    double sum = 0, magnitude = 0;
    float in_float = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      sum += weights[i] * rows[members[i]][c];
      magnitude += std::fabs(weights[i] * rows[members[i]][c]);
      in_float += static_cast<float>(weights[i]) * static_cast<float>(rows[members[i]][c]);
    }
    double const slack = 1e-6 * magnitude;  // more than a float sum of a few terms is off by
    double const jump = std::fabs(store(sum + slack) - store(sum - slack));
    // A float sum without error (the mean of two 16-bit numbers) rounds the same way, even at a boundary.
    if (jump > 10 * slack && static_cast<double>(in_float) != sum) ++near_rounding;
    result[c] = store(sum);
  }
  return result;
}

// The entries named by `kept` (old slots, ascending), in that order.
inline track_state pick(track_state const& track, indices const& kept) {
  track_state result;
  for (std::size_t const i : kept) {
    result.keys.push_back(track.keys[i]);
    result.values.push_back(track.values[i]);
    result.degree.push_back(track.degree[i]);
    result.position.push_back(track.position[i]);
    result.score.push_back(track.score[i]);
    result.bad.push_back(track.bad[i]);
  }
  return result;
}

// The `count` best of `candidates` by score (ties: the lower slot), ascending; the gap between the
// worst taken and the best left goes into `margin`.
inline indices best_scores(std::vector<double> const& scores, indices candidates, std::size_t count,
                           double& margin) {
  std::sort(candidates.begin(), candidates.end(), [&](std::size_t a, std::size_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
  });
  if (count >= candidates.size()) count = candidates.size();
  if (count > 0 && count < candidates.size())
    note_score_gap(margin, scores[candidates[count - 1]], scores[candidates[count]]);
  candidates.resize(count);
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

}  // namespace reference
