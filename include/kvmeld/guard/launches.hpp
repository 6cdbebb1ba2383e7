// Launches the phases of a guard among those of a compression; rounds/compress.hpp calls these functions.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/guard/probe_phases.hpp>
#include <kvmeld/guard/probed.hpp>
#include <kvmeld/identify/guarded.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/merge/sets.hpp>

#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace guard {

/// Whether a type is a guard.
template <class Guard> struct is_guard : std::false_type {};
template <class Q> struct is_guard<probed<Q>> : std::true_type {};

/// Computes the outputs of probes. Runs before the first round, when roles and flags are known.
template <class Launch, class Q, class Keys, class Values>
void open(Launch const& launch, probed<Q> const& guard, kv<Keys, Values> const& x) {
  launch(probe_outputs_phase<Q, Keys, Values>{{guard, x, launch.wave}});
}

template <class Launch, class Identify, class Q, class Keys, class Values>
void strike_out(Launch const& launch, probed<Q> const& guard, Identify const& identify,
                kv<Keys, Values> const& x) {
  launch(probe_veto_phase<Identify, Q, Keys, Values>{{guard, x, launch.wave}, identify});
}

/// Runs before a round admits. If the identifier lists edges, candidates that cannot pass are struck out.
template <class Launch, class Identify, class Keys, class Values>
void before_admission(Launch const& launch, Identify const& identify, kv<Keys, Values> const& x) {
  using identify_type = detail::unguarded_t<Identify>;
  if constexpr (detail::lists_edges<identify_type>::value) {
    strike_out(launch, identify.guard, static_cast<identify_type const&>(identify), x);
  }
}

template <class Launch, class Q, class Keys, class Values>
void thin_out(Launch const& launch, probed<Q> const& guard, kv<Keys, Values> const& x) {
  launch(probe_cost_phase<Q, Keys, Values>{{guard, x, launch.wave}});
  launch(probe_admit_phase<Q, Keys, Values>{{guard, x, launch.wave}});
}

/// Runs when a round's sets are linked and weighed. Sets that do not pass are thinned; then sets are counted
/// and listed again.
template <class Launch, class Identify, class Keys, class Values>
void after_weighing(Launch const& launch, Identify const& identify, kv<Keys, Values> const& x) {
  thin_out(launch, identify.guard, x);
  launch(recount_phase{launch.wave, identify.guard.rounds});
  launch(detail::link_phase{{launch.wave}, launch.wave.step, true});
}

/// Runs when all is done: writes the largest change of a probe to track_word::guard_report.
template <class Launch, class Q, class Keys, class Values>
void close(Launch const& launch, probed<Q> const& guard, kv<Keys, Values> const& x) {
  launch(probe_error_phase<Q, Keys, Values>{{guard, x, launch.wave}});
}

}  // namespace guard
}  // namespace KVMELD_ABI
}  // namespace kvmeld
