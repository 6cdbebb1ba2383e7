// The running softmax of one warp: up to 16 query rows over tiles of 16 tokens. Keys and values are read from
// where they lie.
#pragma once

#include <kvmeld/backend/warps/row_store.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_piece.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/layout/row_pieces.hpp>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

/// Query rows of a tile, tokens of a tile, and the most channels that fit into a lane's registers.
constexpr std::uint32_t query_rows = 16, tile_tokens = 16, max_attended_channels = 128;

/// exp(x) as a power of 2; devices have an instruction for such powers.
KVMELD_HD inline float exponential(float x) { return std::exp2(x * 1.44269504f); }

/// A piece of a row of `channels` 16-bit elements, at any alignment. Channels beyond the end are zeros.
template <class T>
KVMELD_HD piece_words row_words(T const* row, std::uint32_t piece, std::uint32_t channels) {
  piece_words words = {};
  std::uint32_t const first = 8 * piece;
  if (first >= channels) return words;
  if (channels % 8 == 0 && is_piece_aligned(row)) {
    copy_piece(words.w, row + first);
    return words;
  }
  unrolled<8>([&](auto channel) {
    constexpr std::uint32_t c = decltype(channel)::value;
    if (first + c >= channels) return;
    words.w[c / 2] |= std::uint32_t{read_aligned<std::uint16_t>(row + first + c)} << (16 * (c % 2));
  });
  return words;
}

/// to[I][J] = piece piece_of(J) of the row in slots[I], zeros where a row has no such piece. All loads start
/// before any is waited for, unless a row does not lie at a multiple of 16 bytes.
template <std::uint32_t Slots, std::uint32_t Pieces, class Rows, class Piece>
KVMELD_HD void load_words(Rows const& rows, slot_t const (&slots)[Slots], Piece piece_of,
                          piece_words (&to)[Slots][Pieces]) {
  using piece = typename Rows::piece;
  typename Rows::T const* at[Slots];
  bool plain = true;
  unrolled<Slots>([&](auto slot) {
    constexpr std::uint32_t i = decltype(slot)::value;
    at[i] = rows.row(slots[i]);
    plain = plain && at[i] != nullptr;
  });
  std::uint32_t const there = rows.count();
  unrolled<Slots * Pieces>([&](auto number) {
    constexpr std::uint32_t i = decltype(number)::value / Pieces, j = decltype(number)::value % Pieces;
    std::uint32_t const number_of = piece_of(j);
    to[i][j] = {};
    if (plain && number_of < there) copy_piece(to[i][j].w, at[i] + std::size_t{number_of} * piece::size);
  });
  if (plain) return;
  unrolled<Slots * Pieces>([&](auto number) {
    constexpr std::uint32_t i = decltype(number)::value / Pieces, j = decltype(number)::value % Pieces;
    if (piece_of(j) >= there) return;
    pack_piece(rows.read(slots[i], piece_of(j)), to[i][j].w);
  });
}

/// Keys of a tile. Matrix steps may take channels in any order that keys and queries share. Here lane (group,
/// pair) holds pieces pair, pair + 4 ... of tokens group and group + 8: each lane reads 16 bytes at a time,
/// and four lanes read 64 bytes of a row.
struct key_pieces {
  static constexpr std::uint32_t pieces = max_attended_channels / 32;
  piece_words of[2][pieces];

  template <class Rows> KVMELD_HD void load(Rows const& rows, warp_place place, slot_t first, slot_t last) {
    slot_t const slots[2] = {min_of(first + place.group, last), min_of(first + 8 + place.group, last)};
    load_words(
        rows, slots, [&](std::uint32_t j) { return 4 * j + place.pair; }, of);
  }
};

/// Values of a tile. Lane (group, pair) holds pieces group and group + 8 of the four tokens whose weights it
/// holds.
struct value_pieces {
  static constexpr std::uint32_t pieces = max_attended_channels / 64;
  piece_words of[4][pieces];

  KVMELD_HD static std::uint32_t token(warp_place place, std::uint32_t i) {
    return 2 * place.pair + i % 2 + 8 * (i / 2);
  }
  template <class Rows> KVMELD_HD void load(Rows const& rows, warp_place place, slot_t first, slot_t last) {
    slot_t slots[4];
    for (std::uint32_t i = 0; i < 4; ++i) slots[i] = min_of(first + token(place, i), last);
    load_words(
        rows, slots, [&](std::uint32_t h) { return 8 * h + place.group; }, of);
  }
  /// A copy in which the tokens of the tile from `end` on are zeros.
  KVMELD_HD value_pieces seen(warp_place place, std::uint32_t end) const {
    value_pieces v = *this;
    unrolled<4 * pieces>([&](auto number) {
      constexpr std::uint32_t i = decltype(number)::value / pieces, h = decltype(number)::value % pieces;
      if (token(place, i) >= end) v.of[i][h] = {};
    });
    return v;
  }
  /// Right factor of result 8 * h + j: tokens are rows, channels 64 h + 8 column + j are columns.
  KVMELD_HD void right(std::uint32_t h, std::uint32_t j, std::uint32_t (&b)[2]) const {
    for (std::uint32_t half = 0; half < 2; ++half) {
      std::uint32_t const x = of[2 * half][h].w[j / 2], y = of[2 * half + 1][h].w[j / 2];
      b[half] = j % 2 == 0 ? (x & 0xffffu) | (y << 16) : (x >> 16) | (y & 0xffff0000u);
    }
  }
};

/// Weights of a tile in two parts of 16 bits: the second part keeps what the first rounds off. Both parts are
/// of the weight times 2^14, because binary16 has no numbers between 0 and 2^-24. What both leave out is
/// below 2^-38 of the largest weight.
template <class T> struct split_weights {
  static constexpr float scale = 0x1p14f;
  std::uint32_t high[4], low[4];

  /// p[n][..]: weights of tokens 8 n and on, in the places where multiply leaves its results.
  KVMELD_HD explicit split_weights(float const (&p)[2][4]) {
    for (std::uint32_t n = 0; n < 2; ++n) {
      for (std::uint32_t half = 0; half < 2; ++half) {
        split(p[n][2 * half], p[n][2 * half + 1], high[2 * n + half], low[2 * n + half]);
      }
    }
  }

private:
  KVMELD_HD static void split(float a, float b, std::uint32_t& high, std::uint32_t& low) {
    using traits = element_traits<T>;
    T const highs[2] = {traits::from_float(scale * a), traits::from_float(scale * b)};
    T const lows[2] = {traits::from_float(scale * a - traits::to_float(highs[0])),
                       traits::from_float(scale * b - traits::to_float(highs[1]))};
    std::memcpy(&high, highs, sizeof high);
    std::memcpy(&low, lows, sizeof low);
  }
};

/// The softmax state of rows group and group + 8. It includes the weighted values of all channels, times
/// split_weights::scale. Each lane holds its share.
template <class T> struct warp_softmax {
  static constexpr std::uint32_t results = max_attended_channels / 8;
  float highest[2] = {0.0f, 0.0f}, sum[2] = {0.0f, 0.0f};
  bool any[2] = {false, false};
  float total[results][4] = {};

  /// Turns logits (this lane's share of 16 x 16) into weights. sees(half, n, i) says whether row group + 8
  /// half sees the i-th token of the lane's pair in the n-th eight. Collective in a warp.
  template <class Team, class Sees> KVMELD_HD void soften(Team const& team, float (&logit)[2][4], Sees sees) {
    unrolled<2>([&](auto row) {
      constexpr std::uint32_t half = decltype(row)::value;
      float high = element_traits<float>::lowest;
      bool seen = false;
      unrolled<4>([&](auto pair) {
        constexpr std::uint32_t n = decltype(pair)::value / 2, i = decltype(pair)::value % 2;
        if (!sees(half, n, i)) return;
        high = max_of(high, logit[n][2 * half + i]);
        seen = true;
      });
      high = over_row(team, high, [](float a, float b) { return max_of(a, b); });
      bool const some =
          ((team.ballot(seen) >> team.lane() % warp_size / 4 * 4) & 0xfu) != 0;  // some lane of the row
      if (any[half]) high = max_of(high, highest[half]);
      float const factor = any[half] ? exponential(highest[half] - high) : 0.0f;
      float part = 0.0f;
      unrolled<4>([&](auto pair) {
        constexpr std::uint32_t n = decltype(pair)::value / 2, i = decltype(pair)::value % 2;
        float& x = logit[n][2 * half + i];
        x = sees(half, n, i) ? exponential(x - high) : 0.0f;
        part += x;
      });
      part = over_row(team, part, [](float a, float b) { return a + b; });
      if (!some) return;
      sum[half] = sum[half] * factor + part;
      highest[half] = high;
      any[half] = true;
      unrolled<results>([&](auto result) {
        float(&r)[4] = total[decltype(result)::value];
        r[2 * half] *= factor;
        r[2 * half + 1] *= factor;
      });
    });
  }

  /// Adds weighted values to row group + 8 half where takes(half). Collective in a warp.
  template <class Team, class Takes>
  KVMELD_HD void add(Team const& team, split_weights<T> const& w, value_pieces const& v,
                     std::uint32_t channels, Takes takes) {
    unrolled<results>([&](auto result) {
      constexpr std::uint32_t index = decltype(result)::value, h = index / 8, j = index % 8;
      if (64 * h >= channels) return;
      std::uint32_t b[2];
      v.right(h, j, b);
      float(&r)[4] = total[index];
      float c[4] = {r[0], r[1], r[2], r[3]};
      team.template multiply<matrix_format_of<T>>(c, w.high, b);
      team.template multiply<matrix_format_of<T>>(c, w.low, b);
      for (std::uint32_t i = 0; i < 4; ++i) {
        if (takes(i / 2)) r[i] = c[i];
      }
    });
  }
};

}  // namespace tuned_form
}  // namespace KVMELD_ABI
}  // namespace kvmeld
