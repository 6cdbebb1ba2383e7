// SPDX-License-Identifier: Apache-2.0
// The running softmax of one warp: up to 16 query rows over tiles of 16 tokens.
#pragma once

#include <kvmeld/backend/warps/row_store.hpp>
#include <kvmeld/backend/warps/tile_rows.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_piece.hpp>
#include <kvmeld/exec/unrolled.hpp>
#include <kvmeld/exec/warps.hpp>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

/// Query rows of a tile.
constexpr std::uint32_t query_rows = 16;

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

/// The token of a tile that a lane's products of the n-th eight tokens, [i] and [2 + i], belong to.
KVMELD_HD constexpr std::uint32_t token_of(warp_place place, std::uint32_t n, std::uint32_t i) {
  return 8 * n + 2 * place.pair + i;
}

/// Values of a tile, 64 channels of them. Lane (group, pair) holds piece `group` of the four tokens whose
/// weights it holds.
struct value_pieces {
  piece_words of[4];

  /// Reads channels 64 h and on.
  template <class Rows> KVMELD_HD value_pieces(Rows const& rows, warp_place place, std::uint32_t h) {
    unrolled<4>([&](auto number) {
      constexpr std::uint32_t i = decltype(number)::value;
      of[i] = rows.words(token_of(place, i / 2, i % 2), 8 * h + place.group);
    });
  }
  /// The lower or the upper halves of two words.
  KVMELD_HD static std::uint32_t paired(std::uint32_t x, std::uint32_t y, bool upper) {
#if defined(__CUDA_ARCH__)
    return __byte_perm(x, y,
                       upper ? 0x7632u : 0x5410u);  // one instruction; from the other form nvcc makes two
#else
    return upper ? (x >> 16) | (y & 0xffff0000u) : (x & 0xffffu) | (y << 16);
#endif
  }
  /// Right factor of result j: tokens are rows, channels 8 column + j of the 64 are columns.
  KVMELD_HD void right(std::uint32_t j, std::uint32_t (&b)[2]) const {
    for (std::uint32_t half = 0; half < 2; ++half) {
      b[half] = paired(of[2 * half].w[j / 2], of[2 * half + 1].w[j / 2], j % 2 != 0);
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

/// The softmax state of rows group and group + 8. It includes the weighted values of 128 channels, times
/// split_weights::scale. Each lane holds its share.
template <class T> struct warp_softmax {
  static constexpr std::uint32_t results = tile_channels / 8;
  float highest[2] = {0.0f, 0.0f}, sum[2] = {0.0f, 0.0f};
  float total[results][4] = {};

  /// Turns logits (this lane's share of 16 x 16) into weights. Row group + 8 half sees the tokens of the tile
  /// whose bits are set in seen[half]. Collective in a warp.
  template <class Team>
  KVMELD_HD void soften(Team const& team, float (&logit)[2][4], std::uint32_t const (&seen)[2]) {
    warp_place const place = place_in_warp(team);
    unrolled<2>([&](auto row) {
      constexpr std::uint32_t half = decltype(row)::value;
      float high = element_traits<float>::lowest;
      unrolled<4>([&](auto pair) {
        constexpr std::uint32_t n = decltype(pair)::value / 2, i = decltype(pair)::value % 2;
        if (sees(seen[half], token_of(place, n, i))) high = max_of(high, logit[n][2 * half + i]);
      });
      high = over_row(team, high, [](float a, float b) { return max_of(a, b); });
      bool const any = sum[half] != 0.0f;  // the highest logit adds 1
      if (any) high = max_of(high, highest[half]);
      float const factor = any ? exponential(highest[half] - high) : 0.0f;
      float part = 0.0f;
      unrolled<4>([&](auto pair) {
        constexpr std::uint32_t n = decltype(pair)::value / 2, i = decltype(pair)::value % 2;
        float& x = logit[n][2 * half + i];
        x = sees(seen[half], token_of(place, n, i)) ? exponential(x - high) : 0.0f;
        part += x;
      });
      part = over_row(team, part, [](float a, float b) { return a + b; });
      if (seen[half] == 0) return;
      sum[half] = sum[half] * factor + part;
      highest[half] = high;
      unrolled<results>([&](auto result) {
        float(&r)[4] = total[decltype(result)::value];
        r[2 * half] *= factor;
        r[2 * half + 1] *= factor;
      });
    });
  }

  /// Adds weighted values. Collective in a warp.
  template <class Team, class Rows>
  KVMELD_HD void add(Team const& team, split_weights<T> const& w, Rows const& values,
                     std::uint32_t channels) {
    unrolled<results / 8>([&](auto eight) {
      constexpr std::uint32_t h = decltype(eight)::value;
      if (64 * h >= channels) return;
      value_pieces const v(values, place_in_warp(team), h);
      unrolled<8>([&](auto result) {
        constexpr std::uint32_t j = decltype(result)::value;
        std::uint32_t b[2];
        v.right(j, b);
        team.template multiply<matrix_format_of<T>>(total[8 * h + j], w.high, b);
        team.template multiply<matrix_format_of<T>>(total[8 * h + j], w.low, b);
      });
    });
  }

  /// For a tile of which queries see different tokens: 0 times a value that a query does not see could be
  /// NaN. Clears values that are not finite; rows that see them get NaN. Collective in a warp.
  template <class Team, class Rows>
  KVMELD_HD void hide_unseen(Team const& team, Rows const& values, std::uint32_t channels,
                             std::uint32_t const (&seen)[2]) {
    if (team.ballot(!values.are_finite(team)) == 0) return;
    warp_place const place = place_in_warp(team);
    for (std::uint32_t token = 0; token < tile_tokens; ++token) {
      unrolled<results / 4>([&](auto number) {
        constexpr std::uint32_t h = decltype(number)::value / 2, i = decltype(number)::value % 2;
        if (64 * h >= channels) return;
        std::uint32_t const index = 8 * h + 2 * place.pair + i;
        piece_words const piece = values.words(token, index);
        std::uint32_t odd = 0;
        unrolled<8>([&](auto channel) {
          constexpr std::uint32_t j = decltype(channel)::value;
          if (is_finite(element_of<T, j>(piece))) return;
          odd |= 1u << j;
          unrolled<2>([&](auto row) {
            constexpr std::uint32_t half = decltype(row)::value;
            if (sees(seen[half], token)) total[8 * h + j][2 * half + i] = bits_float(0x7fc00000u);
          });
        });
        team.sync_warp();
        if (place.group == token % 8) values.clear(token, index, odd);
      });
    }
    team.sync_warp();
  }

private:
  KVMELD_HD static bool sees(std::uint32_t seen, std::uint32_t token) { return (seen >> token & 1u) != 0; }
};

}  // namespace tuned_form
}  // namespace KVMELD_ABI
}  // namespace kvmeld
