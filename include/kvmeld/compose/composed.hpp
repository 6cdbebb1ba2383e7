// Policies put together at run time, from parts found by name: for tools, experiments and configuration
// files.
#pragma once

#include <kvmeld/compose/any_identifier.hpp>
#include <kvmeld/compose/any_merge.hpp>
#include <kvmeld/compose/any_score.hpp>
#include <kvmeld/compose/any_selector.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/policy.hpp>

#include <string>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace compose {

/// A policy of parts chosen at run time: one type for every composition, so that all of them compile once.
/// Plans are the same bits as those of the policy fixed at compile time. A composition that means nothing is
/// refused when a cache is constructed from it, with the text that composition_problem gives.
using composed = policy<any_score, any_selector, any_identifier, any_merge>;

/// A policy fixed at compile time, of ready-made parts, as a composed one.
template <class Score, class Select, class Identify, class Merge>
composed composed_of(policy<Score, Select, Identify, Merge> const& p) {
  return {p.score, p.select, p.identify, p.merge};
}

/// Every alternative of a part, with its defaults, in the order of their declaration.
template <class Part> std::vector<Part> all_of() {
  std::vector<Part> out;
  Part::choice::each([&](auto const& part) { out.emplace_back(part); });
  return out;
}

/// Looks an alternative up by its name; an identifier also without its admission, which gives the first with
/// this name. False, and `part` as it was, where there is none.
template <class Part> bool find(std::string const& name, Part& part) {
  for (Part const& candidate : all_of<Part>()) {
    std::string const full = candidate.name();
    if (full != name && full.substr(0, full.find(':')) != name) continue;
    part = candidate;
    return true;
  }
  return false;
}

/// "a, b, c": for messages.
template <class Part> std::string names_of() {
  std::string out;
  for (Part const& part : all_of<Part>()) out += (out.empty() ? "" : ", ") + part.name();
  return out;
}

}  // namespace compose
}  // namespace KVMELD_ABI
}  // namespace kvmeld
