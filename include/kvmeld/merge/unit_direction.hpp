// SPDX-License-Identifier: Apache-2.0
// Directions of keys merge by attention, their norms stay apart (EMS section 4.2, Eq. 7).
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/dot.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/merge/merge_function.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace merge {

/// khat* = sum w_i khat_i / sum w_i over unit keys khat_i = k_i / ||k_i||, and v* = sum w_i v_i / sum w_i.
/// w_i is the weight that an entry carries from earlier merges, else its attention (carried_weight). Weights
/// are equal if their sum is 0 or not finite. khat* is not normalised again, as printed.
/// - shared: the row becomes khat*. Every token keeps its norm, position and scores as a member. Attention
///   expands the members (shared_ref): q . khat* ||k_i|| per token
/// - collapsed: the result is one ordinary entry, khat* times the weighted mean of the norms. Degrees add.
///   Any kernel can read it
template <bool Shared> struct unit_direction {
  static constexpr char const* name = Shared ? "shared" : "collapsed";
  static constexpr merge_facts facts = changed_facts(
      merge_facts{&merge_facts::needs_score, &merge_facts::cooperative}, &merge_facts::shares, Shared);
  constexpr bool carries_degree() const { return !Shared; }

  /// Rows that a tile reads at a time. One per lane would leave room for one block per multiprocessor.
  KVMELD_HD static constexpr std::uint32_t rows_at_once(std::uint32_t lanes) { return min_of(lanes, 32u); }

  /// Scratch of a tile.
  struct buffers {
    float* rows;   ///< [rows_at_once]
    float* total;  ///< [0] sum of weights, [1] weighted mean of norms
  };
  std::size_t scratch_bytes(shape const& s, int lanes) const {
    std::size_t const rows = rows_at_once(static_cast<std::uint32_t>(lanes));
    return scratch_size(rows * s.key_dim * sizeof(float)) + scratch_size(2 * sizeof(float));
  }
  template <class Team> KVMELD_HD buffers prepare(Team const& team, std::uint32_t d) const {
    float* const rows = team.template scratch<float>(std::size_t{rows_at_once(team.lanes())} * d);
    return {rows, team.template scratch<float>(2)};
  }

  template <class Team, class Keys>
  KVMELD_HD void weigh(Team const& team, wave_ref const& wave, Keys const& keys, tile const& t, slot_t pivot,
                       member_list const& m, buffers const& b) const {
    ledger_ref const& l = wave.ledger;
    std::uint32_t const d = keys.channels();
    auto const norm = [&](std::uint32_t i) -> float& {  // the norm, until the weights are known
      return wave.step.key_weight[wave.step.at(t.item, m.slots[i])];
    };
    auto const weight = [&](std::uint32_t i) -> float& {
      return wave.step.value_weight[wave.step.at(t.item, m.slots[i])];
    };
    std::uint32_t const most = rows_at_once(team.lanes());
    for (std::uint32_t i = 0; i < m.count; i += most) {
      std::uint32_t const rows = min_of(m.count - i, most);
      for (std::uint32_t r = 0; r < rows; ++r) {
        keys.load_tile(team, t.where, m.slots[i + r], 1, 0, d, b.rows + std::size_t{r} * d, d);
      }
      team.sync();
      team.for_each(rows, [&](std::uint32_t r) {
        float const* const row = b.rows + std::size_t{r} * d;
        slot_t const s = m.slots[i + r];
        norm(i + r) = l.is_direction(t.where, s) ? l.norm_factor(t.where, s) : row_norm(row, d);
        weight(i + r) = detail::carried_weight(l.channels, l.channel_data, l.at(t.where, s));
      });
      team.sync();
    }
    if (team.lane() == 0) {  // in member order
      b.total[0] = 0.0f;
      for (std::uint32_t i = 0; i < m.count; ++i) b.total[0] += weight(i);
      if (!(b.total[0] > 0.0f && is_finite(b.total[0]))) {
        for (std::uint32_t i = 0; i < m.count; ++i) weight(i) = 1.0f;
        b.total[0] = static_cast<float>(m.count);
      }
      b.total[1] = 0.0f;
      for (std::uint32_t i = 0; i < m.count; ++i) b.total[1] += weight(i) / b.total[0] * norm(i);
    }
    team.sync();
    float const length = Shared ? 1.0f : b.total[1];
    team.for_each(m.count, [&](std::uint32_t i) {
      slot_t const s = m.slots[i];
      float const w = weight(i) / b.total[0];
      float const own = l.is_direction(t.where, s) ? 1.0f : norm(i);
      // A zero row has no direction. So has a row that is too short for length / own to be a float.
      float const stretch = own > 0.0f ? length / own : 0.0f;
      norm(i) = is_finite(stretch) ? w * stretch : 0.0f;
      weight(i) = w;
      if (Shared && s != pivot) wave.step.fates[wave.step.at(t.item, s)] = fate::share;
    });
    team.sync();
  }
};

/// EMS as printed: members keep their norms.
using shared = unit_direction<true>;
/// Our variant that any kernel can read: one ordinary entry.
using collapsed = unit_direction<false>;

}  // namespace merge
}  // namespace KVMELD_ABI
}  // namespace kvmeld
