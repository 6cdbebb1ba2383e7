// SPDX-License-Identifier: Apache-2.0
// Identifiers that make no sets: nothing merges. `none` keeps entries apart, `evict_rest` drops them.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace identify {

/// Proposes and admits nothing. A struct that derives from `none` and calls round.live() has to state facts
/// of its own with `reads_live`.
struct none {
  static constexpr char const* name = "none";
  static constexpr identify_facts facts =
      changed_facts(identify_facts{&identify_facts::light}, &identify_facts::makes_sets, false,
                    &identify_facts::reads_live, false);

  template <class Round> KVMELD_HD void admit(Round&) const {}
};

/// Drops every mergeable entry that has no other fate yet. The selector decides how many these are, so the
/// budget is met exactly if the selector's quantities fill it. Rows with NaN or infinity may drop like any
/// other row, because nothing is computed from them. A struct that derives from `evict_rest` and calls
/// round.live() has to state facts of its own with `reads_live`.
struct evict_rest {
  static constexpr char const* name = "evict_rest";
  static constexpr identify_facts facts = changed_facts(
      identify_facts{&identify_facts::meets_budget, &identify_facts::drops_unmerged, &identify_facts::light},
      &identify_facts::makes_sets, false, &identify_facts::reads_live, false);

  template <class Round> KVMELD_HD void admit(Round& round) const { round.drop_rest(); }
};

}  // namespace identify

}  // namespace KVMELD_ABI
}  // namespace kvmeld
