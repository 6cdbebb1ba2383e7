// SPDX-License-Identifier: Apache-2.0
// A tile of rows in shared memory, copied by one warp for itself while it computes on another tile.
#pragma once

#include <kvmeld/backend/warps/row_store.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/fp8.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_piece.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/layout/layout.hpp>
#include <kvmeld/layout/row_pieces.hpp>
#include <kvmeld/layout/scaled.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

/// Tokens of a tile.
constexpr std::uint32_t tile_tokens = 16;

template <class T> constexpr bool is_fp8 = std::is_same_v<T, fp8_e4m3> || std::is_same_v<T, fp8_e5m2>;
/// What binary16 numbers that stand for elements of type T are multiplied by. Exponents of E4M3 keep their
/// bias of 7, where binary16 has 15.
template <class T> constexpr float scale_of_halves = std::is_same_v<T, fp8_e4m3> ? 256.0f : 1.0f;

/// How matrix units read the rows of a layout: rows of 16 bits as they are stored, 8-bit floats as binary16.
/// An element that they read, times `scale`, is what the layout stores.
template <class Layout, class = void> struct multiplied_rows {
  static constexpr bool there = false;  ///< they do not read such rows
};
template <class Layout>
struct multiplied_rows<Layout,
                       std::enable_if_t<has_row_pieces<Layout>::value && !runs_along_tokens<Layout>>> {
  using T = typename Layout::element_type;
  static constexpr bool there = is_fp8<T> || matrix_format_of<T> != matrix_format::none;
  using layout = Layout;
  using element = std::conditional_t<is_fp8<T>, float16, T>;
  KVMELD_HD static layout const& stored(Layout const& rows) { return rows; }
  KVMELD_HD static float scale(Layout const&) { return scale_of_halves<T>; }
};
template <class Codes>
struct multiplied_rows<scaled<Codes>, std::enable_if_t<is_fp8<typename Codes::element_type>>>
    : multiplied_rows<Codes> {
  KVMELD_HD static Codes const& stored(scaled<Codes> const& rows) { return rows.stored; }
  KVMELD_HD static float scale(scaled<Codes> const& rows) {
    return rows.scale() * scale_of_halves<typename Codes::element_type>;
  }
};

/// Two bytes of a word, the lower two or the upper two, as the upper bytes of the halves of a word.
KVMELD_HD inline std::uint32_t upper_bytes(std::uint32_t x, std::uint32_t upper) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(x, 0, upper != 0 ? 0x3424u : 0x1404u);
#else
  std::uint32_t const bytes = x >> 16 * upper;
  return (bytes & 0xffu) << 8 | (bytes & 0xff00u) << 16;
#endif
}

/// Eight 8-bit floats, in two words, as binary16 numbers that are 1 / scale_of_halves of them.
template <class T> KVMELD_HD piece_words as_halves(std::uint32_t const (&codes)[2]) {
  constexpr bool e4m3 = std::is_same_v<T, fp8_e4m3>;
  piece_words halves;
  unrolled<4>([&](auto number) {
    constexpr std::uint32_t i = decltype(number)::value;
    std::uint32_t const pair = upper_bytes(codes[i / 2], i % 2);
    halves.w[i] = e4m3 ? (pair & 0x80008000u) | ((pair >> 1) & 0x3f803f80u) : pair;
  });
  if constexpr (e4m3) {  // its one NaN has all bits set, and overflows into the sign
    auto const odd = [&](std::uint32_t i) { return ((codes[i] & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u; };
    if ((odd(0) | odd(1)) != 0) {
      unrolled<4>([&](auto number) {
        constexpr std::uint32_t i = decltype(number)::value;
        halves.w[i] |= (upper_bytes(odd(i / 2), i % 2) >> 15) * 0x7c00u;
      });
    }
  }
  return halves;
}

/// A channel of a piece.
template <class T, std::uint32_t Channel> KVMELD_HD float element_of(piece_words const& piece) {
  auto const bits = static_cast<std::uint16_t>(piece.w[Channel / 2] >> (16 * (Channel % 2)));
  T x;
  std::memcpy(&x, &bits, sizeof x);
  return element_traits<T>::to_float(x);
}

/// Channels of a tile.
constexpr std::uint32_t tile_channels = 128;

/// 128 channels of 16 rows of a track, as they are stored. The 16 bytes that lanes copy at once are permuted
/// by row: eight neighbouring lanes read from all banks, both if they read 64 bytes of each of two
/// neighbouring rows and if they read 32 bytes of each of four rows that lie two apart. (16 lanes read half
/// as much each from rows of 8-bit floats.)
template <class Layout> class tile_rows {
public:
  using T = typename Layout::element_type;
  using element = typename multiplied_rows<Layout>::element;  ///< of the pieces that words() gives
  static constexpr std::uint32_t pieces = 16;                 ///< of a row: eight channels each
  static constexpr std::uint32_t of_part = 2 / sizeof(T);     ///< pieces that a lane copies at once
  static constexpr std::uint32_t copied = pieces / of_part;
  static constexpr std::uint32_t bytes = tile_tokens * copied * sizeof(piece_words);

  /// Channels `first_channel` and on of rows of `layout`, in `bytes` bytes of scratch of the calling warp.
  KVMELD_HD tile_rows(Layout const& layout, track where, std::byte* memory, std::uint32_t first_channel = 0)
      : rows_(layout, where), data_(memory), first_part_(first_channel / row_piece<T>::size) {}

  /// Begins to copy rows `first` and on. The last one stands for those behind it. Zeros stand for channels
  /// that a row does not have. Each lane finds one row. Collective in a warp. The rows are there after
  /// finish_copies and sync_warp().
  template <class Team> KVMELD_HD void copy(Team const& team, slot_t first, slot_t last) const {
    std::uint32_t const lane = team.lane() % warp_size, part = first_part_ + lane % copied;
    piece_words const zeros = {};
    T const* const mine = rows_.row(min_of(first + lane % tile_tokens, last));
    for (std::uint32_t row = lane / copied; row < tile_tokens; row += warp_size / copied) {
      T const* const from = shuffle_address(team, mine, row);
      std::byte* const to = data_ + place(row, lane % copied);
      if (part >= rows_.count()) {
        copy_piece(to, &zeros);
      } else if (from != nullptr) {
        team.copy_ahead(to, from + part * row_piece<T>::size);
      } else {
        piece_words w;
        pack_piece(rows_.read(min_of(first + row, last), part), w.w);
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
      unrolled<8>([&](auto channel) {
        finite = finite && is_finite(element_of<element, decltype(channel)::value>(w));
      });
    }
    return finite;
  }

  /// A piece of a row.
  KVMELD_HD piece_words words(std::uint32_t row, std::uint32_t piece) const {
    if constexpr (sizeof(T) == 1) {
      std::uint32_t codes[2];
      copy_half_piece(codes, piece_at(row, piece));
      return as_halves<T>(codes);
    } else {
      piece_words w;
      copy_piece(w.w, piece_at(row, piece));
      return w;
    }
  }

  /// Writes zeros to those of the eight channels of a piece whose bits are set in `which`.
  KVMELD_HD void clear(std::uint32_t row, std::uint32_t piece, std::uint32_t which) const {
    T const zero = element_traits<T>::from_float(0.0f);
    for (std::uint32_t c = 0; c < 8; ++c) {
      if ((which >> c & 1u) != 0) write_aligned<T>(piece_at(row, piece) + c * sizeof(T), zero);
    }
  }

private:
  KVMELD_HD std::byte* piece_at(std::uint32_t row, std::uint32_t piece) const {
    return data_ + place(row, piece / of_part) + piece % of_part * 8;
  }
  KVMELD_HD static constexpr std::uint32_t place(std::uint32_t row, std::uint32_t part) {
    return (row * copied + (part ^ ((row ^ row << 2) & 6u))) * std::uint32_t{sizeof(piece_words)};
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
  std::uint32_t first_part_;
};

}  // namespace tuned_form
}  // namespace KVMELD_ABI
}  // namespace kvmeld
