// Finds the member of a contract that a type lacks, so that the refusal can name that member.
#pragma once

#include <kvmeld/core/config.hpp>

#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace contract {

template <template <class> class Use, class Part, class = void> struct can : std::false_type {};
template <template <class> class Use, class Part>
struct can<Use, Part, std::void_t<Use<Part>>> : std::true_type {};

/// Whether a part allows a use. A use is an alias that names a type exactly if the member of the part can be
/// used that way.
template <template <class> class Use, class Part> constexpr bool allows = can<Use, Part>::value;

/// Index of the first `false`, counted from 0; -1 if there is none.
template <bool... Fulfilled> constexpr int first_missing() {
  int n = 0, missing = -1;
  ((missing = missing < 0 && !Fulfilled ? n : missing, ++n), ...);
  return missing;
}

/// The value of a member `static constexpr bool`.
template <bool Value> using flag = std::bool_constant<Value>;

}  // namespace contract
}  // namespace KVMELD_ABI
}  // namespace kvmeld
