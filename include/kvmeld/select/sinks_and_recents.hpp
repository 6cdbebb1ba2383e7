// SPDX-License-Identifier: Apache-2.0
// Roles by position alone: the first and the last entries are pinned (StreamingLLM; Chelsea section 4).
#pragma once

#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/select/select_view.hpp>
#include <kvmeld/select/selector.hpp>

#include <cstdint>
#include <string>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace select {

/// Pins the `sinks` first and `recents` last entries; all others are mergeable. Needs no score.
struct sinks_and_recents {
  quantity sinks = quantity::entries(16);    ///< first entries
  quantity recents = quantity::entries(64);  ///< last entries

  static constexpr char const* name = "sinks_and_recents";
  static constexpr select_facts facts{&select_facts::pins_exactly, &select_facts::light};

  KVMELD_HD pins pinned(std::uint32_t length, std::uint32_t limit, std::uint32_t frozen) const {
    return resolve_pins(sinks, recents, quantity::entries(0), length, limit, frozen);
  }
  template <class Team>
  KVMELD_HD void assign(Team const& team, select_view const& view, pins const& p) const {
    pin_ends(team, view, p);
  }
  std::string problem() const {
    return first_problem({share_problem("select::sinks_and_recents.sinks", sinks),
                          share_problem("select::sinks_and_recents.recents", recents)});
  }
};

}  // namespace select
}  // namespace KVMELD_ABI
}  // namespace kvmeld
