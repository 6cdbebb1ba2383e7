// SPDX-License-Identifier: Apache-2.0
// Applies a plan to the ledger: degrees and score channels of pivots and spread targets.
#pragma once

#include <kvmeld/apply/span_segment.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/channel.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Merges ledger entries by `map`, whose sets `link_phase` has listed. The pivot keeps its position. If the
/// other entries stay as members, the pivot keeps its scores too; only carried weights add up.
struct merge_ledger_phase : slot_phase {
  plan_ref map;
  static constexpr bool light = false;  ///< takes more registers than a lane of the largest block has
  std::size_t scratch_bytes(int) const { return team_sum_scratch(); }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    std::uint32_t const n = wave.state[t.item].length;
    std::uint32_t const begin = t.index * block;
    if (begin >= n || wave.state[t.item].unchanged != 0) return;
    for_each_set(team, wave, t.item, begin, min_of(block, n - begin),
                 [&](slot_t p, member_list const& m) { merge_set(t, p, m); });
    if (t.index == 0) receive_spreads(team, t, n);
  }

private:
  KVMELD_HD void merge_set(tile const& t, slot_t p, member_list const& m) const {
    ledger_ref const& l = wave.ledger;
    float degree = 0.0f;
    for (std::uint32_t i = 0; i < m.count; ++i) {
      degree += map.degree_weight[map.at(t.item, m.slots[i])] * l.degree[l.at(t.where, m.slots[i])];
    }
    l.degree[l.at(t.where, p)] = degree;
    look_again(t, p, entry_flag::key_checked | entry_flag::value_checked);
    slot_t const other = m.slots[0] == p ? m.slots[1] : m.slots[0];
    bool const shared = map.fates[map.at(t.item, other)] == fate::share;
    merge_weights(t, p, m);
    if (shared) return;  // its members keep their own scores
    unrolled<max_channels>([&](auto channel) {
      constexpr std::uint32_t c = decltype(channel)::value;
      if (c >= l.channels.count) return;
      entry_array<float> const x{l.channel_data[c], l.from(t.where)};
      float total = l.channels.at[c].rule == channel_rule::max ? x[m.slots[0]] : 0.0f;
      for (std::uint32_t i = 0; i < m.count; ++i) {
        float const y = x[m.slots[i]];
        switch (l.channels.at[c].rule) {
        case channel_rule::sum: total += y; break;
        case channel_rule::max: total = order_key(y) > order_key(total) ? y : total; break;
        case channel_rule::pivot: total = x[p]; break;
        case channel_rule::weighted: total += map.value_weight[map.at(t.item, m.slots[i])] * y; break;
        case channel_rule::weight: total = x[p]; break;  // written by merge_weights
        }
      }
      x[p] = total;
    });
  }

  /// Adds up carried weights. Runs before the other channels merge, because carried_weight may read those.
  KVMELD_HD void merge_weights(tile const& t, slot_t p, member_list const& m) const {
    ledger_ref const& l = wave.ledger;
    float* const carried = channel_of(l.channels, l.channel_data, channel_tag::merge_weight);
    if (carried == nullptr) return;
    float total = 0.0f;
    for (std::uint32_t i = 0; i < m.count; ++i) {
      total += carried_weight(l.channels, l.channel_data, l.at(t.where, m.slots[i]));
    }
    carried[l.at(t.where, p)] = total;
  }

  /// Marks a written row as not inspected: weights above 1 may have overflowed its storage.
  KVMELD_HD void look_again(tile const& t, slot_t p, unsigned checks) const {
    std::uint8_t& flags = wave.ledger.flags[wave.ledger.at(t.where, p)];
    flags = static_cast<std::uint8_t>(flags & ~checks);
  }

  /// Adds degrees of spread sources to each target. Their scores are not added (CaM transfers no attention).
  template <class Team>
  KVMELD_HD void receive_spreads(Team const& team, tile const& t, std::uint32_t n) const {
    member_list const spreads = spreads_of(wave, t.item);
    if (spreads.count == 0) return;
    ledger_ref const& l = wave.ledger;
    float* const partial = team.template scratch<float>(team_partials);
    for_each_reached(team, map, t.item, spreads, n, [&](span_segment const& flow) {
      auto const degree_of = [&](std::uint32_t i) {
        slot_t const s = spreads.slots[i];
        if (!map.reaches(t.item, s, flow.from)) return 0.0f;
        return map.degree_weight[map.at(t.item, s)] * l.degree[l.at(t.where, s)];
      };
      float const inflow = team_sum(team, spreads.count, degree_of, partial);
      team.for_each(flow.until - flow.from, [&](std::uint32_t i) {
        slot_t const p = flow.from + i;
        if (!may_receive(wave, map, t.item, p)) return;
        float& degree = l.degree[l.at(t.where, p)];
        degree = map.degree_weight[map.at(t.item, p)] * degree + inflow;
        look_again(t, p, entry_flag::value_checked);
      });
    });
  }
};

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
