// SPDX-License-Identifier: Apache-2.0
// Loops whose turns are written out, so that arrays indexed by them can stay in registers.
#pragma once

#include <kvmeld/core/config.hpp>

#include <cstdint>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace detail {

template <class F, std::uint32_t... I>
KVMELD_HD constexpr void unroll(F& f, std::integer_sequence<std::uint32_t, I...>) {
  (f(std::integral_constant<std::uint32_t, I>{}), ...);
}

}  // namespace detail

/// Calls f(i) for i = 0 .. N - 1. Each i is an integral constant: decltype(i)::value.
template <std::uint32_t N, class F> KVMELD_HD constexpr void unrolled(F f) {
  detail::unroll(f, std::make_integer_sequence<std::uint32_t, N>{});
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
