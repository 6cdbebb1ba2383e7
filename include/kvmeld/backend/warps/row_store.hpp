// SPDX-License-Identifier: Apache-2.0
// Rows of a track in shared memory, in the format in which they are stored, for matrix units.
#pragma once

#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/element.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/row_piece.hpp>
#include <kvmeld/exec/team.hpp>
#include <kvmeld/exec/warps.hpp>
#include <kvmeld/layout/joined.hpp>
#include <kvmeld/layout/row_pieces.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace tuned_form {

/// Whether matrix units can read the rows of a layout as they are stored.
template <class Layout, bool = has_row_pieces<Layout>::value> struct has_matrix_rows : std::false_type {};
template <class Layout>
struct has_matrix_rows<Layout, true>
    : std::bool_constant<!runs_along_tokens<Layout> &&
                         matrix_format_of<typename Layout::element_type> != matrix_format::none> {};

template <class Layout>
struct has_matrix_rows<detail::joined_rows<Layout>, false> : has_matrix_rows<Layout> {};

/// Channels that one step of the matrix unit multiplies.
constexpr std::uint32_t matrix_step = 16;

/// The 8 channels of a piece, two channels per word.
struct alignas(16) piece_words {
  std::uint32_t w[4];
};

/// Up to `rows` rows of 16-bit elements. Zeros fill up the channels to whole matrix steps. Rows lie an odd
/// multiple of 16 bytes apart, so that the words of a fragment (left, right) are in 32 different banks. With
/// `Whole`, a quarter of a warp reads whole pieces at once, four of each row (words); rows then lie 64 bytes
/// more than a multiple of 128 apart.
template <class Layout, bool Whole = false> class row_store {
public:
  using T = typename Layout::element_type;
  static constexpr std::uint32_t piece_size = row_piece<T>::size;

  KVMELD_HD static constexpr std::uint32_t pitch(std::uint32_t channels) {
    std::uint32_t const pieces = ceil_div(channels, matrix_step) * (matrix_step / piece_size);
    return (Whole ? pieces + (12 - pieces % 8) % 8 : pieces + 1) * piece_size;
  }
  KVMELD_HD static constexpr std::size_t bytes(std::uint32_t rows, std::uint32_t channels) {
    return scratch_size(std::size_t{rows} * pitch(channels) * sizeof(T));
  }

  template <class Team>
  KVMELD_HD row_store(Team const& team, std::uint32_t rows, std::uint32_t channels)
      : data_(team.template scratch<T>(std::size_t{rows} * pitch(channels))),
        pitch_(pitch(channels)),
        steps_(ceil_div(channels, matrix_step)) {}

  KVMELD_HD std::uint32_t steps() const { return steps_; }

  /// Loads rows slot(0) .. slot(count - 1) into rows `first` and on. Collective. The rows are there after
  /// finish_copies() and a barrier.
  template <class Team, class Slot>
  KVMELD_HD void load(Team const& team, Layout const& layout, track where, std::uint32_t count, Slot slot,
                      std::uint32_t first = 0) const {
    load_wanted(team, layout, where, count, slot, first, [](std::uint32_t) { return true; });
  }
  /// As load(), but only rows i with wanted(i).
  template <class Team, class Slot, class Wanted>
  KVMELD_HD void load_wanted(Team const& team, Layout const& layout, track where, std::uint32_t count,
                             Slot slot, std::uint32_t first, Wanted wanted) const {
    row_pieces<Layout> const rows(layout, where);
    std::uint32_t const pieces = steps_ * (matrix_step / piece_size);
    std::uint32_t const there = rows.count();
    piece_share const mine(team, pieces);
    if (!mine.has_row()) return;
    for (std::uint32_t piece = mine.piece; piece < pieces; piece += mine.width) {
      for (std::uint32_t row = mine.row; row < count; row += mine.rows) {
        if (!wanted(row)) continue;
        T* const to = data_ + std::size_t{first + row} * pitch_ + piece * piece_size;
        if (piece >= there) {
          for (std::uint32_t c = 0; c < piece_size; ++c) to[c] = element_traits<T>::from_float(0.0f);
          continue;
        }
        slot_t const s = slot(row);
        if (T const* const from = rows.address(s, piece)) {
          team.copy_ahead(to, from);
        } else {
          store_piece(to, rows.read(s, piece));
        }
      }
    }
  }

  /// Channels `channel` (even) and `channel` + 1 of a row.
  KVMELD_HD std::uint32_t word(std::uint32_t row, std::uint32_t channel) const {
    return read_aligned<std::uint32_t>(data_ + std::size_t{row} * pitch_ + channel);
  }

  /// A piece of a row; zeros if the row has no such piece.
  KVMELD_HD piece_words words(std::uint32_t row, std::uint32_t piece) const {
    piece_words w = {};
    if (piece * piece_size < steps_ * matrix_step) {
      copy_piece(w.w, data_ + std::size_t{row} * pitch_ + piece * piece_size);
    }
    return w;
  }

  /// Rows first .. first + 15 as the left factor of a step: this lane's share, from rows first + place.group
  /// and 8 after it.
  KVMELD_HD void left(warp_place place, std::uint32_t first, std::uint32_t step,
                      std::uint32_t (&a)[4]) const {
    std::uint32_t const row = first + place.group;
    std::uint32_t const channel = step * matrix_step + 2 * place.pair;
    a[0] = word(row, channel);
    a[1] = word(row + 8, channel);
    a[2] = word(row, channel + 8);
    a[3] = word(row + 8, channel + 8);
  }
  /// Rows first .. first + 7 as the columns of the right factor of a step: this lane's share.
  KVMELD_HD void right(warp_place place, std::uint32_t first, std::uint32_t step,
                       std::uint32_t (&b)[2]) const {
    std::uint32_t const row = first + place.group;
    std::uint32_t const channel = step * matrix_step + 2 * place.pair;
    b[0] = word(row, channel);
    b[1] = word(row, channel + 8);
  }

  /// 1 / norm of a row, 0 for a zero row. Adds in the order of the row's pieces.
  KVMELD_HD float inverse_norm(std::uint32_t row) const {
    float sums[piece_size] = {};
    for (std::uint32_t piece = 0; piece < steps_ * (matrix_step / piece_size); ++piece) {
      row_piece<T> const p = load_piece<T>(data_ + std::size_t{row} * pitch_ + piece * piece_size);
      for (std::uint32_t c = 0; c < piece_size; ++c) {
        float const x = element_traits<T>::to_float(p.x[c]);
        sums[c] += x * x;
      }
    }
    float square = 0.0f;
    for (float s : sums) square += s;
    return square > 0.0f ? 1.0f / std::sqrt(square) : 0.0f;
  }

private:
  T* data_;
  std::uint32_t pitch_, steps_;
};

}  // namespace tuned_form
}  // namespace KVMELD_ABI
}  // namespace kvmeld
