// Reads the plan made last, and the roles and candidates that it was made from.
#pragma once

#include <kvmeld/cache/cache_options.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/policy/part_traits.hpp>
#include <kvmeld/rounds/compress.hpp>
#include <kvmeld/score/score.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Reads the plan of a cache for the calls planned_* of merged_cache.
template <class Policy> struct plan_reader {
  Policy const& policy;
  workspace_ref const& workspace;
  cache_options const& sizes;
  work_list work;
  bool immediate;  ///< the host can read the executor's memory

  /// Why the host cannot read plans; empty if it can.
  std::string unreadable(char const* call) const {
    if (immediate) return {};
    return refusal(call, "the executor", "a device's", "one whose memory the host can read");
  }
  /// Why the host cannot read a plan of this entry; empty if it can.
  std::string unplanned(char const* call, std::uint32_t item, slot_t s) const {
    if (std::string text = unreadable(call); !text.empty()) return text;
    if (work.sequence_count == 0) return refusal(call, "the plan", "none", "one that plan made");
    std::uint32_t const tracks = work.tracks(sizes.extent);
    if (item >= tracks) return refusal(call, "item", item, "less than ", tracks, ", the planned tracks");
    std::uint32_t const length = workspace.plan.old_length[item];
    if (s < length) return {};
    return refusal(call, "s", s, "less than ", length, ", the entries of item ", item);
  }
  /// Why the role and candidate of this entry cannot be read; empty if they can: the plan fits one wave, and
  /// the track is above its budget.
  std::string unknown(char const* call, std::uint32_t item, slot_t s) const {
    if (std::string text = unplanned(call, item, s); !text.empty()) return text;
    std::uint32_t const tracks = work.tracks(sizes.extent);
    if (tracks > sizes.wave_tracks) {
      return refusal(call, "options.wave_tracks", sizes.wave_tracks, "at least ", tracks,
                     ", the planned tracks, so that one wave holds what all of them were planned from");
    }
    track_state const& state = workspace.wave.state[item];
    if (state.length > state.limit) return {};
    return refusal(call, "item", item, "a track above its budget, because others take no part");
  }
  /// Why the score of this entry cannot be read; empty if it can.
  std::string no_score(char const* call, std::uint32_t item, slot_t s) const {
    if (traits_of_score(policy.score).gives != score_kind::none) return unknown(call, item, s);
    return refusal(call, "the policy's score", full_name_of(policy.score), "one that gives a score");
  }
  /// Why the candidate of this entry cannot be read; empty if it can. The identifier has to give
  /// similarities.
  std::string no_candidate(char const* call, std::uint32_t item, slot_t s) const {
    if (traits_of_identifier(policy.identify).gives_similarity) return unknown(call, item, s);
    return refusal(call, "the policy's identifier", full_name_of(policy.identify),
                   "one that gives similarities (chunked_bipartite, nearest_center)");
  }

  role role_of(std::uint32_t item, slot_t s) const { return workspace.wave.roles[at(item, s)]; }
  float score_of(std::uint32_t item, slot_t s) const { return workspace.wave.score[at(item, s)]; }

  candidate candidate_of(std::uint32_t item, slot_t s) const {
    wave_ref const& wave = workspace.wave;
    std::uint32_t count = wave.state[item].live_count;
    if constexpr (lists_edges<typename Policy::identify_type>::value) {
      std::uint32_t const edges = policy.identify.edges(wave.state[item].places);
      if (edges != 0) count = edges;
    }
    candidate const* const list = wave.candidates + at(item, 0);
    for (std::uint32_t i = 0; i < count; ++i) {
      if (list[i].source == s) return list[i];
    }
    return {0, s, s};
  }

  template <class Keys> float sigma_of(Keys const& keys, std::uint32_t item, slot_t pivot) const {
    plan_ref const& plan = workspace.plan;
    std::vector<slot_t> members;
    for (slot_t s = 0; s < plan.old_length[item]; ++s) {
      if (plan.target[plan.at(item, s)] == pivot &&
          (s == pivot || plan.fates[plan.at(item, s)] == fate::merge))
        members.push_back(s);
    }
    if (members.size() < 2) return 0.0f;
    return policy.merge.sigma_of(keys, work.at(sizes.extent, item), pivot, {members.data(), members.size()});
  }

private:
  /// Index into a wave's arrays of entries.
  std::size_t at(std::uint32_t item, slot_t s) const { return std::size_t{item} * sizes.extent.capacity + s; }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
