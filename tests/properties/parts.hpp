// Random parts of policies: thresholds, counts, rules. Selectors say whether they drop entries by themselves.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <cstdint>

#include "support/random_cache.hpp"

namespace properties {

using support::dice;

template <class Select> struct never_drops : Select { static constexpr bool drops = false; };
using top = never_drops<kvmeld::select::top>;
using ends = never_drops<kvmeld::select::sinks_and_recents>;
using tiers = never_drops<kvmeld::select::tiers>;  // not to below the budget

// A selector of the tests' own: as `ends`, but the middle's entries with a score below `bar` are irrelevant.
struct with_irrelevant : kvmeld::select::sinks_and_recents {
  static constexpr kvmeld::select_facts facts{&kvmeld::select_facts::needs_score};
  static constexpr bool drops = true;
  float bar = 1;
  template <class Team>
  void assign(Team const& team, kvmeld::select_view const& view, kvmeld::pins const& p) const {
    kvmeld::pin_ends(team, view, p);
    team.for_each(view.length(), [&](std::uint32_t i) {
      kvmeld::role& r = view.role_of(i);
      if (r == kvmeld::role::mergeable && view.score(i) < bar) r = kvmeld::role::irrelevant;
    });
    team.sync();
  }
};

inline kvmeld::quantity few(dice& d) {
  switch (d.below(3)) {
  case 0: return kvmeld::quantity::entries(d.below(6));
  case 1: return kvmeld::quantity::of_budget(0.4 * d.uniform());
  default: return kvmeld::quantity::of_length(0.2 * d.uniform());
  }
}
inline top some_top(dice& d) { return {{few(d), few(d), few(d)}}; }
inline top filling_top(dice& d) {
  return {
      {d.chance(0.5) ? few(d) : kvmeld::quantity::entries(0), few(d), kvmeld::quantity::rest_of_budget()}};
}
inline ends some_ends(dice& d) { return {{few(d), few(d)}}; }
inline tiers some_tiers(dice& d) {
  return {{few(d), few(d), few(d), d.chance(0.2) ? 1.0 : 1 + 4 * d.uniform()}};
}
// The same entries however often the selector is asked.
inline ends fixed_ends(dice& d) {
  return {{kvmeld::quantity::entries(d.below(6)), d.chance(0.5)
                                                      ? kvmeld::quantity::entries(d.below(6))
                                                      : kvmeld::quantity::of_budget(0.4 * d.uniform())}};
}
inline ends filling_ends(dice& d) { return {{few(d), kvmeld::quantity::rest_of_budget()}}; }

inline std::uint32_t some_chunk(dice& d) {
  constexpr std::uint32_t chunks[] = {2, 3, 4, 7, 16, 64, 256};
  return d.pick(chunks);
}
inline kvmeld::admit::top_share some_share(dice& d) {
  return {{0.05 + 0.95 * d.uniform(), 0.2 * d.uniform(), d.below(5), 0.1 * d.uniform()}};
}
inline kvmeld::admit::threshold some_threshold(dice& d) {
  return {static_cast<float>(1.6 * d.uniform() - 0.7)};
}

template <class Admit> kvmeld::identify::chunked_bipartite<Admit> some_matching(dice& d, Admit admit) {
  return {some_chunk(d), admit};
}
// `break_at_gap` stays off where a budget has to be met.
template <class Admit> kvmeld::identify::consecutive_threshold<Admit> some_scan(dice& d, Admit admit) {
  using kvmeld::identify::anchor_rule;
  using kvmeld::identify::pivot_rule;
  return {d.chance(0.5) ? anchor_rule::fixed : anchor_rule::chain,
          d.chance(0.5) ? pivot_rule::highest_score : pivot_rule::newest,
          !kvmeld::stated_facts<kvmeld::admit_facts, Admit>.meets_budget && d.chance(0.5), admit};
}
inline kvmeld::merge::gaussian some_gaussian(dice& d) {
  constexpr kvmeld::merge::bandwidth all[] = {
      kvmeld::merge::bandwidth::mean_l2, kvmeld::merge::bandwidth::eq7_000, kvmeld::merge::bandwidth::fixed};
  kvmeld::merge::gaussian g;
  g.sigma = d.pick(all);
  g.fixed_sigma = static_cast<float>(0.1 + 6 * d.uniform());
  g.degrees = d.chance(0.7);
  return g;
}
inline kvmeld::score::local some_local(dice& d) {
  constexpr kvmeld::pooling_mode all[] = {kvmeld::pooling_mode::mean, kvmeld::pooling_mode::max,
                                          kvmeld::pooling_mode::zero_padded};
  return {d.between(1, 20), {2 * d.below(5) + 1, d.pick(all)}};
}

}  // namespace properties
