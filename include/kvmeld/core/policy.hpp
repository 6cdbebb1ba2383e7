// SPDX-License-Identifier: Apache-2.0
// A policy is four choices: score, selector, identifier and merge function. Nothing else distinguishes
// methods.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>

#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A plain aggregate, passed by value. Thresholds and sizes are members of its parts.
template <class Score, class Select, class Identify, class Merge> struct policy {
  /// Type of the score.
  using score_type = Score;
  /// Type of the selector.
  using select_type = Select;
  /// Type of the identifier.
  using identify_type = Identify;
  /// Type of the merge function.
  using merge_type = Merge;

  Score score;        ///< how important is an entry?
  Select select;      ///< which role does it get?
  Identify identify;  ///< which entries become one?
  Merge merge;        ///< with which coefficients?
};
/// Deduces the types of the parts, so policy{score, select, identify, merge} needs no template arguments.
template <class Score, class Select, class Identify, class Merge>
policy(Score, Select, Identify, Merge) -> policy<Score, Select, Identify, Merge>;

/// What any part may have.
namespace part_uses {
template <class P> using name = std::enable_if_t<std::is_convertible_v<decltype(P::name), char const*>>;
template <class P> using run_time_name = decltype(contract::some<P>().name());
template <class P> using admission = decltype(contract::some<P>().admission);
template <class P> using problem = decltype(contract::some<P>().problem());
}  // namespace part_uses

/// What a part is called in reports and in saved ledgers: its `static constexpr char const* name`, or "user".
template <class Part> constexpr char const* name_of(Part const&) {
  if constexpr (contract::allows<part_uses::name, Part>) {
    return Part::name;
  } else {
    return "user";
  }
}

/// The name of a part, with the admission of an identifier: "identifier:admission". A part chosen at run time
/// gives its own name.
template <class Part> std::string full_name_of(Part const& part) {
  if constexpr (contract::allows<part_uses::run_time_name, Part>) {
    return part.name();
  } else if constexpr (contract::allows<part_uses::admission, Part>) {
    return std::string(name_of(part)) + ":" + name_of(part.admission);
  } else {
    return name_of(part);
  }
}

/// "score x select x identify:admission x merge" of a policy's parts.
template <class Score, class Select, class Identify, class Merge>
std::string name_of_policy(policy<Score, Select, Identify, Merge> const& p) {
  return full_name_of(p.score) + " x " + full_name_of(p.select) + " x " + full_name_of(p.identify) + " x " +
         full_name_of(p.merge);
}

/// Why a part of a policy cannot be used as configured; empty if it can. A part without `problem()` has none.
template <class Part> std::string problem_of(Part const& part) {
  return contract::ask<part_uses::problem>(
      part, [](auto const& p) { return p.problem(); }, std::string());
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
