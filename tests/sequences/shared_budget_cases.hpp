// What the tests of shared budgets have in common: policies that can share them, and the tracks of a budget
// scope.
#pragma once

#include "life.hpp"

#include <kvmeld/compose/composed.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace sequences_test {

using kvmeld::budget_scope;
using kvmeld::quantity;
using kvmeld::compose::composed;

template <class Policy> composed part(Policy const& p) { return kvmeld::compose::composed_of(p); }

inline std::vector<std::pair<char const*, composed>> policies() {
  using namespace kvmeld;
  select::tiers const tiers{quantity::entries(1), quantity::of_budget(0.25), quantity::entries(2), 2.0};
  return {{"h2o", part(preset::h2o::defaults())},
          {"window", part(policy{score::global{}, preset::snapkv::with_window(6).select,
                                 identify::evict_rest{}, merge::drop{}})},
          {"cam", part(preset::cam::over_h2o())},
          {"tiers", part(policy{score::global{}, tiers, identify::nearest_center<admit::threshold>{{0.1f}},
                                merge::collapsed{}})}};
}

inline kvmeld::cache_options over(budget_scope among, std::uint32_t wave = 0) {
  kvmeld::cache_options options = support::with_plan();
  options.budgets_over = among;
  options.wave_tracks = wave;
  return options;
}

inline constexpr budget_scope shared_scopes[] = {budget_scope::layer, budget_scope::all_layers};

// The tracks of one sequence, one budget scope after the other.
inline std::vector<std::vector<kvmeld::track>> scopes_of(kvmeld::shape const& s, std::uint32_t q,
                                                         budget_scope among) {
  std::vector<std::vector<kvmeld::track>> out;
  support::for_tracks(s, q, [&](kvmeld::track t) {
    if (t.kv_head == 0 && (among == budget_scope::layer || t.layer == 0)) out.emplace_back();
    out.back().push_back(t);
  });
  return out;
}

// A sequence with tracks of different lengths: those of `table`.
template <class Cache>
void open_ragged(Cache& cache, support::dice& d, std::uint32_t q, std::uint32_t n, bool ragged) {
  open(cache, d, q, n);
  if (!ragged) return;
  std::vector<std::uint32_t> table(cache.options().extent.tracks());
  for (std::uint32_t& x : table) x = d.between(n / 2, n);
  cache.compress({q}, budget::per_track(table.data()), kvmeld::shortfall::evict_lowest);
}

template <class Cache> std::vector<std::vector<long>> positions_of(Cache const& cache, std::uint32_t q) {
  std::vector<std::vector<long>> out;
  support::for_tracks(cache.options().extent, q, [&](kvmeld::track t) {
    out.emplace_back();
    for (std::uint32_t s = 0; s < cache.ref().length(t); ++s)
      out.back().push_back(cache.ref().position(t, s));
  });
  return out;
}

template <class Cache> std::size_t held_by(Cache const& cache, std::vector<kvmeld::track> const& tracks) {
  std::size_t n = 0;
  for (kvmeld::track t : tracks) n += cache.ref().length(t);
  return n;
}

}  // namespace sequences_test
