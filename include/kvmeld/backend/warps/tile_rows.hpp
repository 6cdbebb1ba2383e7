// A tile of rows in shared memory, copied by one warp for itself while it computes on another tile.
#pragma once

#include <kvmeld/backend/warps/row_store.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_piece.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/layout/row_pieces.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

/// Tokens of a tile.
constexpr std::uint32_t tile_tokens = 16;

/// A channel of a piece.
template <class T, std::uint32_t Channel> KVMELD_HD float element_of(piece_words const& piece) {
  auto const bits = static_cast<std::uint16_t>(piece.w[Channel / 2] >> (16 * (Channel % 2)));
  T x;
  std::memcpy(&x, &bits, sizeof x);
  return element_traits<T>::to_float(x);
}

/// 16 rows of a track of up to 128 channels of 16 bits. Rows lie 256 bytes apart. The pieces of each 128
/// bytes are permuted by row: eight neighbouring lanes read from all banks, both if they read four pieces of
/// each of two neighbouring rows and if they read two pieces of each of four rows that lie two apart.
template <class Layout> class tile_rows {
public:
  using T = typename Layout::element_type;
  static constexpr std::uint32_t piece_size = row_piece<T>::size;
  static constexpr std::uint32_t pieces = 16;  ///< of a row
  static constexpr std::uint32_t bytes = tile_tokens * pieces * sizeof(piece_words);

  /// Rows of `layout` in `bytes` bytes of scratch of the calling warp.
  KVMELD_HD tile_rows(Layout const& layout, track where, std::byte* memory)
      : rows_(layout, where), data_(memory) {}

  /// Begins to copy rows `first` and on. The last one stands for those behind it. Zeros fill up the channels
  /// to 128. Each lane finds one row. Collective in a warp. The rows are there after finish_copies and
  /// sync_warp().
  template <class Team> KVMELD_HD void copy(Team const& team, slot_t first, slot_t last) const {
    std::uint32_t const lane = team.lane() % warp_size, piece = lane % pieces;
    piece_words const zeros = {};
    T const* const mine = rows_.row(min_of(first + lane % tile_tokens, last));
    for (std::uint32_t row = lane / pieces; row < tile_tokens; row += warp_size / pieces) {
      T const* const from = shuffle_address(team, mine, row);
      std::byte* const to = data_ + place(row, piece);
      if (piece >= rows_.count()) {
        copy_piece(to, &zeros);
      } else if (from != nullptr) {
        team.copy_ahead(to, from + piece * piece_size);
      } else {
        piece_words w;
        pack_piece(rows_.read(min_of(first + row, last), piece), w.w);
        copy_piece(to, w.w);
      }
    }
  }

  /// Whether this lane's pieces of all rows are finite.
  template <class Team> KVMELD_HD bool are_finite(Team const& team) const {
    std::uint32_t const lane = team.lane() % warp_size;
    bool finite = true;
    for (std::uint32_t row = lane / pieces; row < tile_tokens; row += warp_size / pieces) {
      piece_words const w = words(row, lane % pieces);
      unrolled<piece_size>(
          [&](auto channel) { finite = finite && is_finite(element_of<T, decltype(channel)::value>(w)); });
    }
    return finite;
  }

  /// A piece of a row.
  KVMELD_HD piece_words words(std::uint32_t row, std::uint32_t piece) const {
    piece_words w;
    copy_piece(w.w, data_ + place(row, piece));
    return w;
  }

  /// Replaces a piece of a row.
  KVMELD_HD void write(std::uint32_t row, std::uint32_t piece, piece_words const& w) const {
    copy_piece(data_ + place(row, piece), w.w);
  }

private:
  KVMELD_HD static constexpr std::uint32_t place(std::uint32_t row, std::uint32_t piece) {
    return (row * pieces + (piece ^ ((row ^ row << 2) & 6u))) * std::uint32_t{sizeof(piece_words)};
  }
  template <class Team>
  KVMELD_HD static T const* shuffle_address(Team const& team, T const* mine, std::uint32_t from) {
    std::uint64_t const bits = reinterpret_cast<std::uintptr_t>(mine);
    std::uint64_t const low = team.shuffle(static_cast<std::uint32_t>(bits), from);
    std::uint64_t const high = team.shuffle(static_cast<std::uint32_t>(bits >> 32), from);
    std::uintptr_t const address = high << 32 | low;
    return reinterpret_cast<T const*>(address);
  }

  row_pieces<Layout> rows_;
  std::byte* data_;
};

}  // namespace tuned_form
}  // namespace KVMELD_ABI
}  // namespace kvmeld
