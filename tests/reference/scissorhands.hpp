// Scissorhands : H2O's halves, with the score counted as the number of recent rows in which an
// entry received more than the mean attention. The mean over the entries that a row sees is 1 / their number.
#pragma once

#include "eviction.hpp"

namespace reference {

// One row of attention as an entry sees it: did it get more than the mean?
struct hit {
  bool above;
  double doubt;  // |p - 1/visible| / (1/visible)
};

inline hit hit_of(double probability, std::size_t visible) {
  double const mean = 1.0 / static_cast<double>(visible);
  return {probability > mean, std::fabs(probability - mean) / mean};
}

// Which rows of each entry's life were hits; entries come and go with the cache.
struct hit_history {
  std::vector<std::vector<char>> rows;  // [entry][row]

  // A row of probabilities over the first `visible` entries; entries beyond get no hit.
  void add(row const& probability, std::size_t visible) {
    for (std::size_t j = 0; j < rows.size(); ++j)
      rows[j].push_back(j < visible && hit_of(probability[j], visible).above ? 1 : 0);
  }
  void keep(indices const& kept) {
    std::vector<std::vector<char>> left;
    for (std::size_t const i : kept) left.push_back(rows[i]);
    rows = left;
  }
  // Hits among the last `last` rows, as scores.
  [[nodiscard]] std::vector<double> counts(std::size_t last) const {
    std::vector<double> result;
    for (std::vector<char> const& of : rows) {
      double sum = 0;
      for (std::size_t r = of.size() > last ? of.size() - last : 0; r < of.size(); ++r) sum += of[r];
      result.push_back(sum);
    }
    return result;
  }
};

// Half the budget (rounded down) for the most recent entries, the rest for the most hits.
inline selection scissorhands(std::vector<double> const& hits, std::size_t budget) {
  return recents_and_best(hits, budget / 2, budget);
}

}  // namespace reference
