// SPDX-License-Identifier: Apache-2.0
// The rows of a track in pieces of 16 bytes, for teams of several lanes.
#pragma once

#include <kvmeld/core/config.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_piece.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/layout/joined.hpp>
#include <kvmeld/layout/layout.hpp>

#include <cstdint>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {

/// True for layouts whose rows can be read and written in pieces, at any address.
template <class Layout, bool = has_plain_rows<Layout>::value> struct has_row_pieces : std::false_type {};
template <class Layout>
struct has_row_pieces<Layout, true> : std::bool_constant<fits_pieces<typename Layout::element_type>> {};

/// Whether a team of `lanes` lanes works on pieces of rows. A single lane works row by row. In layouts with
/// contiguous tokens, loops run along tokens.
template <class Layout> KVMELD_HD constexpr bool shares_pieces(std::uint32_t lanes) {
  return has_row_pieces<Layout>::value && !runs_along_tokens<Layout> && lanes > 1;
}

/// How many pieces a lane reads before it uses them.
constexpr std::uint32_t pieces_in_flight = 4;

/// How a team divides rows of `pieces` pieces among its lanes. A lane has the same piece of every row, or
/// every `width`-th piece from that one on, so that it divides once. Lanes that are left over have no row.
struct piece_share {
  std::uint32_t width, rows;  ///< how many pieces of a row, and how many rows, the team has at a time
  std::uint32_t piece, row;   ///< the lane's piece and row of these; row is `rows` if it has no row

  /// The part of the calling lane.
  template <class Team>
  KVMELD_HD piece_share(Team const& team, std::uint32_t pieces)
      : width(min_of(pieces, team.lanes())),
        rows(team.lanes() / width),
        piece(team.lane() % width),
        row(min_of(team.lane() / width, rows)) {}
  KVMELD_HD bool has_row() const { return row != rows; }
};

/// The rows of one track as pieces, with any strides, any alignment and any number of channels. Rows with
/// contiguous channels that lie at multiples of 16 bytes move 16 bytes at a time.
template <class Layout> class row_pieces {
public:
  using T = typename Layout::element_type;
  using piece = row_piece<T>;

  KVMELD_HD row_pieces(Layout const& layout, track where)
      : layout_(layout), where_(where), channels_(layout.channels()) {}

  /// Number of pieces of a row; the last piece may have fewer channels.
  KVMELD_HD std::uint32_t count() const { return count_of(channels_); }
  KVMELD_HD static constexpr std::uint32_t count_of(std::uint32_t channels) {
    return ceil_div(channels, piece::size);
  }

  /// Number of channels of a piece.
  KVMELD_HD std::uint32_t width(std::uint32_t index) const {
    return min_of(piece::size, channels_ - index * piece::size);
  }

  /// Where a row lies, if all of it may be read in pieces of 16 bytes; else null.
  KVMELD_HD T const* row(slot_t slot) const {
    segment<T> const s = layout_.locate(where_, slot);
    bool const pieces = s.channel_stride == 1 && channels_ % piece::size == 0 && is_piece_aligned(s.base);
    return pieces ? s.base : nullptr;
  }

  /// Where a piece lies, if its 16 bytes may be read there at once; else null.
  KVMELD_HD T const* address(slot_t slot, std::uint32_t index) const {
    segment<T> const s = layout_.locate(where_, slot);
    T const* const from = s.base + std::int64_t{index} * piece::size * s.channel_stride;
    return whole(from, s.channel_stride, index) ? from : nullptr;
  }

  KVMELD_HD piece read(slot_t slot, std::uint32_t index) const {
    segment<T> const s = layout_.locate(where_, slot);
    T const* const from = s.base + std::int64_t{index} * piece::size * s.channel_stride;
    if (whole(from, s.channel_stride, index)) return load_piece<T>(from);
    piece p;
    unrolled<piece::size>([&](auto channel) {
      constexpr std::uint32_t c = decltype(channel)::value;
      p.x[c] = c < width(index) ? from[std::int64_t{c} * s.channel_stride] : T{};
    });
    return p;
  }

  KVMELD_HD void write(slot_t slot, std::uint32_t index, piece const& p) const {
    segment<T> const s = layout_.locate(where_, slot);
    T* const to = s.base + std::int64_t{index} * piece::size * s.channel_stride;
    if (whole(to, s.channel_stride, index)) {
      store_piece(to, p);
    } else {
      unrolled<piece::size>([&](auto channel) {
        constexpr std::uint32_t c = decltype(channel)::value;
        if (c < width(index)) to[std::int64_t{c} * s.channel_stride] = p.x[c];
      });
    }
  }

private:
  KVMELD_HD bool whole(T const* at, std::int64_t channel_stride, std::uint32_t index) const {
    return channel_stride == 1 && is_piece_aligned(at) && width(index) == piece::size;
  }
  Layout const& layout_;
  track where_;
  std::uint32_t channels_;
};

/// How many tiles share the rows of a track, if each takes `slice` pieces of every row. 0: one tile takes
/// all.
template <class Layout>
std::uint32_t tiles_of_slices([[maybe_unused]] Layout const& layout, [[maybe_unused]] std::uint32_t slice) {
  if constexpr (has_row_pieces<Layout>::value) {
    if (slice != 0) return ceil_div(row_pieces<Layout>::count_of(layout.channels()), slice);
  }
  return 1;
}

/// Pieces of joined rows, read only. Pieces are counted through all joined tracks.
template <class Layout> class row_pieces<detail::joined_rows<Layout>> {
public:
  using T = typename Layout::element_type;
  using piece = row_piece<T>;

  KVMELD_HD row_pieces(detail::joined_rows<Layout> const& rows, track leader)
      : rows_(rows), leader_(leader), channels_(rows.layout.channels()) {}

  KVMELD_HD std::uint32_t count() const { return ceil_div(rows_.channels(), piece::size); }
  KVMELD_HD T const* address(slot_t slot, std::uint32_t index) const {
    if (rows_.count == 1) return alone().address(slot, index);
    return apart() ? nullptr : of(index).address(slot, index * piece::size % channels_ / piece::size);
  }
  KVMELD_HD piece read(slot_t slot, std::uint32_t index) const {
    if (rows_.count == 1) return alone().read(slot, index);
    if (!apart()) return of(index).read(slot, index * piece::size % channels_ / piece::size);
    piece p;
    unrolled<piece::size>([&](auto channel) {
      constexpr std::uint32_t i = decltype(channel)::value;
      std::uint32_t const c = index * piece::size + i;
      p.x[i] = T{};
      if (c >= rows_.channels()) return;
      row_pieces<Layout> const part(rows_.layout, rows_.follower(leader_, c / channels_));
      p.x[i] = part.read(slot, c % channels_ / piece::size).x[c % channels_ % piece::size];
    });
    return p;
  }

private:
  /// Whether a piece may have channels of two tracks.
  KVMELD_HD bool apart() const { return rows_.count > 1 && channels_ % piece::size != 0; }
  /// The rows of the only track. Nothing has to be divided to find a piece of them.
  KVMELD_HD row_pieces<Layout> alone() const { return {rows_.layout, leader_}; }
  KVMELD_HD row_pieces<Layout> of(std::uint32_t index) const {
    return {rows_.layout, rows_.follower(leader_, index * piece::size / channels_)};
  }
  detail::joined_rows<Layout> const& rows_;
  track leader_;
  std::uint32_t channels_;
};

}  // namespace KVMELD_ABI
}  // namespace kvmeld
