// SPDX-License-Identifier: Apache-2.0
// Roles by position and score: pins the ends, and the best of the rest (H2O, SnapKV, KVMerger).
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/exec/select_k.hpp>
#include <kvmeld/select/select_view.hpp>
#include <kvmeld/select/selector.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace select {

/// Pins the `sinks` first and `recents` last entries and, of the rest, the `heavy` entries with the highest
/// score (ties to the lower slot). All other entries are mergeable.
struct top {
  quantity sinks = quantity::entries(0);        ///< first entries
  quantity recents = quantity::of_budget(0.5);  ///< last entries
  quantity heavy = quantity::rest_of_budget();  ///< best entries of the others, by score

  static constexpr char const* name = "top";
  static constexpr select_facts facts{&select_facts::needs_score, &select_facts::pins_exactly,
                                      &select_facts::light};

  KVMELD_HD pins pinned(std::uint32_t length, std::uint32_t limit, std::uint32_t frozen) const {
    return resolve_pins(sinks, recents, heavy, length, limit, frozen);
  }
  template <class Team>
  KVMELD_HD void assign(Team const& team, select_view const& view, pins const& p) const {
    mark_ends(team, view, p);
    std::uint32_t const middle = view.length() - p.sinks - p.recents;
    mark_best(team, middle, p.heavy, view.scores() + p.sinks, role::pinned, role::mergeable,
              view.roles() + p.sinks);
  }
  std::string problem() const {
    return first_problem({share_problem("select::top.sinks", sinks),
                          share_problem("select::top.recents", recents),
                          share_problem("select::top.heavy", heavy)});
  }
};

}  // namespace select
}  // namespace KVMELD_ABI
}  // namespace kvmeld
