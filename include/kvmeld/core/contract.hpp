// SPDX-License-Identifier: Apache-2.0
// Finds the member of a contract that a type lacks, so that the refusal can name that member.
#pragma once

#include <kvmeld/core/config.hpp>

#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace contract {

/// A constant T, where nothing is evaluated: for uses.
template <class T> T const& some();

template <template <class> class Use, class Part, class = void> struct can : std::false_type {};
template <template <class> class Use, class Part>
struct can<Use, Part, std::void_t<Use<Part>>> : std::true_type {};

/// Whether a part allows a use. A use is an alias that names a type exactly if the member of the part can be
/// used that way.
template <template <class> class Use, class Part> constexpr bool allows = can<Use, Part>::value;

/// f(part) if the part allows the use, else `otherwise`.
KVMELD_CALLS_ARGUMENTS
template <template <class> class Use, class Part, class F, class Otherwise>
KVMELD_HD Otherwise ask([[maybe_unused]] Part const& part, [[maybe_unused]] F f, Otherwise otherwise) {
  if constexpr (allows<Use, Part>) {
    return f(part);
  } else {
    return otherwise;
  }
}

/// Index of the first `false`, counted from 0; -1 if there is none.
template <bool... Fulfilled> constexpr int first_missing() {
  int n = 0, missing = -1;
  ((missing = missing < 0 && !Fulfilled ? n : missing, ++n), ...);
  return missing;
}

}  // namespace contract
}  // namespace KVMELD_ABI
}  // namespace kvmeld
