// What a cache is built for, and the checks of it.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/strided.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// What an engine's attention can add to the logits of merged entries.
enum class bias_support : std::uint8_t {
  per_head,  ///< a row of log degrees per KV head, as attention::extend does
  shared,    ///< one row for all heads of a layer: heads must share their plans (plan_scope layer or group)
  none,      ///< nothing: policies whose results carry degrees are refused unless `ignore_degree` is set
};

/// Which tracks of a sequence share one plan.
enum class plan_scope : std::uint8_t {
  head,   ///< none: every track has a plan of its own
  layer,  ///< all KV heads of a layer
  group,  ///< all KV heads of all layers
};

/// Sizes fixed at construction. All memory of a cache follows from them.
struct limits {
  shape extent;
  std::uint32_t wave_tracks = 0;    ///< tracks compressed together; 0: two per worker of the executor
  bool whole_plan = false;          ///< keep a plan of every track, as `plan` + `apply` need
  std::uint32_t members = 0;        ///< members per track, for policies that share entries
  std::uint32_t first_layer = 0;    ///< global number of the group's first layer
  std::uint32_t first_kv_head = 0;  ///< global number of the first KV head on this rank
  bias_support bias = bias_support::per_head;  ///< what the consumer of the cache can take
  bool ignore_degree =
      false;  ///< entries count as one token in attention and in scores, whatever merged into them
  plan_scope scope = plan_scope::head;  ///< which tracks share one plan
};

/// Why an extent cannot be; empty if it can.
inline std::string extent_problem(shape const& s) {
  std::pair<char const*, std::uint32_t> const fields[] = {
      {"layers", s.layers},   {"sequences", s.sequences}, {"kv_heads", s.kv_heads}, {"group", s.group},
      {"key_dim", s.key_dim}, {"value_dim", s.value_dim}, {"capacity", s.capacity}};
  for (auto const& [name, value] : fields) {
    if (value == 0) return message("shape.", name, " is 0; allowed are numbers from 1 on");
  }
  double const tracks = double{1} * s.layers * s.sequences * s.kv_heads;
  if (tracks > std::numeric_limits<std::int32_t>::max()) {
    return message("shape has ", tracks,
                   " tracks (layers x sequences x kv_heads); allowed are up to 2147483647");
  }
  if (s.capacity > (1u << 30))
    return message("shape.capacity is ", s.capacity, "; allowed are up to 1073741824");
  return {};
}

template <class Layout, class = void> struct has_base_pointer : std::false_type {};
template <class Layout>
struct has_base_pointer<Layout, std::void_t<decltype(std::declval<Layout const&>().data()),
                                            decltype(std::declval<Layout const&>().strides())>>
    : std::true_type {};

/// Why a layout cannot serve an extent; empty if it can. Pointers are checked where a layout shows one.
template <class Layout>
std::string layout_problem(char const* name, Layout const& layout, std::uint32_t channels, shape const& s) {
  if (layout.channels() != channels) {
    return message(name, " have ", layout.channels(), " channels, but the shape says ", channels,
                   "; they must be equal");
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
