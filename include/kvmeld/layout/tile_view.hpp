// Rows of a tile for a kernel: in place if the kernel can read them there, else copied.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// Rows of a tile, `ld` elements apart.
template <class T> struct tile_view {
  T const* rows;
  std::size_t ld;
};

/// Calls use(tile_view) with slots first .. first + tokens - 1. The view is of the rows in place if kernels
/// can read them there, else of floats in `scratch` [tokens][channels]. One lane.
template <class Team, class Layout, class Use>
void with_tile(Team const& team, Layout const& layout, track where, slot_t first, std::uint32_t tokens,
               float* scratch, Use use) {
  if constexpr (has_row_kernels<Team, Layout>::value) {
    using T = typename Layout::element_type;
    segment<T> const s = layout.locate(where, first);
    if (s.channel_stride == 1 && s.token_stride >= 0 && s.remaining >= tokens)
      return use(tile_view<T>{s.base, static_cast<std::size_t>(s.token_stride)});
  }
  layout.load_tile(team, where, first, tokens, 0, layout.channels(), scratch, layout.channels());
  use(tile_view<float>{scratch, layout.channels()});
}

}  // namespace KVMELD_ABI
}  // namespace kvmeld
