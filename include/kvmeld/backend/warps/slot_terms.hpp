// SPDX-License-Identifier: Apache-2.0
// How a warp turns products of queries and stored rows into logits.
#pragma once

#include <kvmeld/attention/cache_ref.hpp>
#include <kvmeld/backend/warps/tile_rows.hpp>
#include <kvmeld/backend/warps/warp_softmax.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/queries/queries.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

/// What belongs to the slots of a tile, in `bytes` bytes of scratch of the calling warp.
/// - `fetch(team, cache, where, first, last)` begins to read it, for slots `first` and on. Slot `last` stands
///   for those behind it
/// - `settle(team, cache, where, first, last)` writes it to scratch. It is there after sync_warp()
/// - `finish(place, cache, where, params, scale, logit)` turns a lane's products of a tile into logits.
///   `scale` is what products of its two rows are multiplied by
/// All of them are collective in a warp.
template <class Ref> class slot_terms;

/// Entries that attention counts by their degrees.
template <class Keys, class Values> class slot_terms<cache_ref<Keys, Values>> {
public:
  using ref_type = cache_ref<Keys, Values>;
  static constexpr std::uint32_t bytes = tile_tokens * std::uint32_t{sizeof(float)};

  KVMELD_HD explicit slot_terms(std::byte* memory) : log_degree_(reinterpret_cast<float*>(memory)) {}

  template <class Team>
  KVMELD_HD void fetch(Team const& team, ref_type const& cache, track where, slot_t first, slot_t last) {
    degree_ = cache.degree(where, min_of(first + team.lane() % tile_tokens, last));
  }
  template <class Team>
  KVMELD_HD void settle(Team const& team, ref_type const& cache, track, slot_t, slot_t) const {
    std::uint32_t const lane = team.lane() % warp_size;
    if (lane < tile_tokens) log_degree_[lane] = cache.ledger.log_degree(degree_);
  }
  KVMELD_HD void finish(warp_place place, ref_type const&, track, attention_params const& params,
                        float const (&scale)[2], float (&logit)[2][4]) const {
    unrolled<8>([&](auto number) {
      constexpr std::uint32_t n = decltype(number)::value / 4, i = decltype(number)::value % 4;
      logit[n][i] = params.logit(scale[i / 2] * logit[n][i], log_degree_[token_of(place, n, i % 2)]);
    });
  }

private:
  float* log_degree_;
  float degree_ = 0.0f;  ///< of token lane % 16
};

}  // namespace tuned_form
}  // namespace KVMELD_ABI
}  // namespace kvmeld
