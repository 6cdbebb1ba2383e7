// SPDX-License-Identifier: Apache-2.0
// Finds from strides alone whether two entries of a tensor, or a key and a value, lie in the same bytes.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/size_limits.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/latent.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/layout_problem.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

namespace detail {

/// The bytes of a tensor, as far as numbers on the host tell. There is an element at base + sum of
/// stride_i * x_i for every choice of 0 <= x_i < count_i. For pages these are the bytes of one page.
struct byte_lattice {
  /// A direction in which elements lie: `count` of them, `stride` bytes apart.
  struct direction {
    std::int64_t stride, count;  ///< bytes between neighbours; number of elements
  };
  bool known = false;        ///< false: the layout does not show its strides; nothing is checked
  std::uintptr_t base = 0;   ///< address of the first element
  std::int64_t element = 0;  ///< size of an element in bytes
  /// The first `count` are in use.
  std::array<direction, 6> directions{};
  std::size_t count = 0;                ///< directions in use
  std::array<std::int64_t, 7> pages{};  ///< how pages are found; only lattices that agree in it are compared
};

template <class Layout, class = void> struct has_groups : std::false_type {};
template <class Layout>
struct has_groups<Layout, std::void_t<decltype(std::declval<Layout const&>().groups()),
                                      decltype(std::declval<Layout const&>().width())>> : std::true_type {};
template <class Layout, class = void> struct has_rows : std::false_type {};
template <class Layout>
struct has_rows<Layout, std::void_t<decltype(std::declval<Layout const&>().rows())>> : std::true_type {};
template <class Layout, class = void> struct has_codes : std::false_type {};
template <class Layout>
struct has_codes<Layout, std::void_t<decltype(std::declval<Layout const&>().stored.channels())>>
    : std::true_type {};
template <class Layout, class = void> struct has_pool : std::false_type {};
template <class Layout>
struct has_pool<Layout, std::void_t<decltype(std::declval<Layout const&>().pages().pool),
                                    decltype(std::declval<Layout const&>().pages().table)>> : std::true_type {
};

/// The same bytes with all strides positive and the longest stride first.
inline byte_lattice in_order(byte_lattice x) {
  for (std::size_t i = 0; i < x.count; ++i) {
    byte_lattice::direction& d = x.directions[i];
    if (d.stride >= 0) continue;
    d.stride = -d.stride;
    x.base -= static_cast<std::uintptr_t>(d.stride * (d.count - 1));
  }
  std::sort(x.directions.begin(), x.directions.begin() + static_cast<std::ptrdiff_t>(x.count),
            [](auto const& a, auto const& b) { return a.stride > b.stride; });
  return x;
}

/// Whether the address lies within an element of `x`, which comes from in_order.
inline bool holds(byte_lattice const& x, std::uintptr_t address) {
  if (address < x.base) return false;
  auto left = static_cast<std::int64_t>(address - x.base);
  for (std::size_t i = 0; i < x.count; ++i) {
    byte_lattice::direction const& d = x.directions[i];
    if (d.stride != 0) left -= d.stride * std::min(left / d.stride, d.count - 1);
  }
  return left < x.element;
}

/// Whether a corner of `y` begins within an element of `x`. The corners are the first element of `y`, and the
/// last elements along its innermost direction, its two innermost directions, and so on.
inline bool holds_a_corner(byte_lattice const& x, byte_lattice const& y) {
  std::uintptr_t at = y.base;
  bool found = holds(x, at);
  for (std::size_t i = y.count; i-- > 0 && !found;) {
    at += static_cast<std::uintptr_t>(y.directions[i].stride * (y.directions[i].count - 1));
    found = holds(x, at);
  }
  return found;
}

/// The lattice of a strided or transposed tensor (of its first `slots` slots), of pages by table, or of a
/// layout that wraps these: groups of channels, rings, codes. For other layouts it is not known.
template <class Layout> byte_lattice lattice_of(Layout const& x, shape const& s, std::uint32_t slots) {
  byte_lattice out;
  // A stride that is too long for any tensor is clamped to one that fits 64 bits and is still too long.
  // reaches_too_far finds it.
  auto const in_bytes = [&](std::int64_t stride) {
    constexpr std::int64_t far = 2 * largest::tensor_bytes;
    std::int64_t const most = far / out.element;
    return stride > most ? far : stride < -most ? -far : stride * out.element;
  };
  auto const add = [&](std::int64_t stride, std::uint32_t count) {
    if (count > 1) out.directions[out.count++] = {in_bytes(stride), count};
  };
  if constexpr (detail::has_codes<Layout>::value) {
    return lattice_of(x.stored, s, slots);
  } else if constexpr (detail::has_groups<Layout>::value) {
    out = lattice_of(x.groups(), s, slots);
    add(1, x.width());
  } else if constexpr (detail::has_rows<Layout>::value) {
    return lattice_of(x.rows(), s, slots);
  } else if constexpr (has_base_pointer<Layout>::value) {
    out.known = true;
    out.base = reinterpret_cast<std::uintptr_t>(x.data());
    out.element = sizeof(typename Layout::element_type);
    auto const& st = x.strides();
    add(st.layer, s.layers);
    add(st.sequence, s.sequences);
    add(st.head, s.kv_heads);
    add(st.slot, std::min(x.capacity(), slots));
    add(st.channel, x.channels());
  } else if constexpr (detail::has_pool<Layout>::value) {
    auto const& table = x.pages().table;
    auto const& st = x.strides();
    out.known = true;
    out.base = reinterpret_cast<std::uintptr_t>(x.pages().pool);
    out.element = sizeof(typename Layout::element_type);
    // Layers or heads with their own rows of the table have their own pages.
    if (table.layer_stride == 0) add(st.layer, s.layers);
    if (table.head_stride == 0) add(st.head, s.kv_heads);
    add(st.token, std::min(x.page_size(), x.capacity()));
    add(st.channel, x.channels());
    auto const number = [](void const* p) {
      return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p));
    };
    out.pages = {number(table.entries), number(table.first), table.sequence_stride, table.layer_stride,
                 table.head_stride,     in_bytes(st.page),   x.page_size()};
  }
  return out;
}

/// Whether elements of a tensor lie further apart than largest::tensor_bytes. The checks below then do not
/// apply.
inline bool reaches_too_far(byte_lattice const& x) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; x.known && i < x.count; ++i) {
    byte_lattice::direction const& d = x.directions[i];
    bytes = saturated_sum(bytes,
                          saturated_product(magnitude_of(d.stride), static_cast<std::uint64_t>(d.count - 1)));
  }
  return bytes > static_cast<std::uint64_t>(largest::tensor_bytes);
}

/// Whether two directions of a tensor meet: some number of steps along one leads to the same address as some
/// number of steps along the other. Collisions that take three directions are not found.
inline bool folds_onto_itself(byte_lattice const& x) {
  if (!x.known || reaches_too_far(x)) return false;
  for (std::size_t i = 0; i < x.count; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      byte_lattice::direction const &a = x.directions[i], &b = x.directions[j];
      if (a.stride == 0 || b.stride == 0) return true;
      if (i == j) continue;
      // a.stride * steps of a == b.stride * steps of b, in the fewest steps
      std::int64_t const common = std::gcd(a.stride, b.stride);
      if (std::abs(b.stride / common) < a.count && std::abs(a.stride / common) < b.count) return true;
    }
  }
  return false;
}

}  // namespace detail

/// Whether an element of one tensor shares bytes with an element of the other. Only the corners of both are
/// tested, so that overlaps of tensors whose strides are not nested may not be found. Interleaved tensors of
/// one allocation do not overlap.
inline bool overlap(detail::byte_lattice const& x, detail::byte_lattice const& y) {
  if (!x.known || !y.known || x.pages != y.pages || detail::reaches_too_far(x) || detail::reaches_too_far(y))
    return false;
  detail::byte_lattice const a = detail::in_order(x), b = detail::in_order(y);
  return detail::holds_a_corner(a, b) || detail::holds_a_corner(b, a);
}

namespace detail {

/// Why two elements of the first `slots` slots of all tracks would lie at one address; empty if none would.
/// Not found: pages that two rows of a table use (validate_pages finds them), pages by pointer, relocatable
/// and per_layer layouts, an engine's own layouts, scales of quantised rows, and collisions that take three
/// directions.
template <class Layout>
std::string folding_problem(char const* name, Layout const& x, shape const& s, std::uint32_t slots) {
  byte_lattice const lattice = lattice_of(x, s, slots);
  if (reaches_too_far(lattice)) {
    return refusal(name, "distance between two elements by the strides", "too large", "at most ",
                   largest::tensor_bytes, " bytes");
  }
  if (!folds_onto_itself(lattice)) return {};
  return refusal(name, "address of two elements", "the same",
                 "different: strides keep layers, sequences, heads, slots and channels apart");
}

/// Why keys and values would overwrite each other; empty if they would not. Not found: overlaps in layouts
/// that folding_problem cannot check, keys of a pool with values of other pages, and tensors of which only
/// one is paged or which have different tables.
template <class Keys, class Values>
std::string overlap_problem(Keys const& keys, Values const& values, shape const& s, std::uint32_t slots) {
  byte_lattice const k = lattice_of(keys, s, slots), v = lattice_of(values, s, slots);
  if (!overlap(k, v)) return {};
  auto const apart = static_cast<std::int64_t>(v.base - k.base);
  return refusal(
      "values", "address of the values minus that of the keys in bytes", apart,
      "such that no value shares bytes with a key (use latent for values that are channels of the keys)");
}

}  // namespace detail

/// Why K and V cannot hold `slots` slots of every track without overlap; empty if they can. Reads only
/// numbers on the host. A cache itself checks only what holds for any length: tensors may have less room than
/// the cache's capacity while their sequences are short, as in engines whose tensors grow. Call this with the
/// number of slots that the tensors have room for.
template <class Keys, class Values>
std::string validate_tensors(kv<Keys, Values> const& x, shape const& s, std::uint32_t slots) {
  std::string problem = detail::folding_problem("keys", x.keys, s, slots);
  if constexpr (!detail::reads_keys<Values>::value) {
    if (problem.empty()) problem = detail::folding_problem("values", x.values, s, slots);
    if (problem.empty()) problem = detail::overlap_problem(x.keys, x.values, s, slots);
  }
  return problem;
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
