// SPDX-License-Identifier: Apache-2.0
// A wave: the tracks that are compressed together, and the metadata they need while they are.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/budget_scope.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/members.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/workspace.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// What the phases of a compression tell each other about one track of a wave.
struct track_state {
  std::uint32_t length;      ///< entries before the call
  std::uint32_t limit;       ///< entries that may stay
  std::uint32_t alive;       ///< entries that the rounds so far have left
  std::uint32_t live_count;  ///< entries of the live-slot list
  std::uint32_t places;      ///< the same, with the entries that hold NaN or infinity
  std::uint32_t centers;     ///< entries of the list of centres; 0 if the identifier needs none
  std::uint32_t rounds;      ///< rounds done in this call
  std::uint32_t merged;      ///< entries that the last round's identifier removed
  std::uint32_t spreads;     ///< spread sources that link_phase listed
  std::uint32_t sinks;       ///< entries at the beginning that the selector pinned
  std::uint32_t recents;     ///< entries at the end that the selector pinned as the local window
  std::uint32_t shielded;    ///< length of the beginning that is frozen or not writable
  /// 1 while the track is above its budget and makes progress, or is thinned whatever its budget
  std::uint32_t over_budget;
  std::uint32_t unchanged;  ///< 1: all sets of the last link_phase have one member, the step changes nothing
  /// 1: the step may hold anything, or fates and weights outside of the listed sets. 0: entries outside of
  /// the sets stay as they are, or are dropped.
  std::uint32_t unlisted;
  std::uint32_t notes[4];  ///< what one launch of the identifier leaves for its next launch

  /// Entries that still have to go.
  KVMELD_HD std::uint32_t excess() const { return alive > limit ? alive - limit : 0; }
};

/// Which tracks a call is about: every layer and head of the listed sequences.
struct work_list {
  /// [sequence_count] sequences, in memory that phases can read.
  std::uint32_t const* sequences = nullptr;
  std::uint32_t sequence_count = 0;  ///< listed sequences
  bool by_sequence = false;          ///< order (sequence, layer, head) instead of (layer, sequence, head)

  /// Number of tracks that are listed.
  KVMELD_HD std::uint32_t tracks(shape const& s) const { return s.layers * sequence_count * s.kv_heads; }
  /// The n-th track.
  KVMELD_HD track at(shape const& s, std::uint32_t n) const {
    std::uint32_t const rest = n / s.kv_heads;
    return make_track(s, by_sequence ? rest % s.layers : rest / sequence_count, sequence_of(s, n),
                      n % s.kv_heads);
  }
  /// The sequence of the n-th track.
  KVMELD_HD std::uint32_t sequence_of(shape const& s, std::uint32_t n) const {
    std::uint32_t const rest = n / s.kv_heads;
    return sequences[by_sequence ? rest / s.layers : rest % sequence_count];
  }
  /// Whether the n-th track is only there to fill up a recorded list.
  KVMELD_HD bool idle(shape const& s, std::uint32_t n) const { return sequence_of(s, n) == idle_sequence; }
};

/// Numbers the tracks of a work list for launches outside a wave.
struct track_source {
  shape extent;    ///< extents of the cache
  work_list work;  ///< which tracks
  /// The track of an item.
  KVMELD_HD track where(std::uint32_t item) const { return work.at(extent, item); }
  /// Whether the item is only there to fill up a recorded list.
  KVMELD_HD bool idle(std::uint32_t item) const { return work.idle(extent, item); }
};

/// What is known of tracks before they are planned: their entries, budgets and scores. Tracks that share a
/// budget are scored together, also where they are planned in parts (rounds/compress.hpp). Trivially
/// copyable. Per-entry arrays are [tracks][stride].
struct scored_tracks {
  ledger_ref ledger;             ///< the ledger of the cache
  work_list work;                ///< tracks of the whole call; these begin at `first`
  std::uint32_t first = 0;       ///< first track of the work list among these
  std::uint32_t tracks = 0;      ///< how many these are
  std::uint32_t stride = 0;      ///< slots that arrays of entries have for each track: none of them is longer
  std::uint32_t scope = 1;       ///< neighbouring tracks that share one plan
  std::uint32_t per_budget = 1;  ///< neighbouring tracks that share their budgets (a budget scope)

  track_state* state = nullptr;           ///< [tracks]
  float* score = nullptr;                 ///< [tracks][stride] importance of each entry
  score_kind scores = score_kind::order;  ///< what `score` holds, told to merge functions

  detail::share_state* share = nullptr;  ///< [tracks]; null if budgets cannot be shared
  std::uint32_t* counts = nullptr;       ///< [tracks][budget_counts] histograms; null where `share` is

  /// The first track of the budget scope that `item` belongs to.
  KVMELD_HD std::uint32_t budget_leader(std::uint32_t item) const { return item - item % per_budget; }
  /// A track's histogram.
  KVMELD_HD std::uint32_t* counts_of(std::uint32_t item) const {
    return counts + std::size_t{item} * detail::budget_counts;
  }
  /// The track of an item.
  KVMELD_HD track where(std::uint32_t item) const { return work.at(ledger.extent, first + item); }
  /// Whether the item is only there to fill up a recorded list.
  KVMELD_HD bool idle(std::uint32_t item) const { return work.idle(ledger.extent, first + item); }
  /// Index into arrays of entries.
  KVMELD_HD std::size_t at(std::uint32_t item, slot_t s) const { return std::size_t{item} * stride + s; }
  /// Extents of the cache, with the slots that these tracks may have as capacity: for launches.
  shape extent() const {
    shape s = ledger.extent;
    s.capacity = stride;
    return s;
  }
};

/// The tracks of a wave while they are planned: what is known of them, and the arrays of planning phases.
/// Trivially copyable. Per-entry arrays are [tracks of the wave][stride].
struct wave_ref : scored_tracks {
  /// [tracks][stride] role of each entry.
  role* roles = nullptr;
  /// [tracks][stride] live-slot list: the live entries whose rows are finite, ascending. From
  /// new_slots_phase on: all entries that stay.
  slot_t* live = nullptr;
  /// [tracks][stride] place of each listed entry if entries with NaN or infinity were listed too.
  std::uint32_t* place = nullptr;
  /// [tracks][stride] what the identifier proposed.
  candidate* candidates = nullptr;
  plan_ref step;  ///< what this round does
  plan_ref plan;  ///< all rounds composed, in terms of the entries before the call
  /// [tracks][stride] the sets of a plan as lists, from link_phase on: the set of pivot p ends at
  /// set_end[p] in set_member, and begins where the set of p - 1 ends. Until then these are the spare_words.
  slot_t* set_end = nullptr;
  /// [tracks][stride] the slots of the sets, ascending in each set. Until link_phase these are the centers.
  slot_t* set_member = nullptr;

  member_room members;  ///< room for the members of shared entries

  /// The finite centres of a track, ascending: state.centers of them, from round_phase to link_phase, if the
  /// identifier needs centres. If it does not, these words are spare, too.
  KVMELD_HD slot_t* centers(std::uint32_t item) const { return set_member + at(item, 0); }
  /// A word per entry that round_phase, and then the identifier, may use until link_phase.
  KVMELD_HD std::uint32_t* spare_words(std::uint32_t item) const { return set_end + at(item, 0); }
  /// The similarity of a source and its target, from the admission until the merge function weighs the set.
  KVMELD_HD float& similarity(std::uint32_t item, slot_t source) const {
    return step.key_weight[step.at(item, source)];
  }
  /// Whether the policy has one round, whose step is written to the plan directly.
  KVMELD_HD bool plans_directly() const { return step.fates == plan.fates; }
};

/// Sizes (arena without memory) or carves the metadata of a wave. The plan is carved apart (`carve_plan`),
/// because it may outlive the wave. `max_per_budget` is the number of tracks of the largest budget scope: so
/// many tracks have a state and scores, if they are more than `tracks`. `most`: tracks that have a state, for
/// waves of tracks that are shorter than the capacity.
inline wave_ref carve_wave(arena& a, shape const& extent, std::uint32_t tracks, std::uint32_t members = 0,
                           std::uint32_t max_per_budget = 1, std::uint32_t most = 0) {
  wave_ref w;
  w.stride = extent.capacity;
  std::size_t const n = std::size_t{tracks} * extent.capacity;
  std::uint32_t const scored = max_of(tracks, max_per_budget), stated = max_of(scored, most);
  w.state = a.take<track_state>(stated);
  w.score = a.take<float>(std::size_t{scored} * extent.capacity);
  w.roles = a.take<role>(n);
  w.live = a.take<slot_t>(n);
  w.place = a.take<std::uint32_t>(n);
  w.candidates = a.take<candidate>(n);
  w.step = carve_plan(a, tracks, extent.capacity, 0, most);
  w.set_end = a.take<slot_t>(n);
  w.set_member = a.take<slot_t>(n);
  w.members = detail::carve_member_room(a, tracks, members);
  if (max_per_budget > 1) {
    w.share = a.take<detail::share_state>(stated);
    w.counts = a.take<std::uint32_t>(std::size_t{stated} * detail::budget_counts);
  }
  return w;
}

namespace detail {

/// Base of light phases that have one tile per track and take no scratch. `Tracks` says what they may read
/// and write.
template <class Tracks> struct phase_over {
  Tracks wave;

  static constexpr bool light = true, spans_blocks = true;
  KVMELD_HD std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return 0; }
};
using track_phase = phase_over<wave_ref>;

/// Base of phases over the tracks that share one plan: neighbours in the wave, equally long; the first one
/// leads.
struct scope_phase : track_phase {
  KVMELD_HD bool leads(tile const& t) const { return t.item % wave.scope == 0; }

protected:
  /// Gives at(track, i), for all tracks and i < n, the mean over the tracks, summed in their order.
  template <class Team, class At> KVMELD_HD void average(Team const& team, std::uint32_t n, At at) const {
    team.for_each(n, [&](std::uint32_t i) {
      float sum = 0.0f;
      for (std::uint32_t m = 0; m < wave.scope; ++m) sum += at(m, i);
      float const mean = sum / static_cast<float>(wave.scope);
      for (std::uint32_t m = 0; m < wave.scope; ++m) at(m, i) = mean;
    });
  }
};

/// Base of light phases whose tiles are `block` slots each, and that take no scratch.
struct slot_phase {
  static constexpr std::uint32_t block = 1024;  ///< slots per tile: lanes of a light phase on a device
  wave_ref wave;

  static constexpr bool light = true;
  KVMELD_HD std::uint32_t tiles(shape const& s) const { return ceil_div(s.capacity, block); }
  std::size_t scratch_bytes(int) const { return 0; }
};

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
