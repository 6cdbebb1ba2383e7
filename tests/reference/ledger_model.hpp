// A naive model of a cache's ledger: plain structs that remember which tokens every entry stands for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace reference {

struct model_entry {
  int position;
  std::vector<int> tokens;  // by the names the test gave them
  double score;
};
using model_track = std::vector<model_entry>;

struct model_sequence {
  bool open = false;
  unsigned seen = 0, pending = 0, frozen = 0, compressed_at = 0;
  std::vector<model_track> tracks;

  unsigned committed(std::size_t track) const {
    return static_cast<unsigned>(tracks[track].size()) - pending;
  }
  unsigned shortest() const {
    unsigned least = committed(0);
    for (std::size_t t = 1; t < tracks.size(); ++t) least = std::min(least, committed(t));
    return least;
  }
  unsigned longest() const {
    std::size_t most = 0;
    for (auto const& t : tracks) most = std::max(most, t.size());
    return static_cast<unsigned>(most);
  }
  // Fewest tokens that one can go back to.
  unsigned lowest() const {
    unsigned least = compressed_at;
    for (auto const& t : tracks) {
      if (frozen != 0) least = std::max(least, static_cast<unsigned>(t[frozen - 1].position) + 1);
    }
    return least;
  }
  void append(std::vector<int> const& names) {
    for (auto& t : tracks) {
      for (std::size_t i = 0; i < names.size(); ++i)
        t.push_back({static_cast<int>(seen + pending + i), {names[i]}, 0.0});
    }
    pending += static_cast<unsigned>(names.size());
  }
  void commit(unsigned accepted) {
    for (auto& t : tracks) t.resize(t.size() - (pending - accepted));
    seen += accepted;
    pending = 0;
  }
  void truncate(unsigned tokens) {
    for (auto& t : tracks) {
      while (!t.empty() && t.back().position >= static_cast<int>(tokens)) t.pop_back();
    }
    seen = tokens;
  }
  // Drops the entries at positions [first, last).
  void drop(int first, int last) {
    for (auto& t : tracks) {
      model_track left;
      for (auto const& e : t) {
        if (e.position < first || e.position >= last) left.push_back(e);
      }
      t = left;
    }
  }
  // Entries at the end of every track that came after the last compression; at the same positions in all.
  unsigned unmerged() const {
    unsigned n = 0;
    for (auto const& e : tracks[0]) n += e.position >= static_cast<int>(compressed_at) ? 1u : 0u;
    return n;
  }
  // Keeps the entries of one track for which keeps[i]; true if any went.
  bool evict(std::size_t track, std::vector<char> const& keeps) {
    model_track left;
    for (std::size_t i = 0; i < tracks[track].size(); ++i) {
      if (keeps[i]) left.push_back(tracks[track][i]);
    }
    bool const any = left.size() < tracks[track].size();
    tracks[track] = left;
    return any;
  }
  // Entry i becomes part of entry target[i], or stays where that is itself, or goes where it is negative.
  bool merge(std::size_t track, std::vector<int> const& target) {
    model_track& t = tracks[track];
    std::vector<char> keeps(t.size());
    for (std::size_t i = 0; i < t.size(); ++i) {
      keeps[i] = target[i] == static_cast<int>(i);
      if (keeps[i] || target[i] < 0) continue;
      auto& into = t[static_cast<std::size_t>(target[i])];
      into.tokens.insert(into.tokens.end(), t[i].tokens.begin(), t[i].tokens.end());
      into.score += t[i].score;
    }
    return evict(track, keeps);
  }
};

// StreamingLLM: the first `sinks` entries, or the frozen ones where they are more, and the last ones.
inline std::vector<char> streaming_keeps(model_track const& t, unsigned frozen, unsigned sinks,
                                         unsigned limit) {
  std::size_t const n = t.size(), first = std::max(frozen, sinks);
  std::vector<char> keeps(n, 1);
  for (std::size_t i = first; n > limit && i < n - (limit - first); ++i) keeps[i] = 0;
  return keeps;
}

// H2O: half of the budget beside frozen entries recent, the rest by score; ties to the earlier entry.
inline std::vector<char> h2o_keeps(model_track const& t, unsigned frozen, unsigned limit) {
  std::size_t const n = t.size();
  if (n <= limit) return std::vector<char>(n, 1);
  std::vector<char> keeps(n, 0);
  std::size_t const recents = std::min<std::size_t>(n - frozen, (limit - frozen) / 2);
  for (std::size_t i = 0; i < n; ++i) keeps[i] = i < frozen || i >= n - recents;
  for (std::size_t left = limit - frozen - recents; left > 0; --left) {
    std::size_t best = n;
    for (std::size_t i = 0; i < n; ++i) {
      if (!keeps[i] && (best == n || t[i].score > t[best].score)) best = i;
    }
    keeps[best] = 1;
  }
  return keeps;
}

}  // namespace reference
