// SPDX-License-Identifier: Apache-2.0
// Divides a total budget among heads by what each head is known to lose.
#pragma once

#include <kvmeld/cache/cache_options.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/types.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace calibrate {

/// What it costs to keep fewer entries of one head while all other heads keep everything. `cost[i]` is the
/// cost of keeping `share[i]` of its entries, in any unit that is common to all heads. Shares ascend strictly
/// and end with 1, whose cost counts as 0.
struct cost_curve {
  std::vector<double> share;  ///< shares of its entries that the head keeps, above 0 and at most 1
  std::vector<double> cost;   ///< what each share costs
};

/// Why curves cannot be used; empty if they can.
inline std::string curves_problem(std::vector<cost_curve> const& heads) {
  if (heads.empty()) return refusal("curves", "number of cost curves", 0, "at least 1, one per head");
  for (std::size_t h = 0; h < heads.size(); ++h) {
    cost_curve const& c = heads[h];
    if (c.share.size() != c.cost.size() || c.share.size() < 2) {
      char const* const part = c.share.size() < 2 ? "shares" : "costs";
      return refusal("curves", message("number of ", part, " of head ", h),
                     c.share.size() < 2 ? c.share.size() : c.cost.size(),
                     c.share.size() < 2 ? std::string("at least 2")
                                        : message(c.share.size(), ", one per share"));
    }
    for (std::size_t i = 0; i < c.share.size(); ++i) {
      double const least = i == 0 ? 0.0 : c.share[i - 1];
      if (!(is_within(c.share[i], least, 1.0) && c.share[i] > least)) {
        return refusal("curves", message("share ", i, " of head ", h), c.share[i], "above ", least,
                       " and at most 1");
      }
      if (!is_within(c.cost[i], -1e30, 1e30)) {
        return refusal("curves", message("cost ", i, " of head ", h), c.cost[i], "a finite number");
      }
    }
    if (c.share.back() != 1.0) {
      return refusal("curves", message("last share of head ", h), c.share.back(), "1");
    }
  }
  return {};
}

namespace detail {

/// A stretch of a head's lower convex hull. It begins at the share `begin`. Keeping up to `width` more of the
/// head saves `rate` per unit of share.
struct stretch {
  double rate, begin, width;
  std::size_t head;
};

/// Adds the stretches of the hull from `floor` to 1, the steepest first. Measured costs are noisy: a cost
/// that rises with the share is replaced by the lowest cost before it.
inline void add_stretches(cost_curve const& c, std::size_t head, double floor, std::vector<stretch>& out) {
  std::vector<double> x, y;
  double from = 0.0,
         before = std::max(0.0, c.cost.front());  // below the first share, costs are those of the first share
  for (std::size_t i = 0; i < c.share.size(); ++i) {
    double const lowest = std::max(0.0, std::min(before, i + 1 == c.share.size() ? 0.0 : c.cost[i]));
    if (c.share[i] > floor) {
      if (x.empty()) {
        x.push_back(floor);
        y.push_back(before + (floor - from) / (c.share[i] - from) * (lowest - before));
      }
      x.push_back(c.share[i]);
      y.push_back(lowest);
    }
    from = c.share[i];
    before = lowest;
  }
  for (std::size_t i = 0; i + 1 < x.size();) {
    std::size_t best = i + 1;
    for (std::size_t j = i + 2; j < x.size(); ++j) {
      if ((y[i] - y[j]) * (x[best] - x[i]) > (y[i] - y[best]) * (x[j] - x[i])) best = j;
    }
    out.push_back({(y[i] - y[best]) / (x[best] - x[i]), x[i], x[best] - x[i], head});
    i = best;
  }
}

}  // namespace detail

/// Returns a share per head. The mean of the shares is `ratio`, and the sum of their costs is least if costs
/// add up. Every head gets `floor`. The rest goes where the next piece saves most (marginal cost on the lower
/// convex hull of each curve; ties to the lower head). What is left when nothing saves more lifts the
/// smallest shares to one level. Refuses bad curves (curves_problem), a floor outside (0, 1] and a ratio
/// outside [floor, 1]; returns none then where exceptions are off. Host only, deterministic.
inline std::vector<double> allot(std::vector<cost_curve> const& heads, double ratio, double floor = 0.05) {
  std::string problem = refusal_within("allot", curves_problem(heads));
  if (problem.empty() && !(is_within(floor, 0.0, 1.0) && floor > 0.0)) {
    problem = refusal("allot", "floor", floor, "above 0 and at most 1");
  }
  if (problem.empty() && !is_within(ratio, floor, 1.0)) {
    problem = refusal("allot", "ratio", ratio, floor, ", the floor, to 1");
  }
  if (!raise(problem)) return {};
  std::vector<detail::stretch> stretches;
  for (std::size_t h = 0; h < heads.size(); ++h) detail::add_stretches(heads[h], h, floor, stretches);
  std::stable_sort(stretches.begin(), stretches.end(),
                   [](detail::stretch const& a, detail::stretch const& b) { return a.rate > b.rate; });
  std::vector<double> share(heads.size(), floor);
  double left = (ratio - floor) * static_cast<double>(heads.size());
  for (detail::stretch const& s : stretches) {
    if (!(s.rate > 0.0)) break;
    double const taken = std::min(left, s.width);
    share[s.head] += taken;
    left -= taken;
  }
  // What is left when nothing saves more lifts the smallest shares to one level.
  std::vector<double> ascending = share;
  std::sort(ascending.begin(), ascending.end());
  double below = 0, level = 0;
  for (std::size_t n = 1; n <= ascending.size() && left > 0.0; ++n) {
    below += ascending[n - 1];
    level = (below + left) / static_cast<double>(n);
    if (n == ascending.size() || level <= ascending[n]) break;
  }
  for (double& x : share) x = std::min(1.0, std::max(x, level));
  return share;
}

/// Entries per head for a track of `tokens`: whole numbers of at least one. Their sum is that of the shares
/// to within one (largest remainders, ties to the lower head), or more where heads need the one entry.
/// Refuses shares outside [0, 1] and more tokens than a track holds; returns none then where exceptions are
/// off.
inline std::vector<std::uint32_t> entries_of(std::vector<double> const& share, std::uint32_t tokens) {
  std::string problem;
  if (tokens > largest::capacity)
    problem = refusal("entries_of", "tokens", tokens, "at most ", largest::capacity);
  for (std::size_t h = 0; h < share.size() && problem.empty(); ++h) {
    if (!is_within(share[h], 0.0, 1.0)) {
      problem = refusal("entries_of", message("share[", h, "]"), share[h], "0 to 1");
    }
  }
  if (!raise(problem)) return {};
  std::vector<std::uint32_t> out(share.size());
  std::vector<double> rest(share.size());
  double whole = 0;
  std::uint64_t given = 0;
  for (std::size_t h = 0; h < share.size(); ++h) {
    out[h] = max_of(1u, floor_share(share[h], tokens));
    rest[h] = share[h] * tokens - out[h];
    whole += share[h] * tokens;
    given += out[h];
  }
  auto const wanted = static_cast<std::uint64_t>(whole + 1e-6);
  while (given < wanted) {
    auto const most = std::max_element(rest.begin(), rest.end());
    if (!(*most > 0)) break;
    ++out[static_cast<std::size_t>(most - rest.begin())];
    *most = 0;
    ++given;
  }
  return out;
}

/// A table for `budget::per_track` of a cache whose tracks are [layers][sequences][kv_heads]. The heads of
/// `sequence` get `entries` [layers][kv_heads]. Tracks of other sequences get 0; do not compress them with
/// this table. Refuses an extent that no cache has, a sequence out of range, and a number of `entries` that
/// is not the number of heads; returns none then where exceptions are off.
inline std::vector<std::uint32_t> budget_table(shape const& s, std::uint32_t sequence,
                                               std::vector<std::uint32_t> const& entries) {
  std::string problem = refusal_within("budget_table", kvmeld::detail::extent_problem(s));
  if (problem.empty() && sequence >= s.sequences) {
    problem = refusal("budget_table", "sequence", sequence, "0 to ", s.sequences - 1);
  }
  std::size_t const heads = std::size_t{s.layers} * s.kv_heads;
  if (problem.empty() && entries.size() != heads) {
    problem =
        refusal("budget_table", "number of entries", entries.size(), heads, ", one per head of every layer");
  }
  if (!raise(problem)) return {};
  std::vector<std::uint32_t> table(s.tracks(), 0);
  for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
    for (std::uint32_t head = 0; head < s.kv_heads; ++head) {
      table[make_track(s, layer, sequence, head).index] = entries[std::size_t{layer} * s.kv_heads + head];
    }
  }
  return table;
}

}  // namespace calibrate
}  // namespace KVMELD_ABI
}  // namespace kvmeld
