// A selector chosen at run time.
#pragma once

#include <kvmeld/core/alternatives.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/policy.hpp>
#include <kvmeld/select/above.hpp>
#include <kvmeld/select/select_view.hpp>
#include <kvmeld/select/selector.hpp>
#include <kvmeld/select/sinks_and_recents.hpp>
#include <kvmeld/select/tiers.hpp>
#include <kvmeld/select/top.hpp>

#include <cstdint>
#include <string>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace compose {

/// Holds one of the ready-made selectors, and is itself a selector. Converts from any of them.
class any_selector {
public:
  using choice = alternatives<select::top, select::sinks_and_recents, select::tiers, select::above>;

  any_selector() = default;
  /// Holds a copy of the part.
  template <class T, class = decltype(choice(std::declval<T const&>()))>
  any_selector(T const& part) : of_(part) {}

  /// Calls f with the selector that is held, which f may change.
  template <class F> void change(F f) { of_.change(f); }
  std::string name() const {
    return of_.visit([](auto const& s) { return full_name_of(s); });
  }
  select_facts facts_now() const {
    return of_.visit([](auto const& s) { return facts_of<select_facts>(s); });
  }
  KVMELD_HD pins pinned(std::uint32_t length, std::uint32_t limit, std::uint32_t frozen) const {
    return of_.visit([&](auto const& s) { return s.pinned(length, limit, frozen); });
  }
  template <class Team>
  KVMELD_HD void assign(Team const& team, select_view const& view, pins const& p) const {
    of_.visit([&](auto const& s) { s.assign(team, view, p); });
  }
  std::string problem() const {
    return of_.visit([](auto const& s) { return problem_of(s); });
  }

private:
  choice of_;
};

}  // namespace compose
}  // namespace KVMELD_ABI
}  // namespace kvmeld
