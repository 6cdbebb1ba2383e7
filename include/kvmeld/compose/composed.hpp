// SPDX-License-Identifier: Apache-2.0
// Policies composed at run time, from parts found by name: for tools, experiments and configuration files.
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

/// A policy of parts chosen at run time. It is one type for every composition, so all of them compile once.
/// Its plans are the same bits as those of the policy fixed at compile time. Constructing a cache refuses a
/// composition that means nothing, with the text that composition_problem gives.
using composed = policy<any_score, any_selector, any_identifier, any_merge>;

/// Converts a policy of ready-made parts, fixed at compile time, to a composed one.
template <class Score, class Select, class Identify, class Merge>
composed composed_of(policy<Score, Select, Identify, Merge> const& p) {
  return {p.score, p.select, p.identify, p.merge};
}

/// Every alternative of a part, with its default values, in the order of declaration.
template <class Part> std::vector<Part> all_of() {
  std::vector<Part> out;
  Part::choice::each([&](auto const& part) { out.emplace_back(part); });
  return out;
}

/// Looks up an alternative by its name and assigns it to `part`. An identifier's name may omit the admission;
/// the first identifier with this name is then found. Returns false, and leaves `part` as it was, if there is
/// none.
template <class Part> bool find(std::string const& name, Part& part) {
  for (Part const& candidate : all_of<Part>()) {
    std::string const full = candidate.name();
    if (full != name && full.substr(0, full.find(':')) != name) continue;
    part = candidate;
    return true;
  }
  return false;
}

/// The names of all alternatives as "a, b, c", for messages.
template <class Part> std::string names_of() {
  std::string out;
  for (Part const& part : all_of<Part>()) out += (out.empty() ? "" : ", ") + part.name();
  return out;
}

}  // namespace compose
}  // namespace KVMELD_ABI
}  // namespace kvmeld
