// SPDX-License-Identifier: Apache-2.0
// What two caches must have in common, besides their ledgers' arrays, to exchange saved sequences.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace saved {

/// What a cache says of itself beside its ledger_ref. The first four lie in the bytes, and must agree. The
/// others say which degrees a cache can take: a cache whose attention adds less takes every ledger whose
/// degrees need no more.
struct terms {
  std::string policy;             ///< its parts
  std::string facts;              ///< what the numbers of its score depend on (kept_facts)
  std::string rows;               ///< element types of keys and values
  std::uint32_t tracks_per_plan;  ///< tracks that share a plan (options.scope)
  bool degrees_are_one;           ///< attention adds no log degrees to logits (bias_support::none)
  bool heads_alike;               ///< attention adds one row for all heads of a layer (bias_support::shared)
};

template <class T> using traits_with_name = decltype(element_traits<T>::name);

/// The name of an element type: that of element_traits, if they have one.
template <class T> constexpr char const* name_of_element() {
  if constexpr (contract::allows<traits_with_name, T>) return element_traits<T>::name;
  if constexpr (std::is_same_v<T, std::int8_t>) return "int8";
  if constexpr (std::is_same_v<T, std::uint8_t>) return "uint8";
  return "another type";
}

/// What a ledger says of the rows beside it. Which rows hold NaN or infinity is known by entry (entry_flag),
/// and merges round to the element type: both hold for rows of this type alone.
template <class Keys, class Values> std::string name_of_rows() {
  return std::string(name_of_element<typename Keys::element_type>()) + " keys, " +
         name_of_element<typename Values::element_type>() + " values";
}

/// The first of the facts between commas in which two lists differ, of each of them.
struct different_facts {
  std::string saved, own;
  different_facts(std::string const& a, std::string const& b) {
    for (std::size_t at = 0, next = 0; saved == own && at <= a.size(); at = next + 2) {
      next = a.find(", ", at);
      saved = a.substr(at, next - at);
      own = at <= b.size() ? b.substr(at, b.find(", ", at) - at) : std::string();
      if (next == std::string::npos) break;
    }
  }
};

}  // namespace saved
}  // namespace KVMELD_ABI
}  // namespace kvmeld
