// SPDX-License-Identifier: Apache-2.0
// What a layout is: it says where entry (track, slot) lies. K and V have a layout each.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/stored_rows.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// A run of slots with constant strides.
template <class T> struct segment {
  T* base;                                    ///< channel 0 of the located slot
  std::int64_t token_stride, channel_stride;  ///< in elements
  std::uint32_t remaining;                    ///< slots from the located one on for which the strides hold
};

/// K and V of a group of layers. Layouts are trivially copyable views; the engine owns the memory.
template <class Keys, class Values> struct kv {
  Keys keys;      ///< layout of the keys
  Values values;  ///< layout of the values
};
/// Lets kv{keys, values} deduce its template arguments.
template <class Keys, class Values> kv(Keys, Values) -> kv<Keys, Values>;

/// Base of a layout that only has `locate`: adds the operations on rows and tiles. Derived provides
/// `segment<T> locate(track, slot_t) const` and `std::uint32_t channels() const`.
template <class Derived, class T> struct addressed_rows {
  using element_type = T;

  /// out[t * ld + c] = element (first + t, channel + c) as float. Collective; no barrier at the end.
  template <class Team>
  KVMELD_HD void load_tile(Team const& team, track where, slot_t first, std::uint32_t tokens,
                           std::uint32_t channel, std::uint32_t channels, float* out,
                           std::uint32_t ld) const {
    for (std::uint32_t t = 0; t < tokens;) {
      segment<T> const s = self().locate(where, first + t);
      std::uint32_t const run = min_of(tokens - t, s.remaining);
      T const* const base = s.base + std::int64_t{channel} * s.channel_stride;
      float* const to = out + std::size_t{t} * ld;
      if (s.channel_stride == 1) {
        decode_rows(team, base, s.token_stride, run, channels, to, ld);
      } else {
        for (std::uint32_t c = 0; c < channels; ++c) {
          T const* const column = base + std::int64_t{c} * s.channel_stride;
          team.for_each(run, [&](std::uint32_t r) {
            to[std::size_t{r} * ld + c] =
                element_traits<T>::to_float(column[std::int64_t{r} * s.token_stride]);
          });
        }
      }
      t += run;
    }
  }

  /// Writes element (slot, c) = value(c), rounded to the element type. Collective over channels; no barrier.
  template <class Team, class F>
  KVMELD_HD void encode_row(Team const& team, track where, slot_t slot, F value) const {
    segment<T> const s = self().locate(where, slot);
    team.for_each(self().channels(), [&](std::uint32_t c) {
      s.base[std::int64_t{c} * s.channel_stride] = element_traits<T>::from_float(value(c));
    });
  }

  /// Copies the raw bits of row `src` to row `dst`. Collective: a lane always handles the same channels, so
  /// that consecutive calls need no barrier between them.
  template <class Team> KVMELD_HD void copy_row(Team const& team, track where, slot_t dst, slot_t src) const {
    segment<T> const to = self().locate(where, dst);
    segment<T> const from = self().locate(where, src);
    if constexpr (may_be_tuned<Team> && std::is_trivially_copyable_v<T>) {
      if (team.lanes() == 1 && to.channel_stride == 1 && from.channel_stride == 1) {
        if (dst != src) std::memcpy(to.base, from.base, self().channels() * sizeof(T));
        return;
      }
    }
    team.for_each(self().channels(), [&](std::uint32_t c) {
      to.base[std::int64_t{c} * to.channel_stride] = from.base[std::int64_t{c} * from.channel_stride];
    });
  }

private:
  KVMELD_HD Derived const& self() const { return static_cast<Derived const&>(*this); }
};

/// True for layouts whose rows are plain elements exactly where `locate` says. These are the layouts that
/// take their row operations from addressed_rows. Backends may read and write their rows through pointers.
template <class Layout, class = void> struct has_plain_rows : std::false_type {};
template <class Layout>
struct has_plain_rows<Layout, std::void_t<typename Layout::element_type>>
    : std::is_base_of<addressed_rows<Layout, typename Layout::element_type>, Layout> {};

/// Whether a team may have tuned forms that read and write rows of this layout in place.
template <class Team, class Layout, bool = has_plain_rows<Layout>::value>
struct has_row_kernels : std::false_type {};
template <class Team, class Layout>
struct has_row_kernels<Team, Layout, true>
    : std::bool_constant<may_be_tuned<Team, typename Layout::element_type>> {};

/// True for layouts in which tokens are contiguous and channels are not. Loops then run along tokens.
template <class Layout>
inline constexpr bool runs_along_tokens = Layout::token_run == 0 && Layout::channel_run == 1;

/// A layout with `always_writable` set promises that every slot is writable. The check then costs nothing.
template <class Layout, class = void> struct is_always_writable : std::false_type {};
template <class Layout>
struct is_always_writable<Layout, std::enable_if_t<Layout::always_writable>> : std::true_type {};

/// What the library uses of a layout, which is also trivially copyable. K and V may have different layouts.
namespace layout_uses {
template <class L> using element_type = typename L::element_type;
template <class L> using channel_run = std::integral_constant<int, L::channel_run>;
template <class L> using token_run = std::integral_constant<int, L::token_run>;
template <class L> using channels = decltype(static_cast<std::uint32_t>(contract::some<L>().channels()));
template <class L>
using writable = decltype(static_cast<bool>(contract::some<L>().writable(track{}, slot_t{})));
template <class L>
using load_tile = decltype(contract::some<L>().load_tile(contract::some<serial_team>(), track{}, slot_t{}, 0u,
                                                         0u, 0u, std::declval<float*>(), 0u));
template <class L>
using encode_row = decltype(contract::some<L>().encode_row(contract::some<serial_team>(), track{}, slot_t{},
                                                           static_cast<float (*)(std::uint32_t)>(nullptr)));
template <class L>
using copy_row =
    decltype(contract::some<L>().copy_row(contract::some<serial_team>(), track{}, slot_t{}, slot_t{}));
}  // namespace layout_uses

namespace detail {

/// Number of the first requirement that a layout lacks, as require_layout counts them; -1: it lacks none.
template <class L>
constexpr int missing_in_layout = contract::first_missing<
    std::is_trivially_copyable_v<L>, contract::allows<layout_uses::element_type, L>,
    contract::allows<layout_uses::channel_run, L>, contract::allows<layout_uses::token_run, L>,
    contract::allows<layout_uses::channels, L>, contract::allows<layout_uses::writable, L>,
    contract::allows<layout_uses::load_tile, L>, contract::allows<layout_uses::encode_row, L>,
    contract::allows<layout_uses::copy_row, L>>();

}  // namespace detail

/// Whether a type is a layout.
template <class Layout> struct is_layout : std::bool_constant<detail::missing_in_layout<Layout> == -1> {};

namespace detail {

/// Refuses a type that is no layout. The message names what the type lacks; the compiler's note names the
/// type.
template <class Layout> constexpr void require_layout() {
  constexpr int missing = missing_in_layout<Layout>;
  static_assert(missing != 0, "kvmeld: the layout is not trivially copyable");
  static_assert(missing != 1, "kvmeld: the layout has no type `element_type`");
  static_assert(missing != 2, "kvmeld: the layout has no `static constexpr int channel_run`");
  static_assert(missing != 3, "kvmeld: the layout has no `static constexpr int token_run`");
  static_assert(missing != 4, "kvmeld: the layout has no `std::uint32_t channels()`");
  static_assert(missing != 5, "kvmeld: the layout has no `bool writable(track, slot)`");
  static_assert(missing != 6, "kvmeld: the layout has no "
                              "`load_tile(team, track, first, tokens, channel, channels, out, ld)`");
  static_assert(missing != 7, "kvmeld: the layout has no `encode_row(team, track, slot, value)`");
  static_assert(missing != 8, "kvmeld: the layout has no `copy_row(team, track, to, from)`");
}

/// Rows of a tile, `ld` elements apart.
template <class T> struct tile_view {
  T const* rows;
  std::size_t ld;
};

/// Calls use(tile_view) with slots first .. first + tokens - 1. The view is of the rows in place if the
/// team's primitives read them there, else of floats in `scratch` [tokens][ld]. Collective; barrier before
/// the use.
template <class Team, class Layout, class Use>
KVMELD_HD void with_tile(Team const& team, Layout const& layout, track where, slot_t first,
                         std::uint32_t tokens, float* scratch, std::uint32_t ld, Use use) {
  if constexpr (has_row_kernels<Team, Layout>::value) {
    using T = typename Layout::element_type;
    segment<T> const s = layout.locate(where, first);
    if (is_tuned<T>(team) && s.channel_stride == 1 && s.token_stride >= 0 && s.remaining >= tokens)
      return use(tile_view<T>{s.base, static_cast<std::size_t>(s.token_stride)});
  }
  layout.load_tile(team, where, first, tokens, 0, layout.channels(), scratch, ld);
  team.sync();
  use(tile_view<float>{scratch, ld});
}

}  // namespace detail

}  // namespace KVMELD_ABI
}  // namespace kvmeld
