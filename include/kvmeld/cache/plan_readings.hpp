// SPDX-License-Identifier: Apache-2.0
// For debugging: prints the plan of a cache, and reads what it was made from. Not part of kvmeld.hpp.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/executor.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/merge/gaussian.hpp>
#include <kvmeld/score/score.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Why the host cannot read plans of a cache; empty if it can.
template <class Cache> std::string unreadable_plan(char const* call, Cache const& cache) {
  using executor = std::decay_t<decltype(std::declval<Cache&>().executor())>;
  if (!cache.valid().ok()) return cache.valid().text();
  if (is_immediate<executor>::value) return {};
  return refusal(call, "the executor", "a device's", "one whose memory the host can read");
}
/// Why the host cannot read a plan of this entry; empty if it can.
template <class Cache>
std::string unplanned(char const* call, Cache const& cache, std::uint32_t item, slot_t s) {
  if (std::string text = unreadable_plan(call, cache); !text.empty()) return text;
  work_list const work = cache.planned_work();
  if (work.sequence_count == 0) return refusal(call, "the plan", "none", "one that plan made");
  std::uint32_t const tracks = work.tracks(cache.options().extent);
  if (item >= tracks) return refusal(call, "item", item, "less than ", tracks, ", the planned tracks");
  std::uint32_t const length = cache.current_plan().old_length[item];
  if (s < length) return {};
  return refusal(call, "s", s, "less than ", length, ", the entries of item ", item);
}
/// Why the role, score and candidate of this entry cannot be read; empty if they can: the plan fits one wave,
/// and the track is above its budget.
template <class Cache>
std::string no_role(char const* call, Cache const& cache, std::uint32_t item, slot_t s) {
  if (std::string text = unplanned(call, cache, item, s); !text.empty()) return text;
  std::uint32_t const tracks = cache.planned_work().tracks(cache.options().extent);
  if (tracks > cache.options().wave_tracks) {
    return refusal(call, "options.wave_tracks", cache.options().wave_tracks, "at least ", tracks,
                   ", the planned tracks, so that one wave holds what all of them were planned from");
  }
  track_state const& state = cache.planned_wave().state[item];
  if (state.length > state.limit) return {};
  return refusal(call, "item", item, "a track above its budget, because others take no part");
}
/// Index of an entry into the arrays of a wave that holds the whole plan.
template <class Cache> std::size_t place_in_wave(Cache const& cache, std::uint32_t item, slot_t s) {
  return std::size_t{item} * cache.options().extent.capacity + s;
}

}  // namespace detail

/// Prints the plan of one track to a std::ostream, or to anything with its `<<`: its lengths, every set with
/// its weights, the spreads, and the dropped entries. Entries that stay as they are are counted, not listed.
/// Entries are named by their slots before the plan; "then slot 3" is the slot of a set's result after the
/// plan. Host only. Linear in the track's length.
template <class Stream> void print_plan(Stream& out, track where, plan_ref const& plan, std::uint32_t item) {
  std::uint32_t const n = plan.old_length[item];
  out << "track (layer " << where.layer << ", sequence " << where.sequence << ", head " << where.kv_head
      << "): " << n << " -> " << plan.new_length[item] << " entries\n";
  std::vector<std::vector<slot_t>> sources(n);
  std::vector<slot_t> dropped;
  std::uint32_t alone = 0;
  for (slot_t s = 0; s < n; ++s) {
    fate const f = plan.fates[plan.at(item, s)];
    if (f == fate::merge || f == fate::share) sources[plan.target[plan.at(item, s)]].push_back(s);
    if (f == fate::drop) dropped.push_back(s);
  }
  auto const weights = [&](slot_t s) {
    std::size_t const i = plan.at(item, s);
    out << s << " (key " << plan.key_weight[i] << ", value " << plan.value_weight[i] << ")";
  };
  for (slot_t s = 0; s < n; ++s) {
    std::size_t const i = plan.at(item, s);
    if (plan.fates[i] == fate::spread) {
      out << "  spread " << s << " over " << plan.target[i] << " to " << plan.target[i] + plan.span[i] - 1
          << " (value " << plan.value_weight[i] << ")\n";
    }
    if (plan.fates[i] != fate::keep) continue;
    if (sources[s].empty()) {
      ++alone;
      continue;
    }
    out << "  " << (plan.fates[plan.at(item, sources[s][0])] == fate::share ? "share " : "merge ");
    for (slot_t source : sources[s]) {
      if (source != sources[s].front()) out << " + ";
      weights(source);
    }
    out << " into ";
    weights(s);
    out << ", then slot " << plan.new_slot[i] << "\n";
  }
  if (!dropped.empty()) {
    out << "  drop";
    for (std::size_t k = 0; k < dropped.size();) {  // runs as first-last
      std::size_t end = k + 1;
      while (end < dropped.size() && dropped[end] == dropped[end - 1] + 1) ++end;
      out << " " << dropped[k];
      if (end > k + 1) out << "-" << dropped[end - 1];
      k = end;
    }
    out << "\n";
  }
  out << "  " << alone << " entries stay as they are\n";
}

/// Prints the plan that a cache made last, track by track. Refuses executors whose memory the host cannot
/// read, as all calls below do.
template <class Stream, class Cache> void print_plan(Stream& out, Cache const& cache) {
  if (!raise(detail::unreadable_plan("print_plan", cache)).ok()) return;
  shape const& extent = cache.options().extent;
  work_list const work = cache.planned_work();
  for (std::uint32_t item = 0; item < work.tracks(extent); ++item)
    print_plan(out, work.at(extent, item), cache.current_plan(), item);
}

/// The role that entry `s` of the `item`-th planned track had when the plan was made, numbered as in
/// current_plan(). It can be read until the next call of plan, apply or compress. Roles, scores and
/// candidates lie in the memory of a wave, so the plan has to fit one wave: options.wave_tracks is at least
/// planned_work().tracks(options().extent). Refuses tracks within their budget: their entries have no role.
template <class Cache> role planned_role(Cache const& cache, std::uint32_t item, slot_t s) {
  if (!raise(detail::no_role("planned_role", cache, item, s)).ok()) return role::pinned;
  return cache.planned_wave().roles[detail::place_in_wave(cache, item, s)];
}

/// The score of entry `s` that the plan was made from, under the conditions of planned_role. Refuses policies
/// without a score. Where heads share a plan, it is their mean. The score of an entry that others merged into
/// in an earlier round is that of their set.
template <class Cache> float planned_score(Cache const& cache, std::uint32_t item, slot_t s) {
  char const* const call = "planned_score";
  auto const& score = cache.policy().score;
  std::string const problem =
      facts_of<score_facts>(score).gives != score_kind::none
          ? detail::no_role(call, cache, item, s)
          : refusal(call, "the policy's score", full_name_of(score), "one that gives a score");
  if (!raise(problem).ok()) return 0.0f;
  return cache.planned_wave().score[detail::place_in_wave(cache, item, s)];
}

/// The candidate that the identifier proposed for entry `s`, whether it was admitted or not:
/// order_value(key) is the similarity of `s` to `target`. key 0: the identifier proposed nothing. For
/// identifiers that give similarities, under the conditions of planned_role.
template <class Cache> candidate planned_candidate(Cache const& cache, std::uint32_t item, slot_t s) {
  char const* const call = "planned_candidate";
  auto const& identify = cache.policy().identify;
  std::string const problem =
      facts_of<identify_facts>(identify).gives_similarity
          ? detail::no_role(call, cache, item, s)
          : refusal(call, "the policy's identifier", full_name_of(identify),
                    "one that gives similarities (chunked_bipartite, nearest_center)");
  candidate const nothing{0, s, s};
  if (!raise(problem).ok()) return nothing;
  track_state const& state = cache.planned_wave().state[item];
  std::uint32_t count = state.live_count;
  if constexpr (detail::lists_edges<std::decay_t<decltype(identify)>>) {
    if (std::uint32_t const edges = identify.edges(state.places); edges != 0) count = edges;
  }
  candidate const* const list = cache.planned_wave().candidates + detail::place_in_wave(cache, item, 0);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (list[i].source == s) return list[i];
  }
  return nothing;
}

/// KVMerger's sigma of the set that merges into `pivot`, up to the rounding of a distance: computed from K
/// before `apply`. 0 if nothing merges into it. For merge::gaussian.
template <class Cache> float planned_sigma(Cache const& cache, std::uint32_t item, slot_t pivot) {
  static_assert(std::is_same_v<typename Cache::policy_type::merge_type, merge::gaussian>,
                "kvmeld: planned_sigma is for policies whose merge function is merge::gaussian");
  if (!raise(detail::unplanned("planned_sigma", cache, item, pivot)).ok()) return 0.0f;
  merge::gaussian const& how = cache.policy().merge;
  plan_ref const& plan = cache.current_plan();
  auto const ref = cache.ref();
  track const where = cache.planned_work().at(cache.options().extent, item);
  std::uint32_t const d = ref.keys.channels();
  serial_team const team(nullptr, 0);
  std::vector<float> anchor(d), row(d);
  ref.keys.load_tile(team, where, pivot, 1, 0, d, anchor.data(), d);
  float sum = 0.0f;
  std::uint32_t members = 0;
  for (slot_t s = 0; s < plan.old_length[item]; ++s) {
    std::size_t const i = plan.at(item, s);
    if (plan.target[i] != pivot || (s != pivot && plan.fates[i] != fate::merge)) continue;
    ++members;
    ref.keys.load_tile(team, where, s, 1, 0, d, row.data(), d);
    float const square = squared_distance(anchor.data(), row.data(), d);
    sum += how.sigma == merge::bandwidth::mean_l2 ? std::sqrt(square) : square;
  }
  return members < 2 ? 0.0f : how.bandwidth_of(sum, members);
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
