// SPDX-License-Identifier: Apache-2.0
// What parts chosen at run time have in common: they hold one of several alternatives, and ask it.
#pragma once

#include <kvmeld/core/alternatives.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/core/policy.hpp>

#include <string>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace compose {

/// Holds one of `Parts`, and converts from any of them. `Facts` are those of the kind of part.
template <class Facts, class... Parts> class any_part {
public:
  /// The parts that it may hold.
  using choice = alternatives<Parts...>;

  any_part() = default;
  /// Holds a copy of the part.
  template <class T, class = decltype(choice(std::declval<T const&>()))>
  any_part(T const& part) : of_(part) {}

  /// Calls f with the part that is held, which f may change.
  template <class F> void change(F f) { of_.change(f); }
  /// The name of the part that is held, as full_name_of gives it.
  std::string name() const {
    return of_.visit([](auto const& part) { return full_name_of(part); });
  }
  /// What the part that is held states.
  Facts facts_now() const {
    return of_.visit([](auto const& part) { return facts_of<Facts>(part); });
  }
  /// Why the part that is held cannot be used; empty if it can.
  std::string problem() const {
    return of_.visit([](auto const& part) { return problem_of(part); });
  }

protected:
  choice of_;
};

}  // namespace compose
}  // namespace KVMELD_ABI
}  // namespace kvmeld
