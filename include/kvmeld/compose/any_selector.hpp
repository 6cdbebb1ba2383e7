// SPDX-License-Identifier: Apache-2.0
// A selector chosen at run time.
#pragma once

#include <kvmeld/compose/any_part.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/select/above.hpp>
#include <kvmeld/select/select_view.hpp>
#include <kvmeld/select/selector.hpp>
#include <kvmeld/select/sinks_and_recents.hpp>
#include <kvmeld/select/tiers.hpp>
#include <kvmeld/select/top.hpp>

#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace compose {

/// Holds one of the listed selectors, and is itself a selector.
template <class... Selectors> class any_selector_of : public any_part<select_facts, Selectors...> {
public:
  using any_part<select_facts, Selectors...>::any_part;

  KVMELD_HD pins pinned(std::uint32_t length, std::uint32_t limit, std::uint32_t frozen) const {
    return this->of_.visit([&](auto const& s) { return s.pinned(length, limit, frozen); });
  }
  template <class Team>
  KVMELD_HD void assign(Team const& team, select_view const& view, pins const& p) const {
    this->of_.visit([&](auto const& s) { kvmeld::detail::assign_roles(s, team, view, p); });
  }
};

/// Holds one of the ready-made selectors.
class any_selector
    : public any_selector_of<select::top, select::sinks_and_recents, select::tiers, select::above> {
public:
  using any_selector_of::any_selector_of;
};

}  // namespace compose
}  // namespace KVMELD_ABI
}  // namespace kvmeld
