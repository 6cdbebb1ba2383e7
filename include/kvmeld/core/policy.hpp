// A policy is four choices: score, selector, identifier and merge function. Nothing else distinguishes
// methods.
#pragma once

#include <kvmeld/core/config.hpp>

#include <string>
#include <type_traits>
#include <utility>

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

namespace detail {

/// Whether a part has problem(), which says what is wrong with it.
template <class Part, class = void> struct has_problem : std::false_type {};

template <class Part>
struct has_problem<Part, std::void_t<decltype(std::declval<Part const&>().problem())>> : std::true_type {};

/// Whether a part has a name at compile time.
template <class Part, class = void> struct has_name : std::false_type {};

template <class Part>
struct has_name<Part, std::enable_if_t<std::is_convertible_v<decltype(Part::name), char const*>>>
    : std::true_type {};

/// Whether a part has a name at run time.
template <class Part, class = void> struct has_run_time_name : std::false_type {};

template <class Part>
struct has_run_time_name<Part, std::void_t<decltype(std::declval<Part const&>().name())>> : std::true_type {};

}  // namespace detail

/// What a part is called in reports and in saved ledgers: its `static constexpr char const* name`, or "user".
template <class Part> constexpr char const* name_of(Part const&) {
  if constexpr (detail::has_name<Part>::value) {
    return Part::name;
  } else {
    return "user";
  }
}

namespace detail {

/// Whether an identifier has an admission.
template <class Part, class = void> struct has_admission : std::false_type {};

template <class Part>
struct has_admission<Part, std::void_t<decltype(std::declval<Part const&>().admission)>> : std::true_type {};

}  // namespace detail

/// The name of a part, with the admission of an identifier: "identifier:admission". A part chosen at run time
/// gives its own name.
template <class Part> std::string full_name_of(Part const& part) {
  if constexpr (detail::has_run_time_name<Part>::value) {
    return part.name();
  } else if constexpr (detail::has_admission<Part>::value) {
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
  if constexpr (detail::has_problem<Part>::value) {
    return part.problem();
  } else {
    return {};
  }
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
