// Whether a layout can serve an extent, as far as it shows without looking at memory.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/strided.hpp>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

template <class Layout, class = void> struct has_base_pointer : std::false_type {};
template <class Layout>
struct has_base_pointer<Layout, std::void_t<decltype(std::declval<Layout const&>().data()),
                                            decltype(std::declval<Layout const&>().strides())>>
    : std::true_type {};

/// Layouts may say themselves why they cannot serve an extent: `std::string problem(shape const&) const`.
template <class Layout, class = void> struct finds_problems : std::false_type {};
template <class Layout>
struct finds_problems<Layout, std::void_t<decltype(std::declval<Layout const&>().problem(shape{}))>>
    : std::true_type {};

/// Why a layout cannot serve an extent; empty if it can. Pointers are checked where a layout shows one.
template <class Layout>
std::string layout_problem(char const* name, Layout const& layout, std::uint32_t channels, shape const& s) {
  if (layout.channels() != channels) {
    return message(name, " have ", layout.channels(), " channels, but the shape says ", channels,
                   "; they must be equal");
  }
  if constexpr (finds_problems<Layout>::value) {
    std::string const problem = layout.problem(s);
    if (!problem.empty()) return message(name, ": ", problem);
  }
  if constexpr (has_base_pointer<Layout>::value) {
    using T = typename Layout::element_type;
    if (layout.data() == nullptr) return message(name, " have a null base pointer; give the engine's tensor");
    auto const address = reinterpret_cast<std::uintptr_t>(layout.data());
    if (address % alignof(T) != 0) {
      return message(name, " start at an address that is ", address % alignof(T), " modulo ", alignof(T),
                     "; allowed are multiples of ", alignof(T));
    }
    if (layout.capacity() != s.capacity) {
      return message(name, " have room for ", layout.capacity(), " slots, but the shape says ", s.capacity,
                     "; they must be equal");
    }
    if (s.capacity > 1 && layout.strides().slot == 0) {
      return message(name,
                     " have slot stride 0; allowed is any other stride (for a dense order: a permutation of "
                     "the letters L, S, H, T, C)");
    }
    cache_strides const& st = layout.strides();
    std::pair<std::uint32_t, std::pair<char const*, std::int64_t>> const outer[] = {
        {s.layers, {"layer", st.layer}},
        {s.sequences, {"sequence", st.sequence}},
        {s.kv_heads, {"head", st.head}}};
    for (auto const& [count, stride] : outer) {
      if (count > 1 && stride.second == 0) {
        return message(name, " have ", stride.first, " stride 0 with ", count,
                       " of them, so that tracks overlap; ", "allowed is any other stride");
      }
    }
    if (Layout::token_run == 0 && st.slot != 1) {
      return message(name, " are transposed but have slot stride ", st.slot,
                     "; allowed is 1 (an order that ends in T)");
    }
    if (channels > 1 && layout.strides().channel == 0) {
      return message(name, " have channel stride 0; allowed is any other stride");
    }
  }
  return {};
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
