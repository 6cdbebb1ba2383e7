// SPDX-License-Identifier: Apache-2.0
// The weights of KVMerger with a warp per set. Groups of lanes compute the members' distances, without a
// barrier.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/exec/row_piece.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/layout/row_pieces.hpp>
#include <kvmeld/merge/gaussian.hpp>
#include <kvmeld/merge/merge_function.hpp>
#include <kvmeld/merge/sets.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

/// weigh_phase of merge::gaussian. Weights equal those of the generic form up to the rounding of the sum in a
/// distance.
template <class Keys> struct weigh_gaussian {
  using untuned_phase = detail::weigh_phase<merge::gaussian, Keys>;
  untuned_phase untuned;

  KVMELD_HD static bool takes(untuned_phase const&) { return true; }
  KVMELD_HD std::uint32_t tiles(shape const& s) const { return untuned.tiles(s); }
  std::size_t scratch_bytes(int) const { return 0; }

  template <class Team> KVMELD_HD void operator()(Team const& team, tile const& t) const {
    wave_ref const& wave = untuned.wave;
    track_state const s = wave.state[t.item];
    std::uint32_t const begin = t.index * untuned_phase::block;
    if (begin >= s.length || s.merged == 0) return;
    std::uint32_t const end = min_of(s.length, begin + untuned_phase::block);
    row_pieces<Keys> const rows(untuned.keys, t.where);
    std::uint32_t const step = warps_of(team) * warp_size;
    for (std::uint32_t first = begin + warp_of(team) * warp_size; first < end; first += step) {
      std::uint32_t const slot = first + team.lane() % warp_size;
      bool const merges = slot < end && members_of(wave, t.item, slot).count > 1;
      for (std::uint32_t sets = team.ballot(merges); sets != 0; sets &= sets - 1) {
        std::uint32_t const pivot = first + trailing_zeros(sets);
        weigh(team, rows, t, pivot, members_of(wave, t.item, pivot));
      }
    }
  }

private:
  /// Weighs one set. Lane r holds the value of member r of 32. Longer sets keep these values in the weights
  /// of the step between the loops.
  template <class Team>
  KVMELD_HD void weigh(Team const& team, row_pieces<Keys> const& rows, tile const& t, slot_t pivot,
                       member_list const& m) const {
    merge::gaussian const& merge = untuned.merge;
    plan_ref const& step = untuned.wave.step;
    std::uint32_t const lane = team.lane() % warp_size;
    auto const entry = [&](std::uint32_t first) { return step.at(t.item, m.slots[first + lane]); };
    float held = 0.0f, sum = 0.0f;
    for (std::uint32_t first = 0; first < m.count; first += warp_size) {
      std::uint32_t const members = min_of(warp_size, m.count - first);
      held = distances(team, rows, pivot, m.slots + first, members);
      bool const rooted = merge.sigma == merge::bandwidth::mean_l2;
      float const distance = rooted ? std::sqrt(held) : held;
      for (std::uint32_t i = 0; i < members; ++i) sum += from_lane(team, distance, i);  // in member order
      if (m.count > warp_size && lane < members) step.key_weight[entry(first)] = held;
    }
    float const width = merge.bandwidth_of(sum, m.count);
    float const spread = 2.0f * width * width;  // not positive or not finite: equal weights
    bool const usable = spread > 0.0f && is_finite(spread);
    float total = 0.0f;
    for (std::uint32_t first = 0; first < m.count; first += warp_size) {
      std::uint32_t const members = min_of(warp_size, m.count - first);
      if (m.count > warp_size && lane < members) held = step.key_weight[entry(first)];
      held = usable ? std::exp(-held / spread) : 1.0f;
      for (std::uint32_t i = 0; i < members; ++i) total += from_lane(team, held, i);
      if (m.count > warp_size && lane < members) step.key_weight[entry(first)] = held;
    }
    float const size = merge.scale_values_by_set_size ? static_cast<float>(m.count) : 1.0f;
    for (std::uint32_t i = lane; i < m.count; i += warp_size) {
      std::size_t const e = step.at(t.item, m.slots[i]);
      float const w = (m.count > warp_size ? step.key_weight[e] : held) / total;
      step.key_weight[e] = w;
      step.value_weight[e] = w * size;
      if (!merge.degrees && m.slots[i] != pivot) step.degree_weight[e] = 0.0f;
    }
  }

  /// The squared distance of member `lane` from the pivot. The pieces of a member are shared out over as many
  /// lanes as it has pieces, rounded up to a power of two and 32 at most. Collective in a warp.
  template <class Team>
  KVMELD_HD static float distances(Team const& team, row_pieces<Keys> const& rows, slot_t pivot,
                                   slot_t const* slots, std::uint32_t members) {
    using piece = typename row_pieces<Keys>::piece;
    using traits = element_traits<typename Keys::element_type>;
    std::uint32_t const lane = team.lane() % warp_size;
    std::uint32_t group = 1;
    while (group < warp_size && group < rows.count()) group *= 2;
    float mine = 0.0f;
    for (std::uint32_t first = 0; first < members; first += warp_size / group) {
      std::uint32_t const member = first + lane / group;
      float sums[piece::size] = {};
      for (std::uint32_t p = lane % group; member < members && p < rows.count(); p += group) {
        piece const a = rows.read(pivot, p), b = rows.read(slots[member], p);
        unrolled<piece::size>([&](auto channel) {
          constexpr std::uint32_t c = decltype(channel)::value;
          float const x = traits::to_float(a.x[c]) - traits::to_float(b.x[c]);
          sums[c] += x * x;
        });
      }
      float square = 0.0f;
      for (float s : sums) square += s;
      for (std::uint32_t step = 1; step < group; step *= 2) {
        square += bits_float(team.shuffle(float_bits(square), lane ^ step));
      }
      // Lane r takes the sum that the group of member r computed.
      bool const found = lane >= first && lane < first + warp_size / group;
      float const theirs = from_lane(team, square, found ? (lane - first) * group : 0);
      if (found) mine = theirs;
    }
    return mine;
  }

  template <class Team> KVMELD_HD static float from_lane(Team const& team, float x, std::uint32_t lane) {
    return bits_float(team.shuffle(float_bits(x), lane));
  }
};

}  // namespace tuned_form

template <class Keys>
struct tuned<warps, detail::weigh_phase<merge::gaussian, Keys>, std::enable_if_t<has_row_pieces<Keys>::value>>
    : detail::tuned_by_form<detail::weigh_phase<merge::gaussian, Keys>, tuned_form::weigh_gaussian<Keys>> {};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
