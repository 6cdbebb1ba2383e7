// SPDX-License-Identifier: Apache-2.0
// The phases behind the stats: they count what a compression does, and write stats when asked.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/cache_stats.hpp>
#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/sequences/operation.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Attention that an entry or member has gathered, as its policy keeps it; 0 if the policy keeps none.
/// `data`: the channels' arrays; `i`: the index into them.
KVMELD_HD inline float gathered_attention(channel_list const& channels, float* const* data, std::size_t i) {
  auto const value = [&](std::uint32_t tag) {
    std::uint32_t const c = channels.find(tag);
    return c < channels.count && is_finite(data[c][i]) ? data[c][i] : 0.0f;
  };
  if (channels.find(channel_tag::accumulated_attention) < channels.count)
    return value(channel_tag::accumulated_attention);
  if (channels.find(channel_tag::window_past) < channels.count)
    return value(channel_tag::window_past) + value(channel_tag::window_current);
  return value(channel_tag::hits_past) + value(channel_tag::hits_current);
}

/// Sum of the attention of all entries with keeps(slot) and of all members of entries with lives(slot).
/// Collective.
template <class Team, class Keeps, class Lives>
KVMELD_HD float attention_mass(Team const& team, ledger_ref const& l, track where, std::uint32_t length,
                               Keeps keeps, Lives lives) {
  float* const partial = team.template scratch<float>(team_partials);
  auto const sum = [&](std::uint32_t n, float* const* data, entry_indices const& at, auto counts) {
    return team_sum(
        team, n,
        [&](std::uint32_t i) { return counts(i) ? gathered_attention(l.channels, data, at(i)) : 0.0f; },
        partial);
  };
  float const own = sum(length, l.channel_data, l.from(where), keeps);
  std::uint32_t const held = l.members.held(where);
  if (held == 0) return own;
  std::size_t const first = l.members.at(where, 0);
  return own + sum(held, l.members.channel_data, first,
                   [&](std::uint32_t m) { return lives(l.members.owner[first + m]); });
}

/// Notes the attention mass of each track, before anything merges.
struct weigh_mass_phase {
  wave_ref wave;
  stat_counts* counts;

  static constexpr bool light = true, spans_blocks = true;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return team_sum_scratch(); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    auto const all = [](std::uint32_t) { return true; };
    float const mass = attention_mass(team, wave.ledger, t.where, wave.state[t.item].length, all, all);
    if (team.lane() == 0) counts[t.where.index].mass_before = mass;
  }
};

/// Counts what the plan did to entries, and sums the attention mass of those that are left. Runs after
/// everything has merged and before kept entries move.
struct count_fates_phase {
  wave_ref wave;
  stat_counts* counts;

  static constexpr bool light = true, spans_blocks = true;
  std::uint32_t tiles(shape const&) const { return 1; }
  std::size_t scratch_bytes(int) const { return team_sum_scratch(); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    ledger_ref const& l = wave.ledger;
    std::uint32_t const n = wave.state[t.item].length;
    fate const* const what = wave.plan.fates + wave.plan.at(t.item, 0);
    std::uint32_t dropped = 0, merged = 0;
    team.for_each(n, [&](std::uint32_t s) {
      if (what[s] == fate::drop) ++dropped;
      if (what[s] != fate::drop && what[s] != fate::keep) ++merged;
    });
    dropped = team.reduce(dropped, op_sum{});
    merged = team.reduce(merged, op_sum{});
    // Pivots hold the scores of merged entries now, and members those of shared entries. Spread entries still
    // hold their own.
    float const mass = attention_mass(
        team, l, t.where, n,
        [&](std::uint32_t s) { return what[s] == fate::keep || what[s] == fate::spread; },
        [&](std::uint32_t s) { return what[s] != fate::drop; });  // members that were given up are gone
    if (team.lane() != 0) return;
    stat_counts& c = counts[t.where.index];
    c.merged = merged;
    c.dropped = dropped;
    c.merged_in_all += merged;
    c.dropped_in_all += dropped;
    c.retained = c.mass_before > 0.0f ? min_of(1.0f, mass / c.mass_before) : 1.0f;
    c.retained_in_all *= c.retained;
  }
};

/// Resets the stats of a sequence that begins: nothing was compressed yet.
struct open_stats_phase : sequence_phase {
  stat_counts* stats;

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    if (team.lane() == 0) stats[t.where.index] = {0, 0, 0, 0, 0.0f, 1.0f, 1.0f};
  }
};

/// Writes the stats of every track.
struct show_stats_phase : sequence_phase {
  stat_counts const* stats;
  cache_stats* shown;

  std::size_t scratch_bytes(int) const { return scratch_size(cache_stats::bins * sizeof(std::uint32_t)); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t* const bins = team.template scratch<std::uint32_t>(cache_stats::bins);
    team.for_each(cache_stats::bins, [&](std::uint32_t b) { bins[b] = 0; });
    team.sync();
    std::uint32_t largest = 0;  // bits of positive floats order like the floats
    team.for_each(ledger.length[t.where.index], [&](std::uint32_t s) {
      float const degree = ledger.degree[ledger.at(t.where, s)];
      if (!(degree > 0.0f)) return;
      std::uint32_t const bits = float_bits(degree), exponent = bits >> 23;
      largest = max_of(largest, bits);
      std::uint32_t const bin = exponent < 127 ? 0 : min_of(exponent - 127, cache_stats::bins - 1);
      team.fetch_add(bins + bin, 1);
    });
    largest = team.reduce(largest, op_max{});
    team.sync();
    if (team.lane() != 0) return;
    stat_counts const& c = stats[t.where.index];
    cache_stats f;
    f.tokens = ledger.seen[t.where.sequence];
    f.held = ledger.held(t.where);
    f.merged = c.merged;
    f.dropped = c.dropped;
    f.merged_in_all = c.merged_in_all;
    f.dropped_in_all = c.dropped_in_all;
    for (std::uint32_t b = 0; b < cache_stats::bins; ++b) f.degrees[b] = bins[b];
    f.largest_degree = bits_float(largest);
    f.mass_retained = c.retained;
    f.mass_retained_in_all = c.retained_in_all;
    shown[t.where.index] = f;
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
