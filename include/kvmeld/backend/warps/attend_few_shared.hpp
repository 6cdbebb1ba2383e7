// SPDX-License-Identifier: Apache-2.0
// attend_few over shared entries: how a warp turns products of queries and directions into logits, by the
// members of the slots.
#pragma once

#include <kvmeld/backend/warps/attend_few.hpp>
#include <kvmeld/backend/warps/slot_terms.hpp>
#include <kvmeld/backend/warps/warp_softmax.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/queries/queries.hpp>
#include <kvmeld/shared/attend_shared.hpp>
#include <kvmeld/shared/shared_ref.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

/// Shared entries: every token of a slot has a logit of its own, its norm times the product. The logit of the
/// slot is the logarithm of the sum of their exponentials (EMS section 4.2).
template <class Keys, class Values> class slot_terms<shared_ref<Keys, Values>> {
public:
  using ref_type = shared_ref<Keys, Values>;
  static constexpr std::uint32_t bytes =
      std::uint32_t{scratch_size((2 * tile_tokens + 1) * sizeof(std::uint32_t))};

  KVMELD_HD explicit slot_terms(std::byte* memory)
      : own_norm_(reinterpret_cast<float*>(memory)),
        first_member_(reinterpret_cast<std::uint32_t*>(own_norm_ + tile_tokens)) {}

  template <class Team> KVMELD_HD void fetch(Team const&, ref_type const&, track, slot_t, slot_t) const {}

  template <class Team>
  KVMELD_HD void settle(Team const& team, ref_type const& cache, track where, slot_t first,
                        slot_t last) const {
    std::uint32_t const lane = team.lane() % warp_size;
    if (lane < tile_tokens) own_norm_[lane] = cache.norm_factor(where, min_of(first + lane, last));
    std::uint32_t const members = cache.ledger.members.count[where.index];
    std::uint32_t const begin =
        first_not(team, members, [&](std::uint32_t m) { return cache.member_owner(where, m) < first; });
    auto const place_of = [&](std::uint32_t m) {  // of its owner in the tile
      return m < members ? min_of(cache.member_owner(where, m) - first, tile_tokens) : tile_tokens;
    };
    // Members ascend by owner: a member is the first of its owner, and of owners that have none before it.
    bool more = true;
    for (std::uint32_t from = begin; more; from += warp_size) {
      std::uint32_t const m = from + lane, owner = place_of(m);
      std::uint32_t const before = m == begin ? 0 : place_of(m - 1) + 1;
      for (std::uint32_t i = before; i <= owner; ++i) first_member_[i] = m;
      more = team.ballot(owner == tile_tokens) == 0;
    }
  }

  KVMELD_HD void finish(warp_place place, ref_type const& cache, track where, attention_params const& params,
                        float const (&scale)[2], float (&logit)[2][4]) const {
    unrolled<4>([&](auto number) {
      constexpr std::uint32_t n = decltype(number)::value / 2, i = decltype(number)::value % 2;
      std::uint32_t const token = token_of(place, n, i);
      std::uint32_t const begin = first_member_[token], end = first_member_[token + 1];
      float const own = own_norm_[token];
      float most = own, least = own;
      for (std::uint32_t m = begin; m < end; ++m) {
        float const norm = cache.member_norm(where, m);
        most = max_of(most, norm);
        least = min_of(least, norm);
      }
      float product[2] = {}, high[2] = {}, sum[2] = {};
      auto const exponential_of = [&](std::uint32_t half, float norm) {
        return exponential(params.logit(product[half] * norm, 0.0f) - high[half]);
      };
      unrolled<2>([&](auto which) {
        constexpr std::uint32_t half = decltype(which)::value;
        product[half] = scale[half] * logit[n][2 * half + i];
        high[half] = params.logit(product[half] * (product[half] > 0.0f ? most : least), 0.0f);
        sum[half] = exponential_of(half, own);
      });
      for (std::uint32_t m = begin; m < end; ++m) {
        float const norm = cache.member_norm(where, m);
        unrolled<2>([&](auto which) { sum[which.value] += exponential_of(which.value, norm); });
      }
      unrolled<2>([&](auto which) {
        constexpr std::uint32_t half = decltype(which)::value;
        logit[n][2 * half + i] = begin == end ? high[half] : high[half] + std::log(sum[half]);
      });
    });
  }

private:
  float* own_norm_;              ///< by slot of the tile
  std::uint32_t* first_member_;  ///< likewise, and behind them the end of the last slot's members
};

}  // namespace tuned_form

template <class Keys, class Values, class Q, class Out>
struct tuned<warps, attention::attend_shared_phase<Keys, Values, Q, Out>,
             std::enable_if_t<tuned_form::multiplies<Keys, Values, std::remove_const_t<Q>>>>
    : tuned_form::attends_few<attention::attend_shared_phase<Keys, Values, Q, Out>> {};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
