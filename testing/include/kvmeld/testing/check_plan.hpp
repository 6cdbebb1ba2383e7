// SPDX-License-Identifier: Apache-2.0
// The plan validator: finds what `apply` would refuse in a cache's current plan.
#pragma once

#include <kvmeld/apply/validate_plan.hpp>
#include <kvmeld/cache/check_calls.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/ledger.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/core/wave.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace testing {

/// Why the last plan, edited or not, cannot be applied; empty if it can. Names track and slot of the first
/// fault. new_slot and new_length are not checked, since `apply` computes them again. Host only. Takes a few
/// bytes per entry of a track.
template <class Cache> std::string plan_problem(Cache const& cache) {
  ledger_ref const& l = cache.ledger();
  work_list const work = cache.planned_work();
  auto const ref = cache.ref();
  kv const tensors{ref.keys, ref.values};
  if (work.sequence_count == 0) return check_calls::no_plan();
  for (std::uint32_t item = 0; item < work.tracks(l.extent); ++item) {
    track const t = work.at(l.extent, item);
    std::uint32_t const shielded = check_calls::shielded_length(l, t, tensors);
    std::string text = kvmeld::plan_problem(l, t, cache.current_plan(), item, shielded);
    if (!text.empty()) return text;
  }
  return {};
}

}  // namespace testing
}  // namespace KVMELD_ABI
}  // namespace kvmeld
