// SPDX-License-Identifier: Apache-2.0
// Whether a layout can serve an extent, as far as that is known without reading memory.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/strided.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

template <class Layout, class = void> struct has_base_pointer : std::false_type {};

template <class Layout>
struct has_base_pointer<Layout, std::void_t<decltype(std::declval<Layout const&>().data()),
                                            decltype(std::declval<Layout const&>().strides())>>
    : std::true_type {};

/// A layout may have `std::string problem(shape const&) const`, which says why it cannot serve an extent.
template <class Layout, class = void> struct finds_problems : std::false_type {};

template <class Layout>
struct finds_problems<Layout, std::void_t<decltype(std::declval<Layout const&>().problem(shape{}))>>
    : std::true_type {};

}  // namespace detail

/// An axis of a tensor: `count` things that lie `stride` elements apart.
struct stride_of {
  char const* name;     ///< name of the stride, for messages
  std::uint32_t count;  ///< 1: the stride is not used
  std::int64_t stride;  ///< in elements
};

namespace detail {

/// Why elements of `bytes` bytes cannot have these strides; empty if they can. With a stride of 0, several
/// things would lie at one address. A tensor that reaches beyond largest::tensor_bytes would have addresses
/// that do not exist.
template <std::size_t N>
std::string strides_problem(char const* name, stride_of const (&directions)[N], std::size_t bytes) {
  std::uint64_t reach = bytes;
  for (stride_of const& d : directions) {
    if (d.count < 2) continue;
    if (d.stride == 0) {
      return refusal(name, d.name, 0, "another number, because there are ", d.count, " of them");
    }
    std::uint64_t const elements = saturated_product(magnitude_of(d.stride), std::uint64_t{d.count} - 1);
    reach = saturated_sum(reach, saturated_product(elements, std::uint64_t{bytes}));
    if (reach > static_cast<std::uint64_t>(largest::tensor_bytes)) {
      return refusal(name, d.name, d.stride, "so small that all elements lie within ", largest::tensor_bytes,
                     " bytes");
    }
  }
  return {};
}

}  // namespace detail

/// Why a layout cannot serve an extent; empty if it can. Checks the base pointer of a layout that has one.
template <class Layout>
std::string layout_problem(char const* name, Layout const& layout, std::uint32_t channels, shape const& s) {
  if constexpr (detail::finds_problems<Layout>::value) {
    if (std::string const problem = layout.problem(s); !problem.empty()) return refusal_within(name, problem);
  }
  if constexpr (detail::has_base_pointer<Layout>::value) {
    using T = typename Layout::element_type;
    if (layout.data() == nullptr) return refusal(name, "base pointer", "null", "that of the engine's tensor");
    auto const address = reinterpret_cast<std::uintptr_t>(layout.data());
    if (address % alignof(T) != 0) {
      return refusal(name, message("address modulo ", alignof(T)), address % alignof(T),
                     "0, the alignment of an element");
    }
    if (layout.capacity() != s.capacity) {
      return refusal(name, "capacity", layout.capacity(), s.capacity, ", the shape's capacity");
    }
    cache_strides const& st = layout.strides();
    if (s.capacity > 1 && st.slot == 0) {
      return refusal(name, "slot stride", 0,
                     "another number (a dense order is a permutation of the letters L, S, H, T, C)");
    }
    if (Layout::token_run == 0 && st.slot != 1) {
      return refusal(name, "slot stride", st.slot,
                     "1, because the tensor is transposed (an order that ends in T)");
    }
    std::string const problem = detail::strides_problem(name,
                                                        {{"layer stride", s.layers, st.layer},
                                                         {"sequence stride", s.sequences, st.sequence},
                                                         {"head stride", s.kv_heads, st.head},
                                                         {"slot stride", s.capacity, st.slot},
                                                         {"channel stride", layout.channels(), st.channel}},
                                                        sizeof(T));
    if (!problem.empty()) return problem;
  }
  if (layout.channels() != channels) {
    return refusal(name, "number of channels", layout.channels(), channels, ", as the shape says");
  }
  return {};
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
