// A policy is four choices: score x selector x identifier x merge function. Nothing else distinguishes methods.
#pragma once

#include <kvmeld/core/config.hpp>

#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Plain aggregate, passed by value; thresholds and sizes are members of its parts.
template <class Score, class Select, class Identify, class Merge> struct policy {
  using score_type = Score;
  using select_type = Select;
  using identify_type = Identify;
  using merge_type = Merge;

  Score score;
  Select select;
  Identify identify;
  Merge merge;
};
template <class Score, class Select, class Identify, class Merge>
policy(Score, Select, Identify, Merge) -> policy<Score, Select, Identify, Merge>;

template <class Part, class = void> struct has_problem : std::false_type {};
template <class Part>
struct has_problem<Part, std::void_t<decltype(std::declval<Part const&>().problem())>> : std::true_type {};

/// Why a part of a policy cannot be used as configured; empty if it can. A part without `problem()` has none.
template <class Part> std::string problem_of(Part const& part) {
  if constexpr (has_problem<Part>::value) {
    return part.problem();
  } else {
    return {};
  }
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
