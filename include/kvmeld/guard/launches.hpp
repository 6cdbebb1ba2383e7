// Where a guard's phases stand among those of a compression: one overload per guard, called by cache/compress.hpp.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/plan.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/guard/certified.hpp>
#include <kvmeld/guard/keep_certificates.hpp>
#include <kvmeld/guard/measure_set.hpp>
#include <kvmeld/guard/probe_phases.hpp>
#include <kvmeld/guard/probed.hpp>
#include <kvmeld/guard/thin_sets.hpp>
#include <kvmeld/identify/guarded.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/merge/sets.hpp>

#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace guard {

/// Whether a type is a guard: the calls below know these two.
template <class Guard> struct is_guard : std::is_same<Guard, certified> {};
template <class Q> struct is_guard<probed<Q>> : std::true_type {};

/// Before the first round, with roles and flags there.
template <class Launch, class Keys, class Values>
void open(Launch const& launch, certified const&, kv<Keys, Values> const& x) {
  launch(value_norm_phase<Values>{x.values, launch.wave});
}
template <class Launch, class Q, class Keys, class Values>
void open(Launch const& launch, probed<Q> const& guard, kv<Keys, Values> const& x) {
  launch(probe_outputs_phase<Q, Keys, Values>{{guard, x, launch.wave}});
}

/// Before a round admits, of identifiers that list edges: candidates that cannot pass are none.
template <class Launch, class Identify, class Keys, class Values>
void strike_out(Launch const& launch, certified const& guard, Identify const& identify,
                kv<Keys, Values> const& x) {
  launch(veto_phase<Identify, Keys, Values>{identify, guard, x, launch.wave});
}
template <class Launch, class Identify, class Q, class Keys, class Values>
void strike_out(Launch const& launch, probed<Q> const& guard, Identify const& identify,
                kv<Keys, Values> const& x) {
  launch(probe_veto_phase<Identify, Q, Keys, Values>{{guard, x, launch.wave}, identify});
}

/// When a round's sets are linked and weighed: those that do not pass are thinned, then counted and listed again.
template <class Launch, class Keys, class Values>
void thin_out(Launch const& launch, certified const& guard, kv<Keys, Values> const& x) {
  launch(thin_phase<Keys, Values>{guard, x, launch.wave});
}
template <class Launch, class Q, class Keys, class Values>
void thin_out(Launch const& launch, probed<Q> const& guard, kv<Keys, Values> const& x) {
  launch(probe_cost_phase<Q, Keys, Values>{{guard, x, launch.wave}});
  launch(probe_admit_phase<Q, Keys, Values>{{guard, x, launch.wave}});
}

/// Before the sets of `map` merge.
template <class Launch, class Keys, class Values>
void merging(Launch const& launch, certified const&, kv<Keys, Values> const& x, plan_ref const& map) {
  launch(certify_phase<Keys, Values>{x, launch.wave, map});
}
template <class Launch, class Q, class Keys, class Values>
void merging(Launch const&, probed<Q> const&, kv<Keys, Values> const&, plan_ref const&) {}

/// When all is done: what the track's word says.
template <class Launch, class Keys, class Values>
void close(Launch const& launch, certified const& guard, kv<Keys, Values> const&) {
  launch(certified_error_phase{guard, launch.wave});
}
template <class Launch, class Q, class Keys, class Values>
void close(Launch const& launch, probed<Q> const& guard, kv<Keys, Values> const& x) {
  launch(probe_error_phase<Q, Keys, Values>{{guard, x, launch.wave}});
}

/// strike_out, where the identifier lists edges.
template <class Launch, class Identify, class Keys, class Values>
void before_admission(Launch const& launch, Identify const& identify, kv<Keys, Values> const& x) {
  using identify_type = unguarded_t<Identify>;
  if constexpr (lists_edges<identify_type>::value) {
    strike_out(launch, identify.guard, static_cast<identify_type const&>(identify), x);
  }
}

/// thin_out, and what follows from it.
template <class Launch, class Identify, class Keys, class Values>
void after_weighing(Launch const& launch, Identify const& identify, kv<Keys, Values> const& x) {
  thin_out(launch, identify.guard, x);
  launch(recount_phase{launch.wave, identify.guard.rounds});
  launch(link_phase{launch.wave, launch.wave.step, true});
}

}  // namespace guard
}  // namespace KVMELD_ABI
}  // namespace kvmeld
