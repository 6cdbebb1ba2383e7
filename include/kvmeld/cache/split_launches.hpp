// The order of launches where tracks share their budgets.
#pragma once

#include <kvmeld/cache/part_traits.hpp>
#include <kvmeld/cache/split_budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/core/split.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/identify/admit/pool.hpp>
#include <kvmeld/identify/common_threshold.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/identify/pooled_edges.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

/// Before selection: the limits of tracks that compete by score.
template <class Launch, class Policy> void limit_by_score(Launch const& launch, Policy const& p) {
  wave_ref const& wave = launch.wave;
  launch(rank_phase<typename Policy::select_type>{{wave},
                                                  p.select,
                                                  traits_of_selector(p.select).makes_centers,
                                                  traits_of_identifier(p.identify).makes_sets});
  launch(stay_phase{{wave}});
  share_out(launch, wave, pool::scores);
  launch(limit_phase{{wave}});
}

/// A proposal; `rows` is what the identifier proposes from.
template <class Launch, class Identify, class Rows>
void propose(Launch const& launch, Identify const& identify, Rows const& rows, wave_ref const& wave) {
  if constexpr (shares_threshold<Identify>::value) {
    if (wave.competes_by(split_measure::theta)) {
      launch(sets_phase<Identify>{{wave}, identify});
      launch(stay_phase{{wave}});
      return propose_with_common_threshold(launch, identify, rows, wave);
    }
  }
  launch(propose_phase<Identify, Rows>{identify, rows, wave});
}

/// A round's admission.
template <class Launch, class Identify>
void admit(Launch const& launch, Identify const& identify, wave_ref const& wave) {
  bool const repeats = traits_of_identifier(identify).repeats;
  bool pooled = false;
  if constexpr (pools_edges<Identify>::value) {
    pooled = wave.competes_by(split_measure::edges);
    if (pooled) {
      launch(edges_phase<Identify>{{wave}, identify});
      launch(edge_quota_phase{{wave}});
      share_out(launch, wave, pool::candidates);
    }
  }
  launch(admit_phase<Identify>{identify, wave, repeats});
  if (pooled) launch(advance_split_phase{{wave}, repeats});
}

/// Before the fallback: its limits, where merging has left a split above its budget.
template <class Launch> void limit_shortfall(Launch const& launch, bool last) {
  wave_ref const& wave = launch.wave;
  if (wave.split == 1 || wave.measure == split_measure::score) return;
  launch(shortfall_phase{{wave}, last});
  share_out(launch, wave, pool::evictable);
  launch(shortfall_limit_phase{{wave}});
}

}  // namespace detail
}  // namespace KVMELD_ABI
}  // namespace kvmeld
